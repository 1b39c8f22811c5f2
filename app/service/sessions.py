"""Between the event loop and the engine thread: sessions, their outboxes, flow control and admission.

`gateway.py` holds a `Session` and speaks to it only; the `Bridge` speaks to `engine.worker.Worker`. Everything here
runs on the event loop; the worker's callbacks come in through `call_soon_threadsafe`. Knows no socket and no messages.

Rules
    audio in: at most MAX_BACKLOG_SAMPLES of a session are unanswered; more waits, and the socket with it;
    partials out: a newer one replaces the older one of its utterance; finals are never dropped, a client that lets
    OUTBOX_EVENTS pile up is closed as slow;
    every admitted session ends with one SessionClosed, whatever happens to client or engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.errors import EngineClosed, EngineFull
from engine.types import (
    SAMPLE_RATE,
    CloseReason,
    Event,
    Partial,
    Progress,
    Samples,
    SessionClosed,
    SessionSettings,
    TickStats,
)
from engine.worker import Core, Worker
from tickscribe.messages import ErrorCode, ProtocolError, WarningMessage

logger = logging.getLogger(__name__)

MAX_BACKLOG_SAMPLES = 120 * SAMPLE_RATE
PUSH_TIMEOUT_S = 60.0  # that a full backlog may stand still
SILENT_ENGINE_S = 300.0  # without any event while a session is being flushed; others may have more to answer
OUTBOX_EVENTS = 256
STOP_TIMEOUT_S = 10.0
LAST_WORDS_S = 5.0  # for the gateways to say goodbye after the engine stopped
_RETRY_S = 1.0
_ARRIVAL_GRAIN = SAMPLE_RATE // 50  # arrivals closer than 20 ms share an entry
_ARRIVALS_KEPT = 30 * SAMPLE_RATE  # before what is settled: a final may rest on samples settled just now


class Outbox:
    """Events and warnings of one session on their way to its socket; one task puts, one gets."""

    def __init__(self) -> None:
        self._events: deque[Event | WarningMessage] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event | WarningMessage) -> None:
        """Append an event; a partial takes the place of an older one of the same utterance."""
        if isinstance(event, Partial):
            for index, waiting in enumerate(self._events):
                if isinstance(waiting, Partial) and waiting.utterance_id == event.utterance_id:
                    self._events[index] = event
                    return
        self._events.append(event)
        self._filled.set()

    async def get(self) -> Event | WarningMessage:
        """Take the oldest event; wait for one if there is none."""
        while not self._events:
            self._filled.clear()
            await self._filled.wait()
        return self._events.popleft()


class ArrivalLog:
    """When the samples of a session arrived, for latency; bounded, since the backlog is."""

    def __init__(self) -> None:
        self._entries: deque[tuple[int, float]] = deque()  # samples so far, loop time of the last of them

    def note(self, n_samples: int, at: float) -> None:
        """Record that the session's first `n_samples` samples are here at time `at`."""
        if len(self._entries) > 1 and n_samples - self._entries[-2][0] <= _ARRIVAL_GRAIN:
            self._entries.pop()
        self._entries.append((n_samples, at))

    def arrival_of(self, sample: int) -> float | None:
        """The time at which all samples before `sample` were here; None if they never came."""
        arrival = None
        for n_samples, at in reversed(self._entries):  # events are about what came last
            if n_samples < sample:
                break
            arrival = at
        return arrival

    def forget(self, before: int) -> None:
        """Drop what no event will ask for any more."""
        while len(self._entries) > 1 and self._entries[0][0] < before:
            self._entries.popleft()


