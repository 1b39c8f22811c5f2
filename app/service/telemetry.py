"""What the server tells about itself: Prometheus metrics, and the rolling statistics behind the page's charts.

Fed by the bridge (ticks) and the gateway (sessions, latencies, errors), read by the routes of `server.py`. Everything
runs on the event loop. Each `Telemetry` has a registry of its own, so that two servers in one process do not collide.
Knows no socket: `StatsFeed` hands text to whoever joined it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from engine.core import ModelInfo
from engine.types import TickStats

LATENCY_WINDOW_S: Final = 60.0
HISTORY_S: Final = 120.0  # of ticks that a new viewer gets
PUSH_INTERVAL_S: Final = 0.25
MAX_TICKS: Final = 6_000  # kept: 120 s at 50 ticks a second
MAX_LATENCIES: Final = 8_192  # kept of each kind
RECENT_TICKS: Final = 240  # in one plain request
VIEWER_QUEUE: Final = 16  # pushes, four seconds

_BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LATENCY_BUCKETS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


class Latency(StrEnum):
    """Which events' latency is measured: arrival of the newest sample they rest on until the socket has them."""

    PARTIAL = "partial"
    FINAL = "final"


class Outcome(StrEnum):
    """How a session ended."""

    FINISHED = "finished"
    ABANDONED = "abandoned"  # the client went away
    ERROR = "error"


class Tick(msgspec.Struct, frozen=True):
    """A tick in which the encoder ran, as the page draws it."""

    tick: int
    at: float  # seconds since the epoch
    encoder_batch: int
    encoder_ms: float
    tick_ms: float
    decode_rows: int
    tokens: int


class Quantiles(msgspec.Struct, frozen=True):
    """Of the latencies in the window; null where there were none."""

    p50_ms: float | None
    p95_ms: float | None
    n: int


class Stats(msgspec.Struct, frozen=True, tag_field="type", tag="stats"):
    """The object of `/v1/stats` and `/v1/stats/stream`."""

    now: float  # seconds since the epoch
    model: str
    device: str
    dtype: str
    encoder: str
    languages: tuple[str, ...]
    sessions: int
    speaking: int
    max_sessions: int
    waiting: int
    ticks: tuple[Tick, ...]
    latency: dict[Latency, Quantiles]


