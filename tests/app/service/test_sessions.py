"""Between event loop and engine thread: outboxes, flow control, admission, and one end for every session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.service import sessions as sessions_module
from app.service.sessions import MAX_BACKLOG_SAMPLES, OUTBOX_EVENTS, ArrivalLog, Bridge, Outbox, Session
from engine.errors import EngineFull
from engine.types import (
    SAMPLE_RATE,
    CloseReason,
    EndReason,
    Event,
    Final,
    Partial,
    SessionClosed,
    SessionSettings,
    SpeechStarted,
    TickStats,
)
from engine.worker import Worker
from tests.fakes import ScriptedEngine, loud, silence
from tickscribe.messages import ErrorCode, ProtocolError

PATIENCE_S = 10.0


def make_partial(utterance_id: int = 0, *, revision: int = 1) -> Partial:
    return Partial(utterance_id, revision, "", f" r{revision}", start=0, end=1, heard=1)


def make_final(utterance_id: int = 0) -> Final:
    return Final(utterance_id, " a", start=0, end=1, heard=1, reason=EndReason.PAUSE, language="en")


class Crashes:
    """Where a bridge reports the fault of its engine."""

    def __init__(self) -> None:
        self.faults: asyncio.Queue[BaseException] = asyncio.Queue()

    def __call__(self, fault: BaseException) -> None:
        self.faults.put_nowait(fault)


def ignore_tick(stats: TickStats) -> None:
    """Nobody looks at the ticks."""


@asynccontextmanager
async def bridging(
    engine: ScriptedEngine, *, max_sessions: int = 4, on_crash: Crashes | None = None
) -> AsyncIterator[Bridge]:
    """A bridge to a real worker thread."""
    bridge = Bridge(
        engine, max_sessions=max_sessions, gather_ms=0.0, on_tick=ignore_tick, on_crash=on_crash or Crashes()
    )
    bridge.start()
    try:
        yield bridge
    finally:
        await bridge.stop()


async def rest_of(session: Session) -> list[Event]:
    """Everything up to SessionClosed."""
    events: list[Event] = []
    async with asyncio.timeout(PATIENCE_S):
        while not events or not isinstance(events[-1], SessionClosed):
            events.append(await session.next_event())
    return events


async def closed_by_engine(engine: ScriptedEngine) -> str:
    """Wait until the engine has closed one more session."""
    return await asyncio.to_thread(engine.closed.get, timeout=PATIENCE_S)


# ----------------------------------------------------------------------------------------------- outbox


async def test_a_newer_partial_replaces_the_older_one_of_its_utterance() -> None:
    outbox = Outbox()
    for event in (make_partial(0, revision=1), make_partial(1, revision=1), make_partial(0, revision=2)):
        outbox.put(event)
    assert [await outbox.get(), await outbox.get()] == [make_partial(0, revision=2), make_partial(1, revision=1)]


@given(st.lists(st.builds(make_final, st.integers(0, 3)) | st.builds(make_partial, st.integers(0, 3))))
def test_finals_are_never_dropped_nor_reordered(events: list[Event]) -> None:
    async def drained() -> list[Event]:
        outbox = Outbox()
        for event in events:
            outbox.put(event)
        return [await outbox.get() for _ in range(len(outbox))]

    came = asyncio.run(drained())
    finals = [event for event in events if isinstance(event, Final)]
    assert [event for event in came if isinstance(event, Final)] == finals
    partials = [event for event in came if isinstance(event, Partial)]
    assert len({partial.utterance_id for partial in partials}) == len(partials)


# ----------------------------------------------------------------------------------------------- arrival times


def test_arrival_is_that_of_the_message_that_completed_the_sample() -> None:
    log = ArrivalLog()
    for second in range(1, 6):
        log.note(second * SAMPLE_RATE, float(second))
    assert log.arrival_of(1) == 1.0
    assert log.arrival_of(SAMPLE_RATE) == 1.0
    assert log.arrival_of(SAMPLE_RATE + 1) == 2.0
    assert log.arrival_of(6 * SAMPLE_RATE) is None


@given(st.lists(st.integers(1, 3_000), min_size=1, max_size=200), st.data())
def test_arrival_is_never_wrong_by_more_than_the_grain(sizes: list[int], data: st.DataObject) -> None:
    log = ArrivalLog()
    exact: list[int] = []  # arrival of each sample, by message number
    total = 0
    for number, size in enumerate(sizes):
        total += size
        exact += [number] * size
        log.note(total, float(number))
    sample = data.draw(st.integers(1, total))
    arrival = log.arrival_of(sample)
    assert arrival is not None
    latest = exact[min(sample + SAMPLE_RATE // 50, total) - 1]
    assert exact[sample - 1] <= arrival <= latest


def test_what_is_settled_is_forgotten() -> None:
    log = ArrivalLog()
    for second in range(1, 6):
        log.note(second * SAMPLE_RATE, float(second))
    log.forget(3 * SAMPLE_RATE)
    assert log.arrival_of(1) == 3.0


# ----------------------------------------------------------------------------------------------- sessions


async def test_audio_becomes_events_that_end_with_one_closed() -> None:
    async with bridging(ScriptedEngine()) as bridge:
        with bridge.session("s1", SessionSettings(interim=False)) as session:
            await session.push(loud(1.5))
            await session.push(silence(0.5))
            await session.push(loud(1.0))
            session.finish()
            events = await rest_of(session)
        assert [type(event) for event in events] == [SpeechStarted, Final, SpeechStarted, Final, SessionClosed]
        assert events[-1] == SessionClosed(CloseReason.FINISHED)
        assert bridge.n_sessions == 0


async def test_latency_counts_from_the_arrival_of_what_was_heard() -> None:
    async with bridging(ScriptedEngine()) as bridge:
        with bridge.session("s1", SessionSettings()) as session:
            await session.push(loud(1.0))
            latency_s = session.latency_s(SAMPLE_RATE)
            assert latency_s is not None and 0 <= latency_s < PATIENCE_S
            assert session.latency_s(SAMPLE_RATE + 1) is None


async def test_a_full_server_refuses_and_takes_the_next_when_a_place_is_free() -> None:
    engine = ScriptedEngine()
    async with bridging(engine, max_sessions=2) as bridge:
        with ExitStack() as open_sessions:
            first = open_sessions.enter_context(bridge.session("s1", SessionSettings()))
            open_sessions.enter_context(bridge.session("s2", SessionSettings()))
            with pytest.raises(ProtocolError, match="All 2 places"), bridge.session("s3", SessionSettings()):
                pass
            first.abandon()
            assert bridge.n_sessions == 2, "the place is free only when its engine and its gateway have let go"
        for _ in range(2):
            await closed_by_engine(engine)
        with bridge.session("s4", SessionSettings()):
            assert bridge.n_sessions == 1


async def test_a_gateway_that_leaves_abandons_its_session() -> None:
    engine = ScriptedEngine()
    async with bridging(engine) as bridge:
        with pytest.raises(LookupError), bridge.session("s1", SessionSettings()) as session:
            await session.push(loud(0.5))
            raise LookupError
        assert await rest_of(session) == [SessionClosed(CloseReason.ABANDONED)]
        assert await closed_by_engine(engine) == "s1"
        assert engine.n_sessions == 0


async def test_unanswered_audio_is_bounded_and_a_push_goes_on_when_some_is_settled() -> None:
    gate = threading.Event()

    class Gated(ScriptedEngine):
        def tick(self, now: float) -> tuple[list[tuple[str, Event]], TickStats]:
            gate.wait(PATIENCE_S)
            return super().tick(now)

    async with bridging(Gated()) as bridge:
        with bridge.session("s1", SessionSettings()) as session:
            await session.push(silence(MAX_BACKLOG_SAMPLES / SAMPLE_RATE))
            waiting = asyncio.create_task(session.push(silence(1.0)))
            done, _ = await asyncio.wait([waiting], timeout=0.1)
            assert not done
            gate.set()
            async with asyncio.timeout(PATIENCE_S):
                await waiting
            session.finish()
            assert await rest_of(session) == [SessionClosed(CloseReason.FINISHED)]


async def test_a_backlog_that_stands_still_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "PUSH_TIMEOUT_S", 0.05)
    async with bridging(ScriptedEngine(is_stuck=True)) as bridge:
        with bridge.session("s1", SessionSettings()) as session:
            await session.push(silence(MAX_BACKLOG_SAMPLES / SAMPLE_RATE))
            with pytest.raises(ProtocolError) as caught:
                await session.push(silence(1.0))
            assert caught.value.code is ErrorCode.OVERLOADED


async def test_a_flush_that_the_engine_never_answers_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "SILENT_ENGINE_S", 0.05)
    async with bridging(ScriptedEngine(is_stuck=True)) as bridge:
        with bridge.session("s1", SessionSettings()) as session:
            await session.push(loud(1.0))
            session.finish()
            assert await rest_of(session) == [SessionClosed(CloseReason.ABANDONED)]
            assert session.fault is not None and session.fault.code is ErrorCode.OVERLOADED


async def test_a_client_that_lets_finals_pile_up_is_slow_but_loses_none_before() -> None:
    engine = ScriptedEngine()
    async with bridging(engine) as bridge:
        with bridge.session("s1", SessionSettings(interim=False)) as session:
            for _ in range(OUTBOX_EVENTS // 2 + 1):  # each utterance is two events
                await session.push(loud(0.1))
                await session.push(silence(0.5))
            assert await closed_by_engine(engine) == "s1"
            events = await rest_of(session)
        assert session.fault is not None and session.fault.code is ErrorCode.SLOW_CLIENT
        assert len(events) == OUTBOX_EVENTS + 2  # the one too many, and the end
        assert [event.utterance_id for event in events if isinstance(event, Final)] == list(range(OUTBOX_EVENTS // 2))


async def test_a_fault_still_flushes_what_was_heard_and_the_first_fault_counts() -> None:
    async with bridging(ScriptedEngine()) as bridge:
        with bridge.session("s1", SessionSettings(interim=False)) as session:
            await session.push(loud(1.0))
            session.fail(ProtocolError(ErrorCode.AUDIO_FORMAT, "first"))
            session.fail(ProtocolError(ErrorCode.IDLE_TIMEOUT, "second"))
            await session.push(loud(1.0))  # dropped
            events = await rest_of(session)
        assert isinstance(events[1], Final) and events[1].text == " a50"
        assert session.fault is not None and session.fault.message == "first"


async def test_a_crash_closes_every_session_once_and_admits_nobody() -> None:
    crashes = Crashes()
    async with bridging(ScriptedEngine(crash_above=0.8), on_crash=crashes) as bridge:
        with ExitStack() as open_sessions:
            sessions = [
                open_sessions.enter_context(bridge.session(f"s{n}", SessionSettings(interim=False))) for n in range(3)
            ]
            await sessions[0].push(loud(0.1, amplitude=0.9))
            for session in sessions:
                events = await rest_of(session)
                assert isinstance(events[-1], SessionClosed) and events[-1].reason is CloseReason.FAILED
        async with asyncio.timeout(PATIENCE_S):
            assert str(await crashes.faults.get()) == "scripted crash"
        with pytest.raises(ProtocolError) as caught, bridge.session("s9", SessionSettings()):
            pass
        assert caught.value.code is ErrorCode.INTERNAL


async def test_drain_flushes_tells_why_and_admits_nobody() -> None:
    async with bridging(ScriptedEngine()) as bridge:
        with ExitStack() as opened:
            talking = opened.enter_context(bridge.session("s1", SessionSettings(interim=False)))
            finishing = opened.enter_context(bridge.session("s2", SessionSettings(interim=False)))
            await talking.push(loud(1.0))
            finishing.finish()
            draining = asyncio.create_task(bridge.drain(PATIENCE_S))
            events = await rest_of(talking)
            await rest_of(finishing)
            assert not draining.done(), "their last words are not out yet"
        async with asyncio.timeout(PATIENCE_S):
            await draining
        assert [type(event) for event in events] == [SpeechStarted, Final, SessionClosed]
        assert talking.fault is not None and talking.fault.code is ErrorCode.SHUTTING_DOWN
        assert finishing.fault is None, "it said finish by itself"
        with pytest.raises(ProtocolError) as caught, bridge.session("s3", SessionSettings()):
            pass
        assert caught.value.code is ErrorCode.SHUTTING_DOWN


async def test_stop_closes_what_the_engine_never_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "LAST_WORDS_S", 0.05)
    async with bridging(ScriptedEngine(is_stuck=True)) as bridge:
        with bridge.session("s1", SessionSettings()) as session:
            await bridge.drain(0.05)
            await bridge.stop()
            events = await rest_of(session)
            assert [type(event) for event in events] == [SessionClosed]


async def test_an_abandon_that_finds_no_room_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "_RETRY_S", 0.01)
    engine = ScriptedEngine()
    refusals = [EngineFull("full"), EngineFull("full")]
    abandon = Worker.abandon

    def reluctant(worker: Worker, session_id: str) -> None:
        if refusals:
            raise refusals.pop()
        abandon(worker, session_id)

    monkeypatch.setattr(Worker, "abandon", reluctant)
    async with bridging(engine) as bridge:
        with bridge.session("s1", SessionSettings()):
            pass
        assert await closed_by_engine(engine) == "s1"
