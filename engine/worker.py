"""The one thread that owns the model and ticks the engine.

Stands between the event loop (any thread may call `open`, `push`, `finish`, `abandon`) and the engine (which is never
touched from another thread). Commands go through one bounded inbox; events come back by callback on this thread. While
there is nothing to do the thread sleeps on the inbox; there is no polling.

Laws
    every opened session gets exactly one SessionClosed, also on a crash or a stop;
    a fault of the engine ends the thread: every session is closed with the reason, then `on_crash` is called.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, assert_never

from engine.errors import EngineClosed, EngineFull, UnknownSession
from engine.types import CloseReason, Event, Samples, SessionClosed, SessionSettings, TickStats

logger = logging.getLogger(__name__)

_INBOX_COMMANDS = 65_536  # the bridge bounds audio per session long before

_SHUTDOWN = "The server is shutting down."
_FAILED = "The transcription engine failed. Please reconnect."


class Core(Protocol):
    """What the worker drives: engine/core.py, or a script in tests. Called on the worker's thread only."""

    def open(self, session_id: str, settings: SessionSettings) -> None:
        """Start a session."""
        ...

    def push(self, session_id: str, samples: Samples) -> None:
        """Append audio; raises UnknownSession."""
        ...

    def finish(self, session_id: str) -> None:
        """Flush a session; raises UnknownSession."""
        ...

    def abandon(self, session_id: str) -> tuple[str, Event]:
        """Drop a session and return its SessionClosed; raises UnknownSession."""
        ...

    def has_work(self) -> bool:
        """A tick would do something."""
        ...

    def tick(self, now: float) -> tuple[list[tuple[str, Event]], TickStats]:
        """Do one round."""
        ...

    def close_all(self, reason: CloseReason, message: str) -> list[tuple[str, Event]]:
        """Drop every session."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    session_id: str
    settings: SessionSettings


@dataclass(frozen=True, slots=True, eq=False)
class _Push:
    session_id: str
    samples: Samples


@dataclass(frozen=True, slots=True, eq=False)
class _Finish:
    session_id: str


@dataclass(frozen=True, slots=True, eq=False)
class _Abandon:
    session_id: str


@dataclass(frozen=True, slots=True, eq=False)
class _Wake:
    """Nothing to do but to look whether to stop."""


_Command = _Open | _Push | _Finish | _Abandon | _Wake


class Worker:
    """Call `start` once, then the four session verbs from any thread, then `stop`.

    The callbacks run on the engine thread and must return at once.
    """

    def __init__(
        self,
        engine: Core,
        *,
        on_event: Callable[[str, Event], None],
        on_tick: Callable[[TickStats], None],
        on_crash: Callable[[BaseException], None],
        gather_ms: float = 0.0,
    ) -> None:
        self._engine = engine
        self._on_event = on_event
        self._on_tick = on_tick
        self._on_crash = on_crash
        self._gather_s = gather_ms / 1000
        self._inbox: queue.Queue[_Command] = queue.Queue(_INBOX_COMMANDS)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._stopping = threading.Event()
        self._door = threading.Lock()  # held to look at `_accepting` and put something in: nothing comes too late
        self._accepting = False
        self._open_sessions: dict[str, None] = {}  # in the order of their start; the engine thread's own

    def start(self) -> None:
        """Start the thread."""
        with self._door:
            self._accepting = True
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Close every session, end the thread and wait for it; a second call does nothing.

        Raises:
            TimeoutError: the thread is still in a tick after `timeout_s`.
        """
        with self._door:
            self._accepting = False
        self._stopping.set()
        with contextlib.suppress(queue.Full):  # a full inbox wakes the thread as well
            self._inbox.put_nowait(_Wake())
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"The engine thread did not stop within {timeout_s:g} s.")

    def open(self, session_id: str, settings: SessionSettings) -> None:
        """Start a session. Raises EngineClosed or EngineFull, as do the other three."""
        self._send(_Open(session_id, settings))

    def push(self, session_id: str, samples: Samples) -> None:
        """Append (n,) float32 mono 16 kHz samples; they must not be changed afterwards."""
        self._send(_Push(session_id, samples))

    def finish(self, session_id: str) -> None:
        """Flush: everything is answered, then the session closes."""
        self._send(_Finish(session_id))

    def abandon(self, session_id: str) -> None:
        """The client is gone: drop its work."""
        self._send(_Abandon(session_id))

    def _send(self, command: _Command) -> None:
        with self._door:
            if not self._accepting:
                raise EngineClosed("The transcription engine is not running.")
            try:
                self._inbox.put_nowait(command)
            except queue.Full:
                raise EngineFull("The transcription engine is overloaded. Try again in a few seconds.") from None

    # ------------------------------------------------------------------------------------- engine thread

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._take_commands()
                if self._engine.has_work() and not self._stopping.is_set():
                    self._tick()
            self._emit(self._engine.close_all(CloseReason.SHUTDOWN, _SHUTDOWN))
            self._close_rest(CloseReason.SHUTDOWN, _SHUTDOWN)
        except Exception as fault:  # the last door: nothing of the engine can be trusted any more
            logger.exception("The engine failed")
            try:
                self._close_rest(CloseReason.FAILED, _FAILED)
            finally:
                self._on_crash(fault)

    def _close_rest(self, reason: CloseReason, message: str) -> None:
        """Take nothing in any more, and close what is open or asks for it in the inbox, without the engine."""
        with self._door:
            self._accepting = False
        while not self._inbox.empty():
            command = self._inbox.get_nowait()
            if isinstance(command, _Open):
                self._open_sessions[command.session_id] = None
        self._emit([(session_id, SessionClosed(reason, message)) for session_id in self._open_sessions])

    def _tick(self) -> None:
        events, stats = self._engine.tick(time.monotonic())
        self._emit(events)
        self._on_tick(stats)

    def _emit(self, events: list[tuple[str, Event]]) -> None:
        for session_id, event in events:
            if isinstance(event, SessionClosed):
                self._open_sessions.pop(session_id, None)
            self._on_event(session_id, event)

    def _take_commands(self) -> None:
        """Apply everything in the inbox; sleep until something comes if the engine has nothing to do."""
        if not self._engine.has_work():
            self._apply(self._inbox.get())
            if self._gather_s:
                self._gather()
        while not self._inbox.empty():
            self._apply(self._inbox.get_nowait())

    def _gather(self) -> None:
        """Let near-simultaneous audio join the tick that is about to begin."""
        deadline = time.monotonic() + self._gather_s
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                self._apply(self._inbox.get(timeout=remaining))
            except queue.Empty:
                return

    def _apply(self, command: _Command) -> None:
        try:
            match command:
                case _Open(session_id, settings):
                    self._open_sessions[session_id] = None
                    self._engine.open(session_id, settings)
                case _Push(session_id, samples):
                    self._engine.push(session_id, samples)
                case _Finish(session_id):
                    self._engine.finish(session_id)
                case _Abandon(session_id):
                    self._emit([self._engine.abandon(session_id)])
                case _Wake():
                    pass
                case _:
                    assert_never(command)
        except UnknownSession:
            # The session closed on this side while the command was on its way; its SessionClosed has been sent.
            logger.debug("command for a closed session: %s", type(command).__name__)