class _Metrics:
    """The Prometheus side; names have one prefix, base units and few labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, about, namespace="tickscribe", registry=registry, buckets=buckets)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, labels, namespace="tickscribe", registry=registry)

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(name, about, namespace="tickscribe", registry=registry)

        self.sessions_active = gauge("sessions_active", "Open sessions")
        self.sessions = counter("sessions", "Ended sessions", "outcome")
        self.audio = counter("audio_received_seconds", "Audio received")
        self.errors = counter("errors", "Conversations ended by an error", "code")
        self.ticks = counter("ticks", "Rounds of the engine")
        self.retries = counter("retries", "Windows run again with full context because their text looked wrong")
        self.suppressed = counter("suppressed", "Hypotheses that were kept from the text", "reason")
        self.tick = histogram("tick_duration_seconds", "One round of the engine", _SECONDS_BUCKETS)
        self.encoder_batch = histogram(
            "encoder_batch_size", "Windows per tick in which the encoder ran", _BATCH_BUCKETS
        )
        self.encoder = histogram(
            "encoder_duration_seconds", "Encoder time per tick, features included", _SECONDS_BUCKETS
        )
        self.encoder_positions = counter("encoder_positions", "20-ms positions encoded")
        self.decoder_batch = histogram("decoder_batch_size", "Rows per tick in which the decoder ran", _BATCH_BUCKETS)
        self.decoder = histogram("decoder_duration_seconds", "Prefill and decode time per tick", _SECONDS_BUCKETS)
        self.tokens = counter("decoder_tokens", "Text tokens gained")
        self.queue_wait = histogram(
            "queue_wait_seconds", "From a window being ready to its admission", _LATENCY_BUCKETS
        )
        self.queue_depth = gauge("queue_depth", "Windows waiting for admission")
        self.latency = {
            kind: histogram(
                f"{kind}_latency_seconds",
                f"Arrival of a {kind}'s newest sample to its text at the socket",
                _LATENCY_BUCKETS,
            )
            for kind in Latency
        }
        self.model = Info("model", "The model that is loaded", namespace="tickscribe", registry=registry)


class Telemetry:
    """Takes what happened; gives metrics and statistics.

    Args:
        encoder: how the encoder runs, batched or sequential.
        max_sessions: places on this server.
        clock: monotonic seconds.
    """

    def __init__(self, *, encoder: str, max_sessions: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        self._metrics = _Metrics(self.registry)
        self._encoder = encoder
        self._max_sessions = max_sessions
        self._clock = clock
        self._info: ModelInfo | None = None
        self._n_sessions = 0
        self._last: TickStats | None = None
        self._ticks: deque[Tick] = deque(maxlen=MAX_TICKS)
        self._latencies = {kind: deque[tuple[float, float]](maxlen=MAX_LATENCIES) for kind in Latency}

    # ------------------------------------------------------------------------------------------- what happened

    def model_loaded(self, info: ModelInfo) -> None:
        """Name the model."""
        self._info = info
        self._metrics.model.info({"name": info.name, "device": info.device, "dtype": info.dtype})

    def session_opened(self) -> None:
        """Count an admitted session."""
        self._n_sessions += 1
        self._metrics.sessions_active.set(self._n_sessions)

    def session_ended(self, outcome: Outcome) -> None:
        """Count the end of an admitted session."""
        self._n_sessions -= 1
        self._metrics.sessions_active.set(self._n_sessions)
        self._metrics.sessions.labels(outcome).inc()

    def audio_received(self, seconds: float) -> None:
        """Count audio."""
        self._metrics.audio.inc(seconds)

    def failed(self, code: str) -> None:
        """Count a conversation that ended by an error."""
        self._metrics.errors.labels(code).inc()

    def sent(self, kind: Latency, latency_s: float) -> None:
        """Record an event that reached its socket."""
        self._metrics.latency[kind].observe(latency_s)
        self._latencies[kind].append((self._clock(), latency_s))

    def ticked(self, stats: TickStats) -> None:
        """Record a round of the engine."""
        self._last = stats
        metrics = self._metrics
        metrics.ticks.inc()
        metrics.tick.observe(stats.duration_ms / 1000)
        metrics.tokens.inc(stats.decode_tokens)
        metrics.retries.inc(stats.retries)
        for reason in stats.suppressed:
            metrics.suppressed.labels(reason).inc()
        metrics.queue_depth.set(stats.waiting)
        for wait_ms in stats.queue_wait_ms:
            metrics.queue_wait.observe(wait_ms / 1000)
        if stats.decode_rows:
            metrics.decoder.observe(stats.decode_ms / 1000)
            metrics.decoder_batch.observe(stats.decode_rows)
        if stats.encoder_batch:
            metrics.encoder_batch.observe(stats.encoder_batch)
            metrics.encoder.observe(stats.encoder_ms / 1000)
            metrics.encoder_positions.inc(stats.encoder_positions)
            self._ticks.append(_drawn(stats))

    # ------------------------------------------------------------------------------------------- what is told

    def exposition(self) -> bytes:
        """Give the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def recent(self) -> Stats:
        """Give the statistics with the last RECENT_TICKS ticks."""
        return self._stats(tuple(self._ticks)[-RECENT_TICKS:])

    def history(self, *, until: int) -> Stats:
        """Give the statistics with the ticks of the last HISTORY_S, up to tick number `until`."""
        since = time.time() - HISTORY_S
        return self._stats(tuple(tick for tick in self._ticks if tick.at >= since and tick.tick <= until))

    def news(self, *, after: int) -> Stats:
        """Give the statistics with the ticks that came after tick number `after`."""
        fresh: list[Tick] = []
        for tick in reversed(self._ticks):
            if tick.tick <= after:
                break
            fresh.append(tick)
        return self._stats(tuple(reversed(fresh)))

    @property
    def last_tick(self) -> int:
        """Number of the newest tick that is told; 0 before the first."""
        return self._ticks[-1].tick if self._ticks else 0

    def _stats(self, ticks: tuple[Tick, ...]) -> Stats:
        info, last = self._info, self._last
        return Stats(
            now=time.time(),
            model=info.name if info else "",
            device=info.device if info else "",
            dtype=info.dtype if info else "",
            encoder=self._encoder,
            languages=info.languages if info else (),
            sessions=self._n_sessions,
            # The engine ticks only while there is work, so its last word is stale once everybody is gone.
            speaking=min(last.speaking, self._n_sessions) if last else 0,
            max_sessions=self._max_sessions,
            waiting=last.waiting if last and self._n_sessions else 0,
            ticks=ticks,
            latency={kind: self._quantiles(kind) for kind in Latency},
        )

    def _quantiles(self, kind: Latency) -> Quantiles:
        latencies = self._latencies[kind]
        since = self._clock() - LATENCY_WINDOW_S
        while latencies and latencies[0][0] < since:
            latencies.popleft()
        if not latencies:
            return Quantiles(None, None, 0)
        ordered = sorted(latency_s for _, latency_s in latencies)
        return Quantiles(_quantile_ms(ordered, 0.5), _quantile_ms(ordered, 0.95), len(ordered))


