"""The engine: owns sessions, speech detector, scheduler and runner, and advances them tick by tick.

No thread, no lock, no clock of its own: engine/worker.py calls from one thread and hands in `now`. The route of a tick
is the body of `tick`.

Law: a fault in one session closes that session and touches no other; a fault of model or detector is everybody's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from engine.compute.runner import ModelRunner
from engine.compute.vad import SpeechDetector, VadState
from engine.config import EngineConfig
from engine.decode.guards import retry_reason
from engine.decode.rounds import Runner, TickWork, run_tick, run_to_end
from engine.decode.scheduler import Scheduler
from engine.decode.sequence import Sequence
from engine.errors import UnknownSession
from engine.models.registry import load_model
from engine.models.whisper.checkpoint import Checkpoint, Dimensions
from engine.models.whisper.tokenizer import Tokenizer
from engine.session.endpoint import EndpointRules
from engine.session.requests import Request, Window
from engine.session.session import Session, Vocabulary
from engine.types import (
    SAMPLE_RATE,
    CloseReason,
    Event,
    Samples,
    SessionClosed,
    SessionSettings,
    Suppressed,
    SuppressReason,
    TickStats,
)

logger = logging.getLogger(__name__)

SessionEvent = tuple[str, Event]  # session id and event

_SESSION_FAULT = "The transcription of this session failed. Please start it again."


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is loaded, for people, and what it takes to tell them what it can do."""

    name: str
    device: str
    dtype: str
    multilingual: bool
    languages: tuple[str, ...]
    n_mels: int
    parameters: int
    count_tokens: Callable[[str], int] = field(repr=False)  # of a prompt


@dataclass(slots=True, eq=False)
class _Stream:
    """A session and its state in the speech detector."""

    session: Session
    vad: VadState


