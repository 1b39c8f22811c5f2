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
"""
