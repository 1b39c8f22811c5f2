"""The engine thread: a real thread, a scripted engine, no sleeps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.errors import EngineClosed, EngineFull, UnknownSession
from engine.types import CloseReason, Event, Progress, Samples, SessionClosed, SessionSettings, TickStats
from engine.worker import Worker

WAIT_S = 10.0  # nothing here takes that long; a lost event fails instead of hanging

AUDIO = np.zeros(160, dtype=np.float32)


class EchoEngine:
    """Tells of every push how much has come, and closes what is finished; all in the next tick.

    Attributes:
        calls: what was called, in order.
        gate: a tick waits for it, so that a test can fill the inbox meanwhile.
        faults: raised by the next call of the method named.
        threads: names of the threads that called.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.in_tick = threading.Event()
        self.faults: dict[str, Exception] = {}
        self.threads: set[str] = set()
        self._pushed: dict[str, int] = {}
        self._events: list[tuple[str, Event]] = []
        self._n_ticks = 0

    def open(self, session_id: str, settings: SessionSettings) -> None:
        self._called("open", session_id)
        self._pushed[session_id] = 0

    def push(self, session_id: str, samples: Samples) -> None:
        self._called("push", session_id)
        self._known(session_id)
        self._pushed[session_id] += len(samples)
        self._events.append((session_id, Progress(self._pushed[session_id])))

    def finish(self, session_id: str) -> None:
        self._called("finish", session_id)
        self._known(session_id)
        self._events.append(self._close(session_id, CloseReason.FINISHED))

    def abandon(self, session_id: str) -> tuple[str, Event]:
        self._called("abandon", session_id)
        self._known(session_id)
        return self._close(session_id, CloseReason.ABANDONED)

    def has_work(self) -> bool:
        return bool(self._events)

    def tick(self, now: float) -> tuple[list[tuple[str, Event]], TickStats]:
        self._called("tick")
        self.in_tick.set()
        assert self.gate.wait(WAIT_S)
        events, self._events = self._events, []
        self._n_ticks += 1
        return events, TickStats(self._n_ticks, now, 0, len(self._pushed), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

    def close_all(self, reason: CloseReason, message: str) -> list[tuple[str, Event]]:
        self._called("close_all")
        return [self._close(session_id, reason, message) for session_id in list(self._pushed)]

    def _close(self, session_id: str, reason: CloseReason, message: str = "") -> tuple[str, Event]:
        del self._pushed[session_id]
        return session_id, SessionClosed(reason, message)

    def _known(self, session_id: str) -> None:
        if session_id not in self._pushed:
            raise UnknownSession(session_id)

    def _called(self, method: str, session_id: str = "") -> None:
        self.calls.append(f"{method} {session_id}".strip())
        self.threads.add(threading.current_thread().name)
        if method in self.faults:
            raise self.faults[method]


@dataclass(slots=True)
class Desk:
    """A running worker and what it has told."""

    worker: Worker
    engine: EchoEngine
    inbox: queue.Queue[tuple[str, Event]] = field(default_factory=queue.Queue)
    crashes: queue.Queue[BaseException] = field(default_factory=queue.Queue)
    ticks: list[TickStats] = field(default_factory=list)

    def next(self) -> tuple[str, Event]:
        return self.inbox.get(timeout=WAIT_S)

    def rest(self) -> list[tuple[str, Event]]:
        """What is left once the thread has ended."""
        told = []
        while not self.inbox.empty():
            told.append(self.inbox.get_nowait())
        return told

    def hold(self) -> None:
        """Keep the thread inside a tick until the gate opens."""
        self.engine.gate.clear()
        self.worker.open("holder", SessionSettings())
        self.worker.push("holder", AUDIO)
        assert self.engine.in_tick.wait(WAIT_S)


def make_desk(*, gather_ms: float = 0.0, on_event: Callable[[str, Event], None] | None = None) -> Desk:
    engine = EchoEngine()
    inbox: queue.Queue[tuple[str, Event]] = queue.Queue()
    crashes: queue.Queue[BaseException] = queue.Queue()
    ticks: list[TickStats] = []
    worker = Worker(
        engine,
        on_event=on_event or (lambda session_id, event: inbox.put((session_id, event))),
        on_tick=ticks.append,
        on_crash=crashes.put,
        gather_ms=gather_ms,
    )
    return Desk(worker, engine, inbox, crashes, ticks)


@contextmanager
def running(desk: Desk) -> Iterator[Desk]:
    desk.worker.start()
    try:
        yield desk
    finally:
        desk.engine.gate.set()
        desk.worker.stop(WAIT_S)


@pytest.fixture
def desk() -> Iterator[Desk]:
    with running(make_desk()) as desk:
        yield desk


# ------------------------------------------------------------------------------------------------ the route


def test_commands_reach_the_engine_in_order_and_events_come_back(desk: Desk) -> None:
    desk.worker.open("a", SessionSettings())
    desk.worker.push("a", AUDIO)
    assert desk.next() == ("a", Progress(160))
    desk.worker.push("a", AUDIO)
    assert desk.next() == ("a", Progress(320))
    desk.worker.finish("a")
    assert desk.next() == ("a", SessionClosed(CloseReason.FINISHED))
    assert [call for call in desk.engine.calls if call != "tick"] == ["open a", "push a", "push a", "finish a"]


def test_the_engine_is_touched_by_one_thread_only(desk: Desk) -> None:
    desk.worker.open("a", SessionSettings())
    desk.worker.push("a", AUDIO)
    desk.next()
    desk.worker.stop(WAIT_S)
    assert desk.engine.threads == {"engine"}


def test_every_tick_is_reported(desk: Desk) -> None:
    desk.worker.open("a", SessionSettings())
    for _ in range(3):
        desk.worker.push("a", AUDIO)
        desk.next()
    desk.worker.stop(WAIT_S)
    assert [stats.tick for stats in desk.ticks] == list(range(1, desk.engine.calls.count("tick") + 1))


def test_what_comes_during_a_tick_is_taken_before_the_next(desk: Desk) -> None:
    desk.hold()
    for name in "abc":
        desk.worker.open(name, SessionSettings())
        desk.worker.push(name, AUDIO)
    desk.engine.gate.set()
    assert [desk.next()[0] for _ in range(4)] == ["holder", "a", "b", "c"]
    desk.worker.stop(WAIT_S)
    assert desk.engine.calls.count("tick") == 2, "one for the holder, one for all that came meanwhile"


def test_gathering_lets_audio_that_comes_a_little_later_join_the_tick() -> None:
    with running(make_desk(gather_ms=500)) as desk:
        for name in "abc":
            desk.worker.open(name, SessionSettings())
            desk.worker.push(name, AUDIO)
        assert [desk.next()[0] for _ in range(3)] == ["a", "b", "c"]
        assert desk.engine.calls.count("tick") == 1


def test_an_abandoned_session_is_closed_at_once(desk: Desk) -> None:
    desk.worker.open("a", SessionSettings())
    desk.worker.abandon("a")
    assert desk.next() == ("a", SessionClosed(CloseReason.ABANDONED))


def test_a_command_for_a_closed_session_is_dropped(desk: Desk) -> None:
    """The session may close while the command is on its way."""
    desk.worker.open("a", SessionSettings())
    desk.worker.abandon("a")
    for late in (
        lambda: desk.worker.push("a", AUDIO),
        lambda: desk.worker.finish("a"),
        lambda: desk.worker.abandon("a"),
    ):
        late()
    desk.worker.open("b", SessionSettings())
    desk.worker.push("b", AUDIO)
    assert [desk.next() for _ in range(2)] == [("a", SessionClosed(CloseReason.ABANDONED)), ("b", Progress(160))]
    assert desk.crashes.empty()


def test_a_full_inbox_refuses_by_name(desk: Desk) -> None:
    desk.hold()
    with pytest.raises(EngineFull, match="Try again"):
        for _ in range(100_000):
            desk.worker.push("holder", AUDIO)


# ------------------------------------------------------------------------------------------------ the end


def test_stop_closes_every_session_once_and_refuses_what_comes_after(desk: Desk) -> None:
    for name in "abc":
        desk.worker.open(name, SessionSettings())
    desk.worker.finish("b")
    assert desk.next() == ("b", SessionClosed(CloseReason.FINISHED))
    desk.worker.stop(WAIT_S)
    told = desk.rest()
    assert [name for name, _ in told] == ["a", "c"]
    assert {event for _, event in told} == {SessionClosed(CloseReason.SHUTDOWN, "The server is shutting down.")}
    for call in (lambda: desk.worker.open("d", SessionSettings()), lambda: desk.worker.push("a", AUDIO)):
        with pytest.raises(EngineClosed):
            call()
    desk.worker.stop(WAIT_S)
    assert desk.rest() == [] and desk.crashes.empty()


def test_stop_closes_sessions_whose_start_is_still_on_its_way(desk: Desk) -> None:
    desk.hold()
    desk.worker.open("late", SessionSettings())
    stopping = threading.Thread(target=desk.worker.stop, args=(WAIT_S,))
    stopping.start()
    desk.engine.gate.set()
    stopping.join(WAIT_S)
    closed = [name for name, event in desk.rest() if isinstance(event, SessionClosed)]
    assert sorted(closed) == ["holder", "late"]


def test_stop_says_so_if_the_engine_hangs() -> None:
    with running(make_desk()) as desk:
        desk.hold()
        with pytest.raises(TimeoutError, match="did not stop within 0.01 s"):
            desk.worker.stop(0.01)


def test_stop_works_with_a_full_inbox(desk: Desk) -> None:
    desk.hold()
    with pytest.raises(EngineFull):
        while True:
            desk.worker.push("holder", AUDIO)
    with pytest.raises(TimeoutError):
        desk.worker.stop(0.01)
    desk.engine.gate.set()
    desk.worker.stop(WAIT_S)
    assert desk.rest()[-1] == ("holder", SessionClosed(CloseReason.SHUTDOWN, "The server is shutting down."))


@pytest.mark.parametrize("method", ["tick", "open", "push", "finish", "abandon"])
def test_a_crash_closes_every_session_once_and_calls_on_crash(caplog: pytest.LogCaptureFixture, method: str) -> None:
    with running(make_desk()) as desk:
        desk.worker.open("a", SessionSettings())
        desk.worker.push("a", AUDIO)
        desk.next()
        desk.hold()
        desk.engine.faults[method] = fault = RuntimeError("broken")
        desk.worker.open("b", SessionSettings())
        desk.worker.push("a", AUDIO)
        desk.worker.finish("holder")
        desk.worker.abandon("a")
        desk.worker.open("never opened", SessionSettings())
        desk.engine.gate.set()
        assert desk.crashes.get(timeout=WAIT_S) is fault
        desk.worker.stop(WAIT_S)
        closed = {name: event for name, event in desk.rest() if isinstance(event, SessionClosed)}
        assert closed.keys() == {"a", "b", "holder", "never opened"}
        assert CloseReason.FAILED in {event.reason for event in closed.values()}
        assert closed["never opened"].message == "The transcription engine failed. Please reconnect."
        with pytest.raises(EngineClosed):
            desk.worker.open("c", SessionSettings())
        assert desk.crashes.empty()
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "The engine failed"


def test_an_engine_too_broken_to_close_its_sessions_is_not_needed_for_it() -> None:
    with running(make_desk()) as desk:
        desk.engine.faults |= {"tick": RuntimeError("first"), "close_all": RuntimeError("second")}
        desk.worker.open("a", SessionSettings())
        desk.worker.push("a", AUDIO)
        assert str(desk.crashes.get(timeout=WAIT_S)) == "first"
        assert [name for name, _ in desk.rest()] == ["a"]


def test_a_fault_on_the_way_down_still_closes_every_session() -> None:
    with running(make_desk()) as desk:
        desk.engine.faults["close_all"] = RuntimeError("broken")
        desk.worker.open("a", SessionSettings())
        desk.worker.stop(WAIT_S)
        assert [(name, event.reason) for name, event in desk.rest()] == [("a", CloseReason.FAILED)]
        assert str(desk.crashes.get(timeout=WAIT_S)) == "broken"


def test_a_listener_that_fails_is_a_crash() -> None:
    closed: list[str] = []

    def listen(session_id: str, event: Event) -> None:
        if not isinstance(event, SessionClosed):
            raise RuntimeError("nobody listens")
        closed.append(session_id)

    with running(make_desk(on_event=listen)) as desk:
        desk.worker.open("a", SessionSettings())
        desk.worker.push("a", AUDIO)
        assert str(desk.crashes.get(timeout=WAIT_S)) == "nobody listens"
        assert closed == ["a"]


def test_no_session_is_lost_between_a_crash_and_its_start() -> None:
    """Many threads open sessions while the engine fails: each is refused or closed."""
    with running(make_desk()) as desk:
        accepted: queue.Queue[str] = queue.Queue()
        ready = threading.Barrier(9)

        def open_many(thread: int) -> None:
            ready.wait(WAIT_S)
            try:
                for number in range(1000):
                    desk.worker.open(f"{thread}-{number}", SessionSettings())
                    accepted.put(f"{thread}-{number}")
            except EngineClosed:
                return

        threads = [threading.Thread(target=open_many, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        ready.wait(WAIT_S)
        desk.engine.faults["push"] = RuntimeError("broken")
        desk.worker.push("any", AUDIO)
        desk.crashes.get(timeout=WAIT_S)
        for thread in threads:
            thread.join(WAIT_S)
        closed = [name for name, event in desk.rest() if isinstance(event, SessionClosed)]
        assert sorted(closed) == sorted(accepted.queue)
