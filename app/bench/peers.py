"""`tickscribe bench peers`: the same speakers and the same load for other live Whisper servers, in the same run.

Live: for every N each server is started, warmed up with one speaker, loaded with the same N speakers, and stopped; the
order is turned round in every other round, so that a slow minute of the machine falls on all. A server that has become
hopeless is not asked for more speakers. Files: the same audio as fast as it is taken. A peer that does not run is
reported with its error. All are judged by the same rules, from what they show: nobody's own timestamps are used.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

from rich.console import Console

from app.bench import peer_arms
from app.bench.capacity import warm_up_s
from app.bench.clips import load_clips
from app.bench.load import Part, run_load
from app.bench.machine import Machine, describe_machine
from app.bench.peer_arms import Arm
from app.bench.peer_environment import PeerUnavailable, Weights, prepare_weights
from app.bench.peer_files import (
    FileResult,
    Transcriber,
    faster_whisper_transcriber,
    measure_files,
    our_transcriber,
)
from app.bench.point import Quality, judge
from app.bench.process import CpuUse, ServerFailed, cpu_times, free_port, last_lines, peak_memory_mb, running
from app.bench.reference import KnownClip, know_clips
from app.bench.report import TABLE_WIDTH, Report, command_line
from app.bench.streams import compose
from engine.config import EngineConfig
from engine.types import Stability

_Made = TypeVar("_Made")

_HOPELESS = 3  # times the bound: more speakers are not tried
_WARM_UP_SPEAKER_S = 8.0
_WORD_BOUND_S = 2.0
_DRIFT_BOUND_S_PER_MIN = 0.5


@dataclass(frozen=True, slots=True)
class Options:
    """What to compare.

    Attributes:
        engine: model and pause of this project's server.
        flags: its further flags.
        peers_dir: cache of the peers' environments.
        torch_index: package index with a CPU build of torch; None takes pip's own.
        peer_threads: every number of threads to give to peers.
        streams: every N to measure.
        only: names of arms must contain one of these; empty takes all.
        file_minutes: audio for the files; 0 leaves them out.
    """

    engine: EngineConfig
    manifest: Path
    peers_dir: Path
    flags: tuple[str, ...] = ()
    torch_index: str | None = None
    peer_threads: tuple[int, ...] = (1, 2)
    streams: tuple[int, ...] = (1, 2, 4, 8)
    only: tuple[str, ...] = ()
    duration_s: float = 60.0
    n_rounds: int = 2
    file_minutes: float = 30.0
    seed: int = 1

    def takes(self, name: str) -> bool:
        """Whether an arm was asked for."""
        return not self.only or any(part in name for part in self.only)


@dataclass(frozen=True, slots=True)
class Measured:
    """One server with N speakers, once; `failure` where it did not come up, and then nothing else."""

    arm: str
    n_streams: int
    quality: Quality | None = None
    cpu: CpuUse | None = None
    peak_memory_mb: float | None = None
    failure: str | None = None

    @property
    def in_time(self) -> bool:
        """The bounds that need nobody's endpoint: words are shown in time, no drift, nothing dropped."""
        quality = self.quality
        return (
            quality is not None
            and not quality.is_void
            and quality.word.p95 <= _WORD_BOUND_S
            and quality.drift_s_per_min <= _DRIFT_BOUND_S_PER_MIN
            and not quality.faults
            and not quality.lost_phrases
        )

    @property
    def is_hopeless(self) -> bool:
        """With more speakers it can only be worse."""
        return self.quality is None or not self.quality.word.p95 <= _HOPELESS * _WORD_BOUND_S


def run(options: Options, *, output: Path | None = None, files_output: Path | None = None) -> None:
    """Measure everything, print the tables and, if asked, write them as JSON."""
    machine = describe_machine()
    console = Console(width=max(TABLE_WIDTH, Console().width), highlight=False)
    console.print(f"{machine}")
    known = know_clips(load_clips(options.manifest), options.engine)
    weights = prepare_weights(options.engine.model, options.peers_dir)
    arms, unavailable = _available(_arm_makers(options, weights), options, console)
    console.print("\n".join(f"{arm.name}: {arm.settings}" for arm in arms))
    live = _measure_live(arms, known, options, console)
    arm_settings = {arm.name: arm.settings for arm in arms}
    live_report(live, machine, options, arm_settings, unavailable).publish(output)
    if not options.file_minutes:
        return
    transcribers, missing = _available(_transcriber_makers(options, weights), options, console)
    n_files = max(1, round(options.file_minutes / 5))
    long = compose(known, n_streams=n_files, duration_s=60 * options.file_minutes / n_files, seed=options.seed)
    files = measure_files(long, transcribers, n_rounds=options.n_rounds)
    files_report(files, machine, options, missing).publish(files_output)


