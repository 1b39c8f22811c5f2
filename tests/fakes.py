"""Hand-written stand-ins for what is slow or has no say in a test.

`ScriptedEngine` takes the place of `engine.Engine` behind a real `Worker`: no model, no speech detector, but the same
laws. What it says follows from loudness alone, so that a test knows every word beforehand.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field

import numpy as np

from engine.core import ModelInfo
from engine.errors import UnknownSession
from engine.types import (
    SAMPLE_RATE,
    CloseReason,
    EndReason,
    Event,
    Final,
    Partial,
    Progress,
    Samples,
    SessionClosed,
    SessionSettings,
    SpeechStarted,
    Suppressed,
    SuppressReason,
    TickStats,
)

MODEL = ModelInfo(
    name="scripted",
    device="cpu",
    dtype="float32",
    multilingual=True,
    languages=("en", "de"),
    n_mels=80,
    parameters=0,
    count_tokens=len,
)
PAUSE_SAMPLES = SAMPLE_RATE // 2
_LOUD = 0.01
_FAINT = 0.001


def loud(seconds: float, *, amplitude: float = 0.5) -> Samples:
    """(n,) audio in which the scripted engine hears the word `a<100 * amplitude>` once a second."""
    return np.full(round(seconds * SAMPLE_RATE), amplitude, np.float32)


def silence(seconds: float) -> Samples:
    """(n,) audio in which nobody speaks."""
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)


def pcm16(samples: Samples) -> bytes:
    """The bytes of `samples` as they go over the wire."""
    return np.round(samples * 32767).astype("<i2").tobytes()


@dataclass(slots=True, eq=False)
class _Script:
    """One session."""

    settings: SessionSettings
    waiting: list[Samples] = field(default_factory=list)
    n_heard: int = 0
    n_silent: int = 0  # at the end of what was heard
    utterance_id: int = 0
    start: int | None = None  # of the open utterance
    n_loud: int = 0  # samples of the open utterance
    words: list[str] = field(default_factory=list)
    is_finishing: bool = False


class ScriptedEngine:
    """Every second of loud audio is a word named by its amplitude; half a second of silence ends the utterance.

    A chunk that is faint is heard as "you" and suppressed.

    Attributes:
        opened: settings of the sessions in the order in which they opened.
        closed: ids of the sessions in the order in which they closed; a test waits on it.

    Args:
        crash_above: a louder sample is a fault of the engine.
        is_stuck: never answers and never finishes anything.
    """

    def __init__(self, *, crash_above: float = 1.0, is_stuck: bool = False) -> None:
        self.info = MODEL
        self.is_warm = False
        self.opened: list[SessionSettings] = []
        self.closed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._crash_above = crash_above
        self._is_stuck = is_stuck
        self._scripts: dict[str, _Script] = {}
        self._is_fresh = False
        self._n_ticks = 0

    def warm_up(self) -> None:
        """Remember that it was asked for."""
        self.is_warm = True

    @property
    def n_sessions(self) -> int:
        """Open sessions."""
        return len(self._scripts)

    # ------------------------------------------------------------------------------------------- Core

    def open(self, session_id: str, settings: SessionSettings) -> None:
        assert session_id not in self._scripts
        self._scripts[session_id] = _Script(settings)
        self.opened.append(settings)

    def push(self, session_id: str, samples: Samples) -> None:
        if np.max(np.abs(samples)) > self._crash_above:
            raise RuntimeError("scripted crash")
        self._script(session_id).waiting.append(samples)
        self._is_fresh = True

    def finish(self, session_id: str) -> None:
        self._script(session_id).is_finishing = True
        self._is_fresh = True

    def abandon(self, session_id: str) -> tuple[str, Event]:
        self._script(session_id)
        return self._drop(session_id, CloseReason.ABANDONED, "")

    def close_all(self, reason: CloseReason, message: str) -> list[tuple[str, Event]]:
        return [self._drop(session_id, reason, message) for session_id in list(self._scripts)]

    def has_work(self) -> bool:
        return self._is_fresh and not self._is_stuck

    def tick(self, now: float) -> tuple[list[tuple[str, Event]], TickStats]:
        self._is_fresh = False
        self._n_ticks += 1
        events: list[tuple[str, Event]] = []
        n_windows = 0
        for session_id, script in list(self._scripts.items()):
            told = [event for samples in script.waiting for event in _hear(script, samples)]
            n_windows += bool(script.waiting)
            script.waiting.clear()
            if script.is_finishing:
                told += _end_utterance(script, EndReason.FINISHED)
            events += [(session_id, event) for event in [*told, Progress(script.n_heard)]]
            if script.is_finishing:
                events.append(self._drop(session_id, CloseReason.FINISHED, ""))
        return events, self._stats(n_windows)

    def _script(self, session_id: str) -> _Script:
        if session_id not in self._scripts:
            raise UnknownSession(f"Session {session_id} is not open.")
        return self._scripts[session_id]

    def _drop(self, session_id: str, reason: CloseReason, message: str) -> tuple[str, Event]:
        del self._scripts[session_id]
        self.closed.put(session_id)
        return session_id, SessionClosed(reason, message)

    def _stats(self, n_windows: int) -> TickStats:
        return make_tick_stats(
            tick=self._n_ticks, sessions=len(self._scripts), encoder_batch=n_windows, decode_rows=n_windows
        )


def _hear(script: _Script, samples: Samples) -> list[Event]:
    """Let a chunk, loud or silent as a whole, go by."""
    events: list[Event] = []
    begin = script.n_heard
    script.n_heard += len(samples)
    peak = float(np.max(np.abs(samples)))
    if peak <= _LOUD:
        script.n_silent += len(samples)
        if peak > _FAINT:
            events.append(
                Suppressed(script.utterance_id, SuppressReason.NO_SPEECH, "you", begin, script.n_heard, -1.5, 0.9)
            )
        return events + (_end_utterance(script, EndReason.PAUSE) if script.n_silent >= PAUSE_SAMPLES else [])
    script.n_silent = 0
    if script.start is None:
        script.start = begin
        events.append(SpeechStarted(script.utterance_id, begin))
    script.n_loud += len(samples)
    while len(script.words) < script.n_loud // SAMPLE_RATE:
        script.words.append(f" a{round(100 * peak)}")
        if script.settings.interim:
            events.append(_partial(script, script.start))
    return events


def _partial(script: _Script, start: int) -> Partial:
    return Partial(
        script.utterance_id,
        revision=len(script.words),
        committed="".join(script.words[:-1]),
        tentative=script.words[-1],
        start=start,
        end=script.n_heard,
        heard=script.n_heard,
    )


def _end_utterance(script: _Script, reason: EndReason) -> list[Event]:
    if script.start is None:
        return []
    final = Final(
        script.utterance_id,
        text="".join(script.words),
        start=script.start,
        end=script.n_heard - script.n_silent,
        heard=script.n_heard,
        reason=reason,
        language=script.settings.language or "en",
    )
    script.utterance_id += 1
    script.start, script.n_loud, script.words = None, 0, []
    return [final]


def make_tick_stats(
    *,
    tick: int = 1,
    at: float | None = None,
    sessions: int = 1,
    speaking: int = 0,
    waiting: int = 0,
    encoder_batch: int = 1,
    decode_rows: int = 1,
    decode_tokens: int = 3,
    queue_wait_ms: tuple[float, ...] = (),
    suppressed: tuple[SuppressReason, ...] = (),
) -> TickStats:
    """A tick that took 20 ms, 10 of them in the encoder."""
    return TickStats(
        tick=tick,
        at=time.time() if at is None else at,
        duration_ms=20.0,
        sessions=sessions,
        speaking=speaking,
        waiting=waiting,
        encoder_batch=encoder_batch,
        encoder_runs=min(encoder_batch, 1),
        encoder_positions=50 * encoder_batch,
        encoder_ms=10.0 if encoder_batch else 0.0,
        retries=0,
        passes=1,
        greedy_passes=0,
        decode_rows=decode_rows,
        decode_ms=5.0,
        decode_tokens=decode_tokens,
        queue_wait_ms=queue_wait_ms,
        suppressed=suppressed,
    )
