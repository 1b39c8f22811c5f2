"""`tickscribe bench capacity`: how many speakers at once, each served in time.

A real server in its own process, a load generator in another, N speakers of real speech with pauses. N is doubled until
the bounds break and then bisected. Streams differ; the server keeps nothing from one to the next.
"""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from rich.console import Console
from rich.table import Table

from app.bench import native, scrape
from app.bench.clips import load_clips
from app.bench.delays import Distribution
from app.bench.load import Part, Trace, run_load
from app.bench.machine import describe_machine
from app.bench.point import Heard, Quality, judge
from app.bench.process import CpuUse, ServerProcess, cpu_times, free_port, peak_memory_mb, running
from app.bench.reference import KnownClip, know_clips
from app.bench.report import TABLE_WIDTH, command_line, engine_flags
from app.bench.scrape import Work
from app.bench.streams import compose, most_heard, speech_share
from engine.config import EngineConfig
from engine.types import Stability

_IDLE_TIMEOUT_S = 180.0  # for a server that was overloaded to answer all it holds
_RETRY_S = 0.5
_SPARE_SESSIONS = 8


@dataclass(frozen=True, slots=True)
class Bounds:
    """What counts as served in time; seconds at p95.

    Attributes:
        finalisation_s: end of speech to final, less the configured pause.
        word_s: end of a word to its first showing.
        drift_s_per_min: growth of the word delay.
    """

    finalisation_s: float = 1.0
    word_s: float = 2.0
    drift_s_per_min: float = 0.5


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure.

    Attributes:
        engine: model and pause; what the server is started with, and what decodes the recordings offline.
        flags: further flags of `tickscribe serve`.
        stability: what the speakers want to be shown: every word at once, as other servers do.
        url: a server that runs already; None starts one.
        n_streams: measure these; none searches for the largest that is served in time.
        max_streams: the search goes no further.
    """

    engine: EngineConfig
    manifest: Path
    flags: tuple[str, ...] = ()
    stability: Stability = Stability.FAST
    url: str | None = None
    n_streams: tuple[int, ...] = ()
    max_streams: int = 256
    duration_s: float = 60.0
    seed: int = 1
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one N.

    Attributes:
        finalisation: end of speech, as the server has it, to final.
        after_pause: the same less the configured pause.
        cpu: None where the server's process is not known.
        broken: the bounds that do not hold; empty: N speakers are served in time.
    """

    n_streams: int
    quality: Quality
    finalisation: Distribution
    after_pause: Distribution
    work: Work
    cpu: CpuUse | None
    peak_memory_mb: float | None
    speech_share: float
    most_heard: int
    broken: tuple[str, ...]


def run(options: Options, *, output: Path | None = None) -> list[Point]:
    """Measure, print the table and, if asked, write it as JSON with all that led to it."""
    machine = describe_machine()
    console = Console(width=max(TABLE_WIDTH, Console().width), highlight=False)
    console.print(f"{machine}")
    clips = load_clips(options.manifest)
    known = know_clips(clips, options.engine)
    setting = (
        f"{options.engine.model}, {len(clips)} recordings of {options.manifest}, {options.duration_s:.0f} s, "
        f"seed {options.seed}, stability {options.stability}, flags {' '.join(options.flags) or '-'}"
    )
    console.print(setting)
    with _server(options) as (url, process):

        def measure(n_streams: int) -> Point:
            point = measure_point(options, known, n_streams, url=url, process=process)
            console.print(_sentence(point))
            return point

        if options.n_streams:
            points = [measure(n_streams) for n_streams in options.n_streams]
        else:
            points = search(measure, most=options.max_streams)
    points.sort(key=lambda point: point.n_streams)
    for table in to_tables(points):
        console.print(table)
    console.print(
        "delays in s; waste: how often audio is encoded; fallbacks: windows decoded again at full context; "
        "late: the load generator's own, in ms"
    )
    console.print(_headline(points, options))
    if output:
        report = {
            "title": "Live speakers at once, delays in seconds",
            "command": _command(options),
            "machine": asdict(machine),
            "setting": setting,
            "headings": _DELAY_HEADINGS.split("|"),
            "cells": [_delay_cells(point) for point in points],
            "options": asdict(options),
            "clips": [known_clip.clip.name for known_clip in known],
            "points": [asdict(point) for point in points],
        }
        output.write_text(json.dumps(report, indent=2, default=str) + "\n", encoding="utf-8")
    return points


