"""Values that travel through the engine and out of it.

All are frozen. Time is an integer index of 16 kHz samples since the start of the session; seconds exist only on
the wire. This file knows no torch, no threads and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from engine.errors import ConfigError

SAMPLE_RATE = 16_000  # samples per second of everything inside the engine
POSITION_SAMPLES = SAMPLE_RATE // 50  # of one encoder position: 20 ms
MAX_WINDOW_SAMPLES = 30 * SAMPLE_RATE  # Whisper's receptive field

Samples = NDArray[np.float32]  # (n,) mono, 16 kHz, -1..1


# What a client may choose, least and most, both allowed.
SETTING_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"pause_ms": (100, 5000), "min_speech_ms": (0, 2000), "threshold": (0.05, 0.95), "max_utterance_s": (5, 30)}
)
FILE_PAUSE_MS = 2000  # silence that ends an utterance of a recording, where nobody waits for its text


class CloseReason(StrEnum):
    """Why a session ended."""

    FINISHED = "finished"  # the client said finish and everything was answered
    ABANDONED = "abandoned"  # the client went away
    FAILED = "failed"  # a fault in this session
    SHUTDOWN = "shutdown"  # the engine stops


class EndReason(StrEnum):
    """Why an utterance ended."""

    PAUSE = "pause"  # the speaker paused
    MAX_LENGTH = "max_length"  # it would have grown past `max_utterance_s`; the next utterance continues it
    FINISHED = "finished"  # the client said finish


class SuppressReason(StrEnum):
    """Why a hypothesis was kept from the text."""

    NO_SPEECH = "no_speech"  # the doubts of model, text and speech detector add up
    PROMPT_ECHO = "prompt_echo"  # a doubtful text that repeats the prompt
    LOOP = "loop"  # it repeated itself; decoded again with full context, as are the next two
    TOO_LONG = "too_long"  # more text than anybody says in that time
    UNLIKELY = "unlikely"  # the model hardly believes it


class Task(StrEnum):
    """What the decoder is asked to write."""

    TRANSCRIBE = "transcribe"
    TRANSLATE = "translate"  # into English; multilingual models only


class Stability(StrEnum):
    """Which words of an open utterance are shown."""

    FAST = "fast"  # every word at once
    BALANCED = "balanced"  # without those that are likely to change
    FINAL = "final"  # committed words only


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a client may choose for its own session.

    Attributes:
        language: language code such as "en"; None detects it utterance by utterance.
        interim: send partials while speech goes on.
        pause_ms: silence that ends an utterance; None takes the server's.
        min_speech_ms: speech without a break that opens an utterance, rounded up to whole blocks of 32 ms.
        threshold: probability at which a block of audio counts as speech.
        max_utterance_s: an utterance is cut between two words before it grows longer.
        task: write down what is said, or its translation.
        stability: which words a partial shows.
        prompt: text that the model takes for what was said before: names, subject, style.
        hotwords: words and names that are likely to be said.
        previous_text: give the model the last words of the session as well.

    Raises:
        ConfigError: a value lies outside SETTING_RANGES.
    """

    language: str | None = None
    interim: bool = True
    pause_ms: int | None = None
    min_speech_ms: int = 64
    threshold: float = 0.5
    max_utterance_s: float = 30.0
    task: Task = Task.TRANSCRIBE
    stability: Stability = Stability.BALANCED
    prompt: str = ""
    hotwords: tuple[str, ...] = ()
    previous_text: bool = False

    def __post_init__(self) -> None:
        for name, (low, high) in SETTING_RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} is {value}; it must lie between {low:g} and {high:g}.")


@dataclass(frozen=True, slots=True)
class Word:
    """One word with its time on the session clock, its tokens and their mean probability."""

    text: str
    tokens: tuple[int, ...]
    start: int
    end: int
    probability: float


# ----------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The speech detector opened an utterance; `start` includes the pre-roll."""

    utterance_id: int
    start: int


@dataclass(frozen=True, slots=True)
class Partial:
    """What an open utterance says so far: `committed` only ever grows, `tentative` may still change.

    The text is `committed + tentative`; both keep their own leading spaces. `heard` is the newest sample it rests on.
    `language` may change until something is committed; `language_prob` is 1 where the model was not asked.
    """

    utterance_id: int
    revision: int
    committed: str
    tentative: str
    start: int
    end: int
    heard: int
    language: str = ""
    language_prob: float = 1.0


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of final text, about a sentence long."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Final:
    """The text of a finished utterance; never revised. May be empty where the model heard no words.

    `heard` is the sample at which the utterance was known to be over.
    """

    utterance_id: int
    text: str
    start: int
    end: int
    heard: int
    reason: EndReason
    language: str
    segments: tuple[Segment, ...] = ()
    words: tuple[Word, ...] = ()
    language_prob: float = 1.0


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A hypothesis that was kept from the text, as it was; [start, end) is its window."""

    utterance_id: int
    reason: SuppressReason
    text: str
    start: int
    end: int
    avg_logprob: float
    no_speech_prob: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Flow control: every sample before `settled` is answered or known to be silence. Not sent to clients."""

    settled: int


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """Always the last event of a session, exactly once."""

    reason: CloseReason
    message: str = ""


Event = SpeechStarted | Partial | Final | Suppressed | Progress | SessionClosed


# ----------------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True, slots=True)
class TickStats:
    """What one tick did and how long it took.

    Attributes:
        tick: counts up from 1.
        at: wall-clock time at the end of the tick, seconds since the epoch.
        duration_ms: the whole tick.
        sessions: open sessions; `speaking` of them have an open utterance.
        waiting: requests left waiting after admission.
        encoder_batch: windows that went through the encoder (0: the encoder did not run).
        encoder_runs: calls of the encoder; 1 with the batched encoder unless the batch was split.
        encoder_positions: 20-ms positions encoded, summed over the windows.
        encoder_ms: time in the encoder, features included.
        queue_wait_ms: one per window admitted, from ready to admitted.
        retries: windows that are run again with full context because their text looked wrong.
        decode_rows: most rows in one round of the decoder.
        decode_ms: time in prefill and decode steps.
        decode_tokens: text tokens gained.
        passes: passes of the decoder, prefill included.
        greedy_passes: passes that plain greedy decoding, one token each, would have taken for the windows that
            were finished; what forced prefixes and drafts save.
        suppressed: one reason per hypothesis that was kept from the text, retries included.
    """

    tick: int
    at: float
    duration_ms: float
    sessions: int
    speaking: int
    waiting: int
    encoder_batch: int
    encoder_runs: int
    encoder_positions: int
    encoder_ms: float
    retries: int
    decode_rows: int
    decode_ms: float
    decode_tokens: int
    passes: int
    greedy_passes: int
    queue_wait_ms: tuple[float, ...] = field(default=())
    suppressed: tuple[SuppressReason, ...] = ()