class Session:
    """One admitted session as its gateway sees it: `push`, `finish`; `next_event` until SessionClosed.

    Attributes:
        id: names the session in log lines and on the wire.
        fault: why the session ends before its time, None while nothing is wrong.
    """

    def __init__(self, session_id: str, worker: Worker) -> None:
        self.id = session_id
        self.fault: ProtocolError | None = None
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox()
        self._arrivals = ArrivalLog()
        self._n_received = 0  # samples
        self._n_settled = 0
        self._moved = asyncio.Event()  # something happened that a waiting push must look at
        self._is_finishing = False
        self._is_closed = False  # SessionClosed is in the outbox, or was
        self._watchdog: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------------------------------- for the gateway

    async def push(self, samples: Samples) -> None:
        """Hand (n,) samples to the engine; wait while too much of this session is unanswered.

        After `finish`, `fail` or `abandon` the samples are dropped: what ends the session has told the client so.

        Raises:
            ProtocolError: (overloaded) the engine does not keep up.
        """
        self._n_received += len(samples)
        self._arrivals.note(self._n_received, self._loop.time())
        try:
            async with asyncio.timeout(PUSH_TIMEOUT_S):
                while self._n_received - self._n_settled > MAX_BACKLOG_SAMPLES and self._is_open:
                    self._moved.clear()
                    await self._moved.wait()
            if self._is_open:
                self._worker.push(self.id, samples)
        except (TimeoutError, EngineFull) as error:
            raise ProtocolError(
                ErrorCode.OVERLOADED, "The server cannot keep up with this session; try again when fewer people speak."
            ) from error
        except EngineClosed:
            return  # the session's SessionClosed is on its way and says why

    def finish(self) -> None:
        """Flush: everything is answered, then SessionClosed comes. Does nothing the second time."""
        if not self._is_open:
            return
        self._is_finishing = True
        self._moved.set()
        self._watch()
        try:
            self._worker.finish(self.id)
        except EngineFull:
            self._fail_now(ProtocolError(ErrorCode.OVERLOADED, "The server cannot keep up; try again later."))
        except EngineClosed:
            return  # as in push

    def fail(self, fault: ProtocolError) -> None:
        """End the session for `fault`; what was heard before it is still answered. The first fault counts."""
        if not self._is_closed:
            self.fault = self.fault or fault
            self.finish()

    def abandon(self) -> None:
        """End the session at once: nobody waits for its answers."""
        if self._is_closed:
            return
        self._close(SessionClosed(CloseReason.ABANDONED))
        self._tell_abandoned()

    def warn(self, warning: WarningMessage) -> None:
        """Tell the client something between two events; nothing where the session is closed."""
        if not self._is_closed:
            self._outbox.put(warning)

    async def next_event(self) -> Event | WarningMessage:
        """Wait for the next event or warning; SessionClosed is the last, `Progress` never comes."""
        return await self._outbox.get()

    def latency_s(self, heard: int) -> float | None:
        """Seconds since sample `heard` arrived; None if that is not known."""
        arrival = self._arrivals.arrival_of(heard)
        return None if arrival is None else self._loop.time() - arrival

    # ------------------------------------------------------------------------------------------- for the bridge

    def drain(self, fault: ProtocolError) -> None:
        """End the session for `fault`, unless its client is finishing anyway."""
        if self._is_open:
            self.fail(fault)

    def take(self, event: Event) -> None:
        """Accept an event of the engine."""
        if self._is_closed:
            return  # the client is gone, or a crash closed the session before
        if self._watchdog is not None:
            self._watch()
        match event:
            case Progress(settled):
                self._n_settled = max(self._n_settled, settled)
                self._arrivals.forget(self._n_settled - _ARRIVALS_KEPT)
                self._moved.set()
            case SessionClosed():
                self._close(event)
            case _:
                self._outbox.put(event)
                if len(self._outbox) > OUTBOX_EVENTS:
                    self._fail_now(
                        ProtocolError(
                            ErrorCode.SLOW_CLIENT, "The client does not read its messages; read them as they come."
                        )
                    )

    @property
    def _is_open(self) -> bool:
        return not (self._is_finishing or self._is_closed)

    def _fail_now(self, fault: ProtocolError) -> None:
        self.fault = self.fault or fault
        self.abandon()

    def _close(self, event: SessionClosed) -> None:
        self._is_closed = True
        self._moved.set()
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._outbox.put(event)

    def _watch(self) -> None:
        """While flushing, give the engine a while from now to say something."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        silent = ProtocolError(ErrorCode.OVERLOADED, "The server did not answer the rest in time; try again later.")
        self._watchdog = self._loop.call_later(SILENT_ENGINE_S, self._fail_now, silent)

    def _tell_abandoned(self) -> None:
        try:
            self._worker.abandon(self.id)
        except EngineFull:  # try again, else the engine would work for nobody for ever
            self._loop.call_later(_RETRY_S, self._tell_abandoned)
        except EngineClosed:
            return  # and all its sessions with it


class Bridge:
    """All sessions of one engine. Make it on the event loop, `start`, then `session` per client, `drain`, `stop`."""

    def __init__(
        self,
        engine: Core,
        *,
        max_sessions: int,
        gather_ms: float,
        on_tick: Callable[[TickStats], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_sessions = max_sessions
        self._on_crash = on_crash
        self._sessions: dict[str, Session] = {}  # the engine has not closed them
        self._attached: set[Session] = set()  # a gateway holds them
        self._alone = asyncio.Event()  # no gateway holds any
        self._alone.set()
        self._refusal: ProtocolError | None = None  # why nobody is admitted
        self._worker = Worker(
            engine,
            on_event=lambda session_id, event: self._call(self._dispatch, session_id, event),
            on_tick=lambda stats: self._call(on_tick, stats),
            on_crash=lambda fault: self._call(self._crashed, fault),
            gather_ms=gather_ms,
        )

    @property
    def n_sessions(self) -> int:
        """Sessions that hold a place."""
        return len(self._sessions.keys() | {session.id for session in self._attached})

    def start(self) -> None:
        """Start the engine thread."""
        self._worker.start()

    @contextmanager
    def session(self, session_id: str, settings: SessionSettings) -> Iterator[Session]:
        """Admit a session under a new id; on the way out it is abandoned unless it closed before.

        Raises:
            ProtocolError: (server_full, overloaded, shutting_down, internal) there is no place for it.
        """
        session = self._admit(session_id, settings)
        self._attached.add(session)
        self._alone.clear()
        try:
            yield session
        finally:
            session.abandon()
            self._attached.discard(session)
            if not self._attached:
                self._alone.set()

    async def drain(self, timeout_s: float) -> None:
        """Admit nobody, flush every session and wait until their clients have everything, at most `timeout_s`."""
        fault = ProtocolError(ErrorCode.SHUTTING_DOWN, "The server is shutting down; connect again in a moment.")
        self._refusal = self._refusal or fault
        for session in list(self._attached):
            session.drain(fault)
        await self._until_alone(timeout_s)

    async def stop(self) -> None:
        """Stop the engine thread; sessions still open are closed and told so.

        Raises:
            TimeoutError: the engine thread hangs in a tick.
        """
        self._refusal = self._refusal or ProtocolError(ErrorCode.SHUTTING_DOWN, "The server is shutting down.")
        try:
            await asyncio.to_thread(self._worker.stop, STOP_TIMEOUT_S)
        finally:
            self._close_all(SessionClosed(CloseReason.SHUTDOWN))
            await self._until_alone(LAST_WORDS_S)

    def _admit(self, session_id: str, settings: SessionSettings) -> Session:
        if self._refusal is not None:
            raise ProtocolError(self._refusal.code, self._refusal.message)
        if self.n_sessions >= self._max_sessions:
            raise ProtocolError(
                ErrorCode.SERVER_FULL, f"All {self._max_sessions} places are taken; try again in a little while."
            )
        session = Session(session_id, self._worker)
        try:
            self._worker.open(session.id, settings)
        except EngineFull as error:
            raise ProtocolError(ErrorCode.OVERLOADED, str(error)) from error
        except EngineClosed as error:
            raise ProtocolError(ErrorCode.INTERNAL, str(error)) from error
        self._sessions[session.id] = session
        return session

    async def _until_alone(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._alone.wait()
        except TimeoutError:
            logger.warning("%d sessions did not end within %g s", len(self._attached), timeout_s)

    # ------------------------------------------------------------------------------------------- from the engine thread

    def _call(self, function: Callable[..., None], *args: object) -> None:
        self._loop.call_soon_threadsafe(function, *args)

    def _dispatch(self, session_id: str, event: Event) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            return  # closed by a crash or by stop before the engine's own word came
        if isinstance(event, SessionClosed):
            del self._sessions[session_id]
        session.take(event)

    def _crashed(self, fault: BaseException) -> None:
        self._refusal = ProtocolError(ErrorCode.INTERNAL, "The transcription engine has failed; the server restarts.")
        self._close_all(SessionClosed(CloseReason.FAILED))
        self._on_crash(fault)

    def _close_all(self, event: SessionClosed) -> None:
        """Close what the engine has not closed itself: a command may have been on its way when it ended."""
        for session in self._sessions.values():
            session.take(event)
        self._sessions.clear()