class Viewer:
    """One who watches the statistics; `next_text` until it raises."""

    def __init__(self, greeting: str) -> None:
        self._queue: asyncio.Queue[str] = asyncio.Queue(VIEWER_QUEUE)
        self._queue.put_nowait(greeting)
        self.is_late = False

    def offer(self, text: str) -> None:
        """Queue a push; a viewer whose queue is full is late for good."""
        if self._queue.full():
            self.is_late = True
        else:
            self._queue.put_nowait(text)

    async def next_text(self) -> str:
        """Wait for the next push."""
        return await self._queue.get()


class StatsFeed:
    """Pushes the statistics to all viewers; each push is encoded once for all of them.

    `run` in a task; `viewer` per watcher. Every viewer sees every tick once: those before it joined in its greeting.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._viewers: set[Viewer] = set()
        self._watched = asyncio.Event()
        self._told = 0  # number of the last tick pushed

    async def run(self) -> None:
        """Push while anybody watches; sleep while nobody does."""
        while True:
            await self._watched.wait()
            await asyncio.sleep(PUSH_INTERVAL_S)
            self.push()

    def push(self) -> None:
        """Tell all viewers what is new; forget those that are late."""
        text = encode(self._telemetry.news(after=self._told))
        self._told = self._telemetry.last_tick
        for viewer in self._viewers:
            viewer.offer(text)

    @contextmanager
    def viewer(self) -> Iterator[Viewer]:
        """Join the audience."""
        if not self._viewers:
            self._told = self._telemetry.last_tick
        viewer = Viewer(encode(self._telemetry.history(until=self._told)))
        self._viewers.add(viewer)
        self._watched.set()
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                self._watched.clear()


def encode(stats: Stats) -> str:
    """Write the statistics as JSON."""
    return msgspec.json.encode(stats).decode()


def _drawn(stats: TickStats) -> Tick:
    return Tick(
        tick=stats.tick,
        at=round(stats.at, 3),
        encoder_batch=stats.encoder_batch,
        encoder_ms=round(stats.encoder_ms, 1),
        tick_ms=round(stats.duration_ms, 1),
        decode_rows=stats.decode_rows,
        tokens=stats.decode_tokens,
    )


def _quantile_ms(ordered: list[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed (nearest rank), in milliseconds."""
    rank = math.ceil(share * len(ordered))
    return round(1000 * ordered[rank - 1], 1)