def _command(options: Options) -> str:
    defaults = Options(EngineConfig(), options.manifest)
    given = (
        *engine_flags(options.engine),
        ("--stability", options.stability, defaults.stability),
        ("--streams", options.n_streams, defaults.n_streams),
        ("--max-streams", options.max_streams, defaults.max_streams),
        ("--duration-s", options.duration_s, defaults.duration_s),
        ("--seed", options.seed, defaults.seed),
    )
    return command_line("tickscribe bench capacity", given, options.flags)


def search(measure: Callable[[int], Point], *, most: int) -> list[Point]:
    """Double N until the bounds break, then bisect to about 6 %; gives all points in the order of measuring."""
    points = [measure(1)]
    served, broken = 0, most + 1
    while not points[-1].broken:
        served = points[-1].n_streams
        if served == most:
            return points
        points.append(measure(min(2 * served, most)))
    broken = points[-1].n_streams
    while broken - served > max(1, served // 16):
        points.append(measure((served + broken) // 2))
        if points[-1].broken:
            broken = points[-1].n_streams
        else:
            served = points[-1].n_streams
    return points


def verdict(quality: Quality, after_pause: Distribution, bounds: Bounds) -> tuple[str, ...]:
    """Name the bounds that do not hold; what was not measured does not hold either."""
    broken = []
    if quality.is_void:
        broken.append(f"void: the load generator was late by {1000 * quality.lateness.p99:.0f} ms itself")
    if not after_pause.p95 <= bounds.finalisation_s:
        broken.append(f"finalisation {after_pause.p95:.2f} s")
    if not quality.word.p95 <= bounds.word_s:
        broken.append(f"word delay {quality.word.p95:.2f} s")
    if not quality.drift_s_per_min <= bounds.drift_s_per_min:
        broken.append(f"drift {quality.drift_s_per_min:.2f} s/min")
    if quality.faults:
        broken.append(f"{len(quality.faults)} sessions failed: {quality.faults[0]}")
    if quality.lost_phrases:
        broken.append(f"{len(quality.lost_phrases)} phrases lost, such as {quality.lost_phrases[0]}")
    return tuple(broken)


# ------------------------------------------------------------------------------------------- measuring


def measure_point(
    options: Options, known: Sequence[KnownClip], n_streams: int, *, url: str, process: ServerProcess | None
) -> Point:
    """Let N speakers talk to a server that is idle, and judge what they got."""
    streams = compose(known, n_streams=n_streams, duration_s=options.duration_s, seed=options.seed + n_streams)
    pid = process.pid if process else None
    _until_idle(url)
    counted, used = scrape.fetch(_http(url, "/metrics")), cpu_times(pid)
    traces = run_load(
        native.NativeDialect(url, stability=options.stability),
        [Part(stream.offset_s, stream.audio) for stream in streams],
    )
    used_after, counted_after = cpu_times(pid), scrape.fetch(_http(url, "/metrics"))
    quality = judge(streams, traces, [_heard(trace) for trace in traces], warm_up_s=warm_up_s(options.duration_s))
    since = warm_up_s(options.duration_s)
    delays = [d for trace in traces for end, d in native.finalisation_s(trace.messages) if end >= since]
    after_pause = Distribution.of(delay - options.engine.pause_ms / 1000 for delay in delays)
    return Point(
        n_streams=n_streams,
        quality=quality,
        finalisation=Distribution.of(delays),
        after_pause=after_pause,
        work=scrape.work_between(counted, counted_after),
        cpu=used_after.since(used) if used and used_after else None,
        peak_memory_mb=peak_memory_mb(pid),
        speech_share=speech_share(streams, known),
        most_heard=most_heard(streams),
        broken=verdict(quality, after_pause, options.bounds),
    )


def _heard(trace: Trace) -> Heard:
    return Heard(native.to_updates(trace.messages), trace.fault or native.fault(trace.messages))


def warm_up_s(duration_s: float) -> float:
    """How much of the beginning is not judged."""
    return min(10.0, duration_s / 6)


@contextmanager
def _server(options: Options) -> Iterator[tuple[str, ServerProcess | None]]:
    """Start a server, or take the one that runs at `options.url`."""
    if options.url is not None:
        yield options.url, None
        return
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        most = max(options.n_streams or (options.max_streams,)) + _SPARE_SESSIONS
        command = native.serve_command(options.engine, port, max_sessions=most, flags=options.flags)
        with running(command, log=Path(folder) / "server.log", ready_url=f"http://127.0.0.1:{port}/readyz") as process:
            yield f"ws://127.0.0.1:{port}/v1/stream", process


def _http(url: str, path: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(("https" if parts.scheme == "wss" else "http", parts.netloc, path, "", ""))


def _until_idle(url: str) -> None:
    """Wait until nobody is connected any more: what an overloaded server still answers is not the next one's load."""
    deadline = time.monotonic() + _IDLE_TIMEOUT_S
    while time.monotonic() < deadline:
        with urllib.request.urlopen(_http(url, "/v1/stats"), timeout=10) as answer:
            if json.load(answer)["sessions"] == 0:
                return
        time.sleep(_RETRY_S)


# ------------------------------------------------------------------------------------------- showing


def _sentence(point: Point) -> str:
    return f"{point.n_streams} streams: {'; '.join(point.broken) or 'in time'}"


def _headline(points: Sequence[Point], options: Options) -> str:
    served = [point.n_streams for point in points if not point.broken]
    bounds = options.bounds
    rules = (
        f"p95 finalisation <= {bounds.finalisation_s:.1f} s after the pause of {options.engine.pause_ms} ms "
        f"({bounds.finalisation_s + options.engine.pause_ms / 1000:.1f} s after the end of speech), "
        f"p95 word delay <= {bounds.word_s:.1f} s, no drift, nothing dropped"
    )
    return f"{max(served, default=0)} streams at once: {rules}"


_DELAY_HEADINGS = (
    "streams|in time|final p50|p95|after pause p95|word p50|p95|committed p95|drift/min|WER %|offline WER %"
)


def to_tables(points: Sequence[Point]) -> tuple[Table, Table]:
    """Delays and words; then what it cost. One line per N each."""
    delays = _table(_DELAY_HEADINGS)
    costs = _table("streams|waste|fallbacks %|CPU %|others %|MB|late p50|p99|encoder batch: ticks|decoder batch: ticks")
    for point in points:
        delays.add_row(*_delay_cells(point))
        costs.add_row(*_cost_cells(point))
    return delays, costs


def _delay_cells(point: Point) -> tuple[str, ...]:
    quality = point.quality
    return (
        str(point.n_streams),
        "no" if point.broken else "yes",
        f"{point.finalisation.p50:.2f}",
        f"{point.finalisation.p95:.2f}",
        f"{point.after_pause.p95:.2f}",
        f"{quality.word.p50:.2f}",
        f"{quality.word.p95:.2f}",
        f"{quality.word_committed.p95:.2f}",
        f"{quality.drift_s_per_min:+.2f}",
        f"{100 * quality.wer:.1f}",
        f"{100 * quality.offline_wer:.1f}",
    )


def _cost_cells(point: Point) -> tuple[str, ...]:
    quality, work, cpu = point.quality, point.work, point.cpu
    return (
        str(point.n_streams),
        f"{work.waste:.2f}",
        f"{100 * work.fallback_rate:.2f}",
        f"{cpu.server_percent:.0f}" if cpu else "-",
        f"{cpu.others_percent:.0f}" if cpu else "-",
        f"{point.peak_memory_mb:.0f}" if point.peak_memory_mb else "-",
        f"{1000 * quality.lateness.p50:.1f}",
        f"{1000 * quality.lateness.p99:.1f}",
        _histogram(work.encoder_batch),
        _histogram(work.decoder_batch),
    )


def _table(headings: str) -> Table:
    table = Table(box=None)
    for heading in headings.split("|"):
        table.add_column(heading, justify="left" if ":" in heading else "right", no_wrap=":" not in heading)
    return table


def _histogram(buckets: dict[str, int]) -> str:
    """Such as 1:20 2:5 4:1, upper bound of the bucket and ticks."""
    return " ".join(f"{bound}:{count}" for bound, count in buckets.items()) or "-"