def _arm_makers(options: Options, weights: Weights) -> dict[str, Callable[[], Arm]]:
    """Every server by its name, a peer once for each number of threads."""
    engine, folder = options.engine, options.peers_dir

    def live(batched: bool, n_threads: int) -> Arm:
        return peer_arms.whisper_live(
            folder, weights, batched=batched, n_threads=n_threads, torch_index=options.torch_index
        )

    def kit(policy: str, n_threads: int) -> Arm:
        return peer_arms.whisper_live_kit(
            folder, weights, policy=policy, n_threads=n_threads, torch_index=options.torch_index
        )

    makers: dict[str, Callable[[], Arm]] = {
        f"tickscribe {stability}": partial(peer_arms.ours, engine.model, engine.pause_ms, options.flags, stability)
        for stability in (Stability.BALANCED, Stability.FAST)
    }
    for n in options.peer_threads:
        makers[f"whisper-live default t{n}"] = partial(live, False, n)
        makers[f"whisper-live batched t{n}"] = partial(live, True, n)
        makers[f"whisperlivekit simulstreaming t{n}"] = partial(kit, "simulstreaming", n)
        makers[f"whisperlivekit localagreement t{n}"] = partial(kit, "localagreement", n)
    return makers


def _transcriber_makers(options: Options, weights: Weights) -> dict[str, Callable[[], tuple[str, Transcriber]]]:
    def faster_whisper(name: str, batch_size: int, n_threads: int) -> tuple[str, Transcriber]:
        return name, faster_whisper_transcriber(
            options.peers_dir,
            weights.ctranslate2,
            batch_size=batch_size,
            n_threads=n_threads,
            torch_index=options.torch_index,
        )

    makers: dict[str, Callable[[], tuple[str, Transcriber]]] = {
        "tickscribe": lambda: ("tickscribe file --pace 0", our_transcriber(options.engine.model, options.flags))
    }
    for n in options.peer_threads:
        for batch_size in (0, 8, 16):
            name = f"faster-whisper {f'batched {batch_size}' if batch_size else 'sequential'} t{n}"
            makers[name] = partial(faster_whisper, name, batch_size, n)
    return makers


def _available(
    makers: dict[str, Callable[[], _Made]], options: Options, console: Console
) -> tuple[list[_Made], dict[str, str]]:
    """Make what was asked for; give also what cannot be made, with the reason."""
    made, unavailable = [], {}
    for name, make in makers.items():
        if options.takes(name):
            try:
                made.append(make())
            except PeerUnavailable as error:
                unavailable[name] = str(error)
                console.print(f"{name} is left out: {error}")
    return made, unavailable


# ------------------------------------------------------------------------------------------- live


def _measure_live(
    arms: Sequence[Arm], known: Sequence[KnownClip], options: Options, console: Console
) -> list[Measured]:
    measured: list[Measured] = []
    hopeless: set[str] = set()
    for n_streams in options.streams:
        for index in range(options.n_rounds):
            for arm in arms[:: 1 if index % 2 == 0 else -1]:
                if arm.name not in hopeless:
                    one = measure(arm, known, n_streams, options, seed=options.seed + index)
                    measured.append(one)
                    console.print(_sentence(one))
        latest = [one for one in measured if one.n_streams == n_streams]
        hopeless |= {arm.name for arm in arms if all(one.is_hopeless for one in latest if one.arm == arm.name)}
    return measured


def measure(arm: Arm, known: Sequence[KnownClip], n_streams: int, options: Options, *, seed: int) -> Measured:
    """Start a server, warm it up, load it, judge what came back, stop it."""
    streams = compose(known, n_streams=n_streams, duration_s=options.duration_s, seed=seed)
    (first,) = compose(known, n_streams=1, duration_s=_WARM_UP_SPEAKER_S, seed=options.seed)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        try:
            with running(arm.command(port), log=log, ready_url=arm.ready_url.format(port=port)) as process:
                warm = run_load(arm.dialect(port), [Part(0.0, first.audio)])
                if not warm[0].messages:
                    raise ServerFailed(f"{warm[0].fault}; its log ends with:\n{last_lines(log)}")
                before = cpu_times(process.pid)
                traces = run_load(arm.dialect(port), [Part(stream.offset_s, stream.audio) for stream in streams])
                after = cpu_times(process.pid)
                memory = peak_memory_mb(process.pid)
        except ServerFailed as error:
            return Measured(arm.name, n_streams, failure=str(error))
    quality = judge(streams, traces, [arm.heard(trace) for trace in traces], warm_up_s=warm_up_s(options.duration_s))
    cpu = after.since(before) if before and after else None
    return Measured(arm.name, n_streams, quality, cpu, memory)


