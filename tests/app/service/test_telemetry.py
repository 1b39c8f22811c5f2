"""Metrics and rolling statistics: each number where it belongs, each viewer every tick once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from app.service.telemetry import (
    HISTORY_S,
    LATENCY_WINDOW_S,
    RECENT_TICKS,
    VIEWER_QUEUE,
    Latency,
    Outcome,
    Quantiles,
    StatsFeed,
    Telemetry,
    Viewer,
)
from engine.types import SuppressReason
from tests.fakes import MODEL, make_tick_stats


class Clock:
    """Monotonic seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def make_telemetry(clock: Clock | None = None) -> Telemetry:
    telemetry = Telemetry(encoder="batched", max_sessions=64, clock=clock or Clock())
    telemetry.model_loaded(MODEL)
    return telemetry


def value(telemetry: Telemetry, metric: str, /, **labels: str) -> float:
    """A sample of the registry; 0 if nothing was recorded."""
    return telemetry.registry.get_sample_value(f"tickscribe_{metric}", labels) or 0.0


async def told(viewer: Viewer) -> dict[str, Any]:
    """The next push of a viewer."""
    async with asyncio.timeout(10):
        stats: dict[str, Any] = msgspec.json.decode(await viewer.next_text())
    return stats


def ticks(stats: dict[str, Any]) -> list[int]:
    return [tick["tick"] for tick in stats["ticks"]]


def test_a_tick_is_counted_in_every_metric() -> None:
    telemetry = make_telemetry()
    telemetry.ticked(make_tick_stats(encoder_batch=3, decode_tokens=7, waiting=2, queue_wait_ms=(100.0, 300.0)))
    telemetry.ticked(make_tick_stats(tick=2, encoder_batch=0, decode_tokens=5))
    assert value(telemetry, "ticks_total") == 2
    assert value(telemetry, "tick_duration_seconds_sum") == pytest.approx(0.04)
    assert value(telemetry, "encoder_batch_size_count") == 1, "the encoder did not run in the second"
    assert value(telemetry, "encoder_batch_size_bucket", le="2.0") == 0
    assert value(telemetry, "encoder_batch_size_bucket", le="4.0") == 1
    assert value(telemetry, "encoder_duration_seconds_sum") == pytest.approx(0.01)
    assert value(telemetry, "decoder_tokens_total") == 12
    assert value(telemetry, "queue_wait_seconds_sum") == pytest.approx(0.4)
    assert value(telemetry, "queue_wait_seconds_count") == 2


def test_every_suppressed_hypothesis_is_counted_by_its_reason() -> None:
    telemetry = make_telemetry()
    telemetry.ticked(make_tick_stats(suppressed=(SuppressReason.NO_SPEECH, SuppressReason.LOOP)))
    telemetry.ticked(make_tick_stats(suppressed=(SuppressReason.NO_SPEECH,)))
    assert value(telemetry, "suppressed_total", reason="no_speech") == 2
    assert value(telemetry, "suppressed_total", reason="loop") == 1


def test_sessions_audio_errors_and_latencies_are_counted() -> None:
    telemetry = make_telemetry()
    telemetry.session_opened()
    telemetry.session_opened()
    telemetry.session_ended(Outcome.ABANDONED)
    telemetry.audio_received(1.5)
    telemetry.failed("audio_format")
    telemetry.sent(Latency.PARTIAL, 0.25)
    telemetry.sent(Latency.FINAL, 0.75)
    assert value(telemetry, "sessions_active") == 1
    assert value(telemetry, "sessions_total", outcome="abandoned") == 1
    assert value(telemetry, "audio_received_seconds_total") == 1.5
    assert value(telemetry, "errors_total", code="audio_format") == 1
    assert value(telemetry, "partial_latency_seconds_sum") == 0.25
    assert value(telemetry, "final_latency_seconds_sum") == 0.75
    assert value(telemetry, "model_info", name="scripted", device="cpu", dtype="float32") == 1
    assert b"tickscribe_sessions_active 1.0" in telemetry.exposition()


def test_two_servers_in_one_process_do_not_share_metrics() -> None:
    first, second = make_telemetry(), make_telemetry()
    first.session_opened()
    assert value(second, "sessions_active") == 0


