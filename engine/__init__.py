"""The transcription engine: knows no web, no sockets, no Gradio.

Words
    chunk       audio of one network message
    frame       10 ms of log-mel spectrogram
    position    20 ms, one encoder output
    tick        one round of the engine
    window      the audio interval shown to the encoder, at most 30 s
    utterance   speech between two endpoints
    hypothesis  the result of decoding one window
    committed   the stable prefix of an utterance's text; tentative: the rest
    partial     text of an open utterance; final: text of a finished one
    slot        a row of the KV cache and its generation
    prefill     prompt and cross-attention keys and values of a new row
    decode step one token for every running row

Public modules; everything else is the engine's own
    engine.types     what goes in and comes out
    engine.config    settings of an engine
    engine.errors    what can be refused
    engine.core    build_engine, Engine, ModelInfo
    engine.worker    the thread that ticks an engine
    engine.models.registry  which models there are

Nothing is imported here, so that the values and settings are there without loading PyTorch.
"""