# ------------------------------------------------------------------------------------------- showing


def _sentence(one: Measured) -> str:
    quality = one.quality
    if quality is None:
        return f"{one.arm}, {one.n_streams} streams: {one.failure}"
    troubles = [*quality.faults[:1], *(f"{name} lost" for name in quality.lost_phrases[:1])]
    troubles += ["void: the load generator was late"] if quality.is_void else []
    return f"{one.arm}, {one.n_streams} streams: word delay p95 {quality.word.p95:.2f} s{'; '.join(['', *troubles])}"


def live_report(
    measured: Sequence[Measured],
    machine: Machine,
    options: Options,
    arms: Mapping[str, str],
    unavailable: Mapping[str, str],
) -> Report:
    """One line per server and N speakers; medians over rounds, delays in s.

    Args:
        arms: settings of each server.
        unavailable: servers that could not be made, with the reason.
    """
    groups: dict[tuple[str, int], list[Measured]] = {}
    for one in measured:
        groups.setdefault((one.arm, one.n_streams), []).append(one)
    about = [f"{name}: {settings}" for name, settings in arms.items()]
    about += [f"{name} did not run: {reason}" for name, reason in unavailable.items()]
    return Report(
        title="Live, beside others: from the end of a word to its showing, from the end of a phrase to its final",
        command=_command(options),
        machine=machine,
        setting=f"{options.engine.model}, {options.duration_s:.0f} s, {options.n_rounds} round(s); {'; '.join(about)}",
        headings=tuple("server|speakers|in time|word p50|p95|final p95|drift/min|WER %|offline|CPU %|MB".split("|")),
        cells=tuple(_live_cells(arm, n_streams, group) for (arm, n_streams), group in groups.items()),
        rows=tuple(asdict(one) | {"in_time": one.in_time} for one in measured),
    )


def _live_cells(arm: str, n_streams: int, group: Sequence[Measured]) -> tuple[str, ...]:
    good = [one.quality for one in group if one.quality]
    if not good:
        return (arm, str(n_streams), "failed", *"--------")
    return (
        arm,
        str(n_streams),
        f"{sum(one.in_time for one in group)}/{len(group)}",
        f"{median(q.word.p50 for q in good):.2f}",
        f"{median(q.word.p95 for q in good):.2f}",
        f"{median(q.phrase_final.p95 for q in good):.2f}",
        f"{median(q.drift_s_per_min for q in good):+.2f}",
        f"{100 * median(q.wer for q in good):.1f}",
        f"{100 * median(q.offline_wer for q in good):.1f}",
        f"{median(one.cpu.server_percent for one in group if one.cpu):.0f}" if group[0].cpu else "-",
        f"{max(one.peak_memory_mb or 0 for one in group):.0f}",
    )


def _command(options: Options) -> str:
    defaults = Options(EngineConfig(), options.manifest, options.peers_dir)
    given = (
        ("--model", options.engine.model, defaults.engine.model),
        ("--pause-ms", options.engine.pause_ms, defaults.engine.pause_ms),
        ("--streams", options.streams, defaults.streams),
        ("--peer-threads", options.peer_threads, defaults.peer_threads),
        ("--only", options.only, defaults.only),
        ("--duration-s", options.duration_s, defaults.duration_s),
        ("--rounds", options.n_rounds, defaults.n_rounds),
        ("--file-minutes", options.file_minutes, defaults.file_minutes),
        ("--seed", options.seed, defaults.seed),
    )
    return command_line("tickscribe bench peers", given, options.flags)


def files_report(
    results: Sequence[FileResult], machine: Machine, options: Options, unavailable: Mapping[str, str]
) -> Report:
    """One line per arm; medians over rounds."""
    groups: dict[str, list[FileResult]] = {}
    for result in results:
        groups.setdefault(result.name, []).append(result)
    setting = f"{options.engine.model}, {options.file_minutes:g} minutes of audio, {options.n_rounds} round(s)"
    return Report(
        title="Files, beside others",
        command=_command(options),
        machine=machine,
        setting="; ".join([setting, *(f"{name} did not run: {reason}" for name, reason in unavailable.items())]),
        headings=("arm", "seconds", "times real time", "WER %"),
        cells=tuple(
            (
                name,
                f"{median(result.seconds for result in group):.1f}",
                f"{1 / median(result.rtf for result in group):.1f}",
                f"{100 * median(result.wer for result in group):.2f}",
            )
            for name, group in groups.items()
        ),
        rows=tuple(asdict(result) for result in results),
    )