def test_statistics_list_the_last_ticks_in_which_the_encoder_ran() -> None:
    telemetry = make_telemetry()
    for number in range(1, RECENT_TICKS + 100):
        telemetry.ticked(make_tick_stats(tick=number, encoder_batch=number % 2))
    stats = telemetry.recent()
    assert len(stats.ticks) <= RECENT_TICKS
    assert all(tick.encoder_batch for tick in stats.ticks)
    assert stats.ticks[-1].tick == RECENT_TICKS + 99


def test_statistics_say_who_is_there() -> None:
    telemetry = make_telemetry()
    telemetry.session_opened()
    telemetry.ticked(make_tick_stats(speaking=1, waiting=3))
    stats = telemetry.recent()
    assert (stats.model, stats.device, stats.dtype, stats.encoder) == ("scripted", "cpu", "float32", "batched")
    assert (stats.sessions, stats.speaking, stats.waiting, stats.max_sessions) == (1, 1, 3, 64)
    telemetry.session_ended(Outcome.FINISHED)
    stats = telemetry.recent()
    assert (stats.sessions, stats.speaking, stats.waiting) == (0, 0, 0), "no tick comes once everybody is gone"


def test_before_the_model_is_loaded_its_name_is_empty() -> None:
    assert Telemetry(encoder="batched", max_sessions=1).recent().model == ""


def test_latency_quantiles_are_of_the_last_minute() -> None:
    clock = Clock()
    telemetry = make_telemetry(clock)
    assert telemetry.recent().latency[Latency.FINAL] == Quantiles(None, None, 0)
    telemetry.sent(Latency.FINAL, 9.0)
    clock.now += LATENCY_WINDOW_S + 1
    for hundredth in range(1, 101):
        telemetry.sent(Latency.FINAL, hundredth / 100)
    assert telemetry.recent().latency[Latency.FINAL] == Quantiles(500.0, 950.0, 100)
    assert telemetry.recent().latency[Latency.PARTIAL] == Quantiles(None, None, 0)


async def test_every_viewer_sees_every_tick_once() -> None:
    telemetry = make_telemetry()
    feed = StatsFeed(telemetry)
    telemetry.ticked(make_tick_stats(tick=1))
    with feed.viewer() as early:
        telemetry.ticked(make_tick_stats(tick=2))
        with feed.viewer() as late:
            telemetry.ticked(make_tick_stats(tick=3))
            feed.push()
            assert [ticks(await told(early)), ticks(await told(early))] == [[1], [2, 3]]
            assert [ticks(await told(late)), ticks(await told(late))] == [[1], [2, 3]]
        feed.push()
        assert ticks(await told(early)) == []


async def test_a_new_viewer_gets_the_history_of_two_minutes() -> None:
    telemetry = make_telemetry()
    telemetry.ticked(make_tick_stats(tick=1, at=time.time() - HISTORY_S - 5))
    telemetry.ticked(make_tick_stats(tick=2, at=time.time() - HISTORY_S + 5))
    with StatsFeed(telemetry).viewer() as viewer:
        assert ticks(await told(viewer)) == [2]


async def test_a_push_is_encoded_once_for_all_viewers() -> None:
    feed = StatsFeed(make_telemetry())
    with feed.viewer() as first, feed.viewer() as second:
        await told(first)
        await told(second)
        feed.push()
        assert await first.next_text() is await second.next_text()


async def test_a_viewer_that_does_not_read_is_late_and_holds_up_nobody() -> None:
    feed = StatsFeed(make_telemetry())
    with feed.viewer() as sleeping, feed.viewer() as reading:
        for _ in range(VIEWER_QUEUE + 1):
            await told(reading)
            feed.push()
        assert sleeping.is_late
        assert not reading.is_late


async def test_the_feed_pushes_by_itself_while_somebody_watches() -> None:
    feed = StatsFeed(make_telemetry())
    running = asyncio.create_task(feed.run())
    with feed.viewer() as viewer:
        for _ in range(3):
            assert (await told(viewer))["type"] == "stats"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