class Engine:
    """Call `open`, `push`, `finish`, `abandon` between ticks and `tick` while `has_work`."""

    def __init__(
        self, config: EngineConfig, info: ModelInfo, runner: Runner, detector: SpeechDetector, vocabulary: Vocabulary
    ) -> None:
        self.info = info
        self._config = config
        self._runner = runner
        self._detector = detector
        self._vocabulary = vocabulary
        self._scheduler = Scheduler(
            config.n_slots,
            freeze_after=int((config.freeze_after_s or 0) * SAMPLE_RATE),
            max_positions=runner.max_positions,
        )
        self._streams: dict[str, _Stream] = {}
        self._untold: list[SessionEvent] = []  # of faults between two ticks
        self._fresh = False  # something changed since the last tick
        self._n_ticks = 0

    # ------------------------------------------------------------------------------------------ sessions

    def open(self, session_id: str, settings: SessionSettings) -> None:
        """Start a session; the id must be new."""
        assert session_id not in self._streams, f"session {session_id} is open already"
        if not self.info.multilingual:  # there is nothing to detect
            settings = replace(settings, language=self.info.languages[0])
        session = Session(
            session_id,
            settings,
            EndpointRules.of(settings, pause_ms=self._config.pause_ms),
            self._vocabulary,
            partial_interval=self._config.partial_interval_ms * SAMPLE_RATE // 1000,
        )
        self._streams[session_id] = _Stream(session, self._detector.new_state())

    def push(self, session_id: str, samples: Samples) -> None:
        """Append (n,) float32 mono 16 kHz samples to a session."""
        stream = self._stream(session_id)
        with self._isolated(stream, self._untold):
            stream.session.accept(samples)
        self._fresh = True

    def finish(self, session_id: str) -> None:
        """Flush a session; it closes once everything is answered."""
        stream = self._stream(session_id)
        with self._isolated(stream, self._untold):
            stream.session.finish()
        self._fresh = True

    def abandon(self, session_id: str) -> SessionEvent:
        """Drop a session whose client is gone."""
        self._stream(session_id)
        return self._drop(session_id, CloseReason.ABANDONED, "")

    def close_all(self, reason: CloseReason, message: str) -> list[SessionEvent]:
        """Drop every session."""
        told, self._untold = self._untold, []
        return told + [self._drop(session_id, reason, message) for session_id in list(self._streams)]

    def has_work(self) -> bool:
        """A tick would do something; otherwise the thread may sleep until something arrives."""
        return self._fresh or self._scheduler.has_work

    # ------------------------------------------------------------------------------------------ the tick

    def tick(self, now: float) -> tuple[list[SessionEvent], TickStats]:
        """One round: listen, ask, admit, encode and decode, apply.

        Args:
            now: monotonic seconds.
        """
        started = time.perf_counter()
        self._fresh = False
        events, self._untold = self._untold, []
        self._listen(events)
        self._ask(now, events)
        admitted = self._scheduler.admit()
        for sequence in admitted:
            self._streams[sequence.request.session_id].session.start(sequence.request)
        work = run_tick(self._scheduler, self._runner, admitted, lambda sequence: self._apply(sequence, events))
        self._tell_retries(work.retried, events)
        events += self._close_done()
        suppressed = tuple(event.reason for _, event in events if isinstance(event, Suppressed))
        return events, self._stats(now, started, admitted, work, suppressed)

    def until_idle(self) -> Iterator[tuple[list[SessionEvent], TickStats]]:
        """Tick while that does something; for who hands in recordings, not live speech."""
        while self.has_work():
            yield self.tick(time.monotonic())

    def _listen(self, events: list[SessionEvent]) -> None:
        """Let the speech detector hear what is new, all sessions in one batch."""
        unheard: list[tuple[_Stream, Samples]] = []
        for stream in list(self._streams.values()):
            with self._isolated(stream, events):
                unheard.append((stream, stream.session.unheard()))
        if not unheard:
            return
        probabilities = self._detector.probabilities([s.vad for s, _ in unheard], [samples for _, samples in unheard])
        for (stream, _), probability in zip(unheard, probabilities, strict=True):
            with self._isolated(stream, events):
                events += _tagged(stream.session, stream.session.hear(probability))
                if len(stream.session.unheard()):
                    self._fresh = True  # more than one tick's worth had come

    def _ask(self, now: float, events: list[SessionEvent]) -> None:
        for stream in list(self._streams.values()):
            with self._isolated(stream, events):
                requests, told = stream.session.advance(now)
                for request in requests:
                    self._scheduler.submit(request)
                events += _tagged(stream.session, told)

    def _apply(self, sequence: Sequence, events: list[SessionEvent]) -> None:
        stream = self._streams.get(sequence.request.session_id)
        if stream is None:
            return  # another result of this tick was its fault
        with self._isolated(stream, events):
            told = stream.session.apply(sequence.request, sequence.to_hypothesis())
            events += _tagged(stream.session, told)
        self._fresh = True  # the session may want its next request

    def _tell_retries(self, retried: list[Sequence], events: list[SessionEvent]) -> None:
        for sequence in retried:
            stream = self._streams.get(sequence.request.session_id)
            if stream is not None:
                hypothesis = sequence.to_hypothesis()
                reason = retry_reason(hypothesis.finish_reason)
                events.append((stream.session.id, stream.session.suppressed(sequence.request, hypothesis, reason)))

    @contextmanager
    def _isolated(self, stream: _Stream, events: list[SessionEvent]) -> Iterator[None]:
        """A fault inside the block is this session's alone: it closes with a reason, the others go on."""
        try:
            yield
        except Exception:
            logger.exception("Session %s failed", stream.session.id)
            events.append(self._drop(stream.session.id, CloseReason.FAILED, _SESSION_FAULT))

    def _close_done(self) -> list[SessionEvent]:
        done = [session_id for session_id, stream in self._streams.items() if stream.session.is_done]
        return [self._drop(session_id, CloseReason.FINISHED, "") for session_id in done]

    def _drop(self, session_id: str, reason: CloseReason, message: str) -> SessionEvent:
        self._scheduler.abort(session_id)
        del self._streams[session_id]
        return session_id, SessionClosed(reason, message)

    def _stream(self, session_id: str) -> _Stream:
        if session_id not in self._streams:
            raise UnknownSession(f"Session {session_id} is not open.")
        return self._streams[session_id]

    def _stats(
        self,
        now: float,
        started: float,
        admitted: list[Sequence],
        work: TickWork,
        suppressed: tuple[SuppressReason, ...],
    ) -> TickStats:
        self._n_ticks += 1
        return TickStats(
            tick=self._n_ticks,
            at=time.time(),
            duration_ms=1000 * (time.perf_counter() - started),
            sessions=len(self._streams),
            speaking=sum(stream.session.speaking for stream in self._streams.values()),
            waiting=len(self._scheduler.waiting),
            encoder_batch=work.encoder.windows,
            encoder_runs=work.encoder.runs,
            encoder_positions=work.encoder.positions,
            encoder_ms=work.encoder.ms,
            retries=len(work.retried),
            decode_rows=work.decode_rows,
            decode_ms=work.decode_ms,
            decode_tokens=work.tokens,
            passes=work.passes,
            greedy_passes=work.greedy_passes,
            queue_wait_ms=tuple(1000 * (now - s.request.ready_at) for s in admitted),
            suppressed=suppressed,
        )

    # ------------------------------------------------------------------------------------------ start-up

    def warm_up(self) -> None:
        """Run one window of silence through everything, so that the first speaker does not pay for it."""
        self._runner.warm_up()
        audio = np.zeros(SAMPLE_RATE, dtype=np.float32)
        self._detector.probabilities([self._detector.new_state()], [audio[:512]])
        request = Request(
            "warm-up", 0, Window(0, len(audio)), audio, (), (), None, wants_words=True, is_final=True, ready_at=0.0
        )
        scheduler = Scheduler(self._config.n_slots)
        scheduler.submit(request)
        run_to_end(scheduler, self._runner)


def build_engine(config: EngineConfig) -> Engine:
    """Find and load the model and put the parts together.

    Raises:
        ModelNotFound, ModelLoadError, ConfigError
    """
    checkpoint = load_model(config.model)
    tokenizer = Tokenizer(checkpoint)
    runner = ModelRunner(checkpoint, tokenizer, config)
    config = replace(config, n_slots=runner.n_slots)
    if config.freeze_after_s is None:
        config = replace(config, freeze_after_s=default_freeze_after_s(checkpoint.dimensions))
    info = _describe(checkpoint, tokenizer, runner)
    return Engine(config, info, runner, SpeechDetector(), tokenizer)


def default_freeze_after_s(dimensions: Dimensions) -> float:
    """Return the right context from which on positions are reused, by the width of the model.

    Measured by `tickscribe bench stream --freeze-after-s ...`: README, Decisions.
    """
    return 0.5 if dimensions.is_tiny else 2.0


def _describe(checkpoint: Checkpoint, tokenizer: Tokenizer, runner: ModelRunner) -> ModelInfo:
    device = torch.cuda.get_device_name(runner.device) if runner.device.type == "cuda" else "cpu"
    return ModelInfo(
        name=checkpoint.name,
        device=device,
        dtype=runner.precision.value,
        multilingual=tokenizer.is_multilingual,
        languages=tokenizer.languages,
        n_mels=checkpoint.dimensions.n_mels,
        parameters=runner.n_parameters,
        count_tokens=lambda text: len(tokenizer.encode(text)),
    )


def _tagged(session: Session, events: list[Event]) -> list[SessionEvent]:
    return [(session.id, event) for event in events]
