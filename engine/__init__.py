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

from engine.config import Device, EncoderMode, EngineConfig
from engine.engine import Engine, ModelInfo, build_engine
from engine.errors import (
    ConfigError,
    EngineClosed,
    EngineError,
    EngineFull,
    ModelLoadError,
    ModelNotFound,
    UnknownSession,
)
from engine.types import (
    SAMPLE_RATE,
    CloseReason,
    EndReason,
    Event,
    Final,
    Partial,
    Progress,
    Samples,
    Segment,
    SessionClosed,
    SessionSettings,
    SpeechStarted,
    TickStats,
    Word,
)
from engine.worker import Worker

__all__ = [
    "SAMPLE_RATE",
    "CloseReason",
    "ConfigError",
    "Device",
    "EncoderMode",
    "EndReason",
    "Engine",
    "EngineClosed",
    "EngineConfig",
    "EngineError",
    "EngineFull",
    "Event",
    "Final",
    "ModelInfo",
    "ModelLoadError",
    "ModelNotFound",
    "Partial",
    "Progress",
    "Samples",
    "Segment",
    "SessionClosed",
    "SessionSettings",
    "SpeechStarted",
    "TickStats",
    "UnknownSession",
    "Word",
    "Worker",
    "build_engine",
]
