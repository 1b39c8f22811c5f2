"""`tickscribe eval`: every arm over one manifest, judged by the same rules, as a table, JSON and a page."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from app.bench.clips import ClipError, Entry, read_manifest
from app.bench.load import Trace
from app.bench.machine import describe_machine
from app.bench.point import MAX_LATENESS_S
from app.bench.reference import speech_span_s
from app.bench.report import Report, command_line, engine_flags
from app.bench.scoring import CHARACTER_LANGUAGES, Scorer
from app.eval import offline, peer, stepped, streamed
from app.eval.measures import SpokenWord, read_words, to_timed, word_time_errors
from app.eval.offline import Transcript
from app.eval.options import START_STEP_MS, Arm, Options
from app.eval.page import to_html
from app.eval.results import ArmResult, ClipResult, group_of, to_row, to_table
from app.eval.streamed import Timing
from engine.compute.vad import SpeechDetector
from engine.config import Context, EngineConfig, Precision
from engine.core import build_engine
from engine.models.registry import load_model
from engine.models.whisper.tokenizer import Tokenizer
from engine.types import Stability

_BAD_RATE = 0.5  # of errors; clips above it are named
_MOST_NAMED = 12


def run(options: Options, *, output: Path | None = None, page: Path | None = None) -> list[ArmResult]:
    """Evaluate, print the table, and write it as JSON and as a page where these are named."""
    machine, scorer = describe_machine(), Scorer()
    entries, left_out = select(read_manifest(options.manifest), options)
    known = {entry.name: tuple(_words_of(entry)) for entry in entries if entry.words}
    arms = _run_arms(options, entries, known, scorer)
    headings, cells = to_table(arms)
    report = Report(
        title=f"{options.engine.model}: what the text is worth",
        command=_command(options),
        machine=machine,
        setting=_setting(options, entries, left_out, arms),
        headings=headings,
        cells=cells,
        rows=tuple(to_row(arm) for arm in arms),
    )
    report.publish(output)
    for line in _troubles(arms):
        Console(highlight=False, markup=False).print(line)
    if page:
        page.write_text(to_html(report, arms, scorer), encoding="utf-8")
    return arms


def select(entries: Sequence[Entry], options: Options) -> tuple[list[Entry], int]:
    """Take the clips that were asked for and that the model can speak, as often as they are to be heard.

    Returns:
        The clips, and how many of the manifest were left out because of their language.

    Raises:
        ClipError: none is left.
    """
    asked = [
        entry
        for entry in entries
        if (not options.kinds or entry.kind in options.kinds)
        and (not options.languages or entry.language in options.languages)
    ]
    spoken = (None, *Tokenizer(load_model(options.engine.model)).languages)
    taken = [entry for entry in asked if entry.language in spoken]
    if not taken:
        raise ClipError(
            f"{options.manifest} has no clip of these kinds and languages that {options.engine.model} speaks."
        )
    starts = range(0, options.n_starts * START_STEP_MS, START_STEP_MS)
    return [_later(entry, ms) for entry in taken for ms in starts], len(asked) - len(taken)


def _later(entry: Entry, ms: int) -> Entry:
    return replace(entry, name=f"{entry.name} +{ms} ms", silence_ms=ms) if ms else entry


def _words_of(entry: Entry) -> Iterator[SpokenWord]:
    """The words of a recording for which there is a table of them, on the clock of its audio."""
    assert entry.words
    late_s = entry.silence_ms / 1000
    for word in read_words(entry.words):
        yield SpokenWord(word.word, word.start_s + late_s, word.end_s + late_s)


# ------------------------------------------------------------------------------------------- running


def _run_arms(
    options: Options, entries: Sequence[Entry], known: dict[str, tuple[SpokenWord, ...]], scorer: Scorer
) -> list[ArmResult]:
    """Run the arms; the offline ones come first, because their word times say when the streamed words were over."""
    timed = dict(known)
    as_file = replace(options.engine, pause_ms=options.file_pause_ms)
    configs = {
        Arm.OFFLINE: as_file,
        Arm.FULL_PAD: replace(as_file, context=Context.FULL, dtype=Precision.FP32, n_branches=0),
    }
    offline_results = []
    for arm, config in configs.items():
        if arm in options.arms:
            settings, heard = _transcribe_offline(arm, config, entries)
            offline_results.append(ArmResult(arm, settings, _judged(entries, heard, known, scorer)))
            # The words of the padded arm, which runs last, are the truest.
            timed |= {e.name: heard[i].words for i, e in enumerate(entries) if e.name not in known}
    live_results = []
    for arm, stability in itertools.product(Arm, options.stabilities):
        if arm in options.arms and arm not in configs:
            how, pace, traces = _speak(arm, stability, options, entries)
            heard, timings = _read(traces, pace, options, entries, timed)
            settings = f"{how}, cut at pauses of {options.engine.pause_ms} ms, other settings those of offline"
            name = f"{arm} {stability}" if len(options.stabilities) > 1 else arm
            live_results.append(ArmResult(name, settings, _judged(entries, heard, known, scorer, timings)))
    peer_results = []
    if options.peer:
        with _progress(options.peer, len(entries)) as advance:
            heard = peer.transcribe_all(options.engine.model, entries, peers_dir=options.peers_dir, on_done=advance)
        peer_results.append(ArmResult(options.peer, peer.SETTINGS, _judged(entries, heard, known, scorer)))
    return [*live_results, *offline_results, *peer_results]


def _transcribe_offline(arm: Arm, config: EngineConfig, entries: Sequence[Entry]) -> tuple[str, list[Transcript]]:
    engine = build_engine(config)
    engine.warm_up()
    heard = []
    with _progress(arm, len(entries)) as advance:
        for entry in entries:
            heard.append(offline.transcribe(engine, entry.name, entry.load(), entry.language))
            advance()
    cut = f"cut at pauses of {config.pause_ms} ms"
    weighed = f"{config.n_branches} branches" if config.n_branches else "greedy"
    return f"context {config.context}, {engine.info.dtype} on {engine.info.device}, {weighed}, {cut}", heard


def _speak(
    arm: Arm, stability: Stability, options: Options, entries: Sequence[Entry]
) -> tuple[str, float, list[Trace]]:
    """Let the recordings be spoken; give also how, and how many times as fast as real."""
    if arm is Arm.STEPPED:
        return "100 ms at a time, everything computed in between", 1.0, _speak_in_steps(stability, options, entries)
    with (
        streamed.serving(options.engine, n_streams=options.n_streams) as url,
        _progress(arm, len(entries)) as advance,
    ):
        traces = streamed.stream_all(
            url, entries, pace=options.pace, n_streams=options.n_streams, stability=stability, on_done=advance
        )
    return f"{options.n_streams} at once at {options.pace:g} times real time", options.pace, traces


def _speak_in_steps(stability: Stability, options: Options, entries: Sequence[Entry]) -> list[Trace]:
    engine = build_engine(options.engine)
    engine.warm_up()
    traces = []
    with _progress(Arm.STEPPED, len(entries)) as advance:
        for entry in entries:
            traces.append(stepped.speak(engine, entry.name, entry.load(), entry.language, stability))
            advance()
    return traces


def _read(
    traces: Sequence[Trace],
    pace: float,
    options: Options,
    entries: Sequence[Entry],
    words: dict[str, tuple[SpokenWord, ...]],
) -> tuple[list[Transcript], list[Timing]]:
    detector = SpeechDetector()
    timings = []
    for entry, trace in zip(entries, traces, strict=True):
        span = speech_span_s(detector, entry.load()) if entry.reference else None
        apart = entry.language not in CHARACTER_LANGUAGES  # words that are not set apart cannot be found in a text
        timings.append(
            streamed.judge(
                trace,
                language=entry.language,
                words=to_timed(words.get(entry.name, ())) if apart and entry.reference else (),
                onset_s=span[0] if span else None,
                pace=pace,
                pause_s=options.engine.pause_ms / 1000,
            )
        )
    return [streamed.to_transcript(trace) for trace in traces], timings


def _judged(
    entries: Sequence[Entry],
    heard: Sequence[Transcript],
    known: dict[str, tuple[SpokenWord, ...]],
    scorer: Scorer,
    timings: Sequence[Timing] | None = None,
) -> tuple[ClipResult, ...]:
    judged = []
    for index, (entry, transcript) in enumerate(zip(entries, heard, strict=True)):
        starts, ends = word_time_errors(known.get(entry.name, ()), transcript.words)
        judged.append(
            ClipResult(
                entry=entry,
                group=group_of(entry),
                text=transcript.text,
                errors=scorer.count(entry.reference, transcript.text, entry.language if entry.reference else None),
                start_errors_s=tuple(starts),
                end_errors_s=tuple(ends),
                timing=timings[index] if timings else None,
                fault=transcript.fault,
            )
        )
    return tuple(judged)


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show on stderr how many clips are done."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


# ------------------------------------------------------------------------------------------- telling


def _command(options: Options) -> str:
    defaults = Options(EngineConfig(), options.manifest)
    given = (
        *engine_flags(options.engine),
        ("--file-pause-ms", options.file_pause_ms, defaults.file_pause_ms),
        ("--pace", options.pace, defaults.pace),
        ("--streams", options.n_streams, defaults.n_streams),
        ("--starts", options.n_starts, defaults.n_starts),
        ("--stability", options.stabilities, defaults.stabilities),
        ("--peer", options.peer, defaults.peer),
        ("--arm", tuple(arm for arm in Arm if arm in options.arms), defaults.arms),
        ("--kind", options.kinds, defaults.kinds),
        ("--language", options.languages, defaults.languages),
    )
    return command_line("tickscribe eval", given)


def _setting(options: Options, entries: Sequence[Entry], left_out: int, arms: Sequence[ArmResult]) -> str:
    manifest = options.manifest.name if options.manifest.is_absolute() else options.manifest
    parts = [f"{len(entries) // options.n_starts} clips of {manifest}, 95 % intervals over clips"]
    if options.n_starts > 1:
        parts.append(f"each heard {options.n_starts} times, each time behind {START_STEP_MS} ms more of silence")
    if left_out:
        parts.append(f"clips left out, of languages that {options.engine.model} does not speak: {left_out}")
    parts += [f"{arm.name}: {arm.settings}" for arm in arms]
    return "; ".join(parts)


def _troubles(arms: Sequence[ArmResult]) -> Iterator[str]:
    """Everything that a reader of the table should not overlook."""
    for arm in arms:
        if arm.lateness_s.p99 > MAX_LATENESS_S:
            late_ms = 1000 * arm.lateness_s.p99
            yield f"{arm.name}: delays are void, the speakers themselves were late by {late_ms:.0f} ms (p99)"
        for fault in arm.faults:
            yield f"{arm.name}: {fault}"
        bad = [clip for clip in arm.clips if clip.errors.rate > _BAD_RATE or clip.invented_words]
        for clip in sorted(bad, key=lambda clip: -clip.errors.n)[:_MOST_NAMED]:
            said = f"{clip.errors.n} errors to {clip.errors.n_reference}" if clip.entry.reference else "nobody speaks"
            yield f"{arm.name}: {clip.entry.name}, {said}: {clip.text}"
