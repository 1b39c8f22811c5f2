"""`tickscribe bench encoder`: one encoder run per tick against one per window.

Closed loop: `concurrency` requests are always under way; each that ends is replaced by the next clip. Scheduler and
runner are the engine's own, without sessions and sockets, so that only the encoder arm differs. Arms are interleaved
round by round (A B, B A, ...), so that a slow minute of the machine falls on both. What is printed is the median over
rounds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from app.bench.clips import Clip, load_clips
from app.bench.machine import describe_machine
from app.bench.report import Report
from app.bench.scoring import word_error_rate
from engine.compute.runner import ModelRunner
from engine.config import EncoderMode, EngineConfig
from engine.decode.rounds import run_tick
from engine.decode.scheduler import Scheduler
from engine.decode.sequence import Sequence as Running
from engine.models.registry import load_model
from engine.models.whisper.tokenizer import Tokenizer
from engine.session.requests import Request, Window


@dataclass(frozen=True, slots=True)
class Round:
    """One arm at one concurrency, once.

    Attributes:
        encoder_ms: of each tick in which the encoder ran.
        batch_sizes: how often each number of windows shared a tick's encoder work.
        texts: clip name -> text.
    """

    seconds: float
    n_requests: int
    encoder_ms: tuple[float, ...]
    batch_sizes: Counter[int]
    texts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: medians over rounds."""

    concurrency: int
    arm: str
    requests_per_s: float
    encoder_ms_per_tick: float
    encoder_ms_per_window: float
    mean_batch: float
    largest_batch: int
    wer: float


def run(
    config: EngineConfig,
    *,
    manifest: Path,
    concurrencies: Sequence[int] = (1, 4, 16, 64),
    n_requests: int = 64,
    n_rounds: int = 2,
    output: Path | None = None,
) -> list[Row]:
    """Measure both arms, print the table and, if asked, write it as JSON."""
    clips = load_clips(manifest)
    checkpoint = load_model(config.model)
    tokenizer = Tokenizer(checkpoint)
    config = replace(config, n_slots=max(concurrencies))
    runners = {mode: ModelRunner(checkpoint, tokenizer, replace(config, encoder=mode)) for mode in EncoderMode}
    for runner in runners.values():
        runner.warm_up()
    rows = []
    for concurrency in concurrencies:
        rounds: dict[EncoderMode, list[Round]] = {mode: [] for mode in EncoderMode}
        for index in range(n_rounds):
            for mode in list(EncoderMode)[:: 1 if index % 2 == 0 else -1]:
                rounds[mode].append(_run_round(runners[mode], tokenizer, clips, concurrency, n_requests))
        rows += [_to_row(mode, concurrency, rounds[mode], clips) for mode in EncoderMode]
    Report(
        title="One encoder run per tick against one per window",
        command="tickscribe bench encoder",
        machine=describe_machine(),
        setting=f"{checkpoint.name}, {runners[config.encoder].precision}, {n_requests} requests a round",
        headings=("encoder", "at once", "requests/s", "ms per tick", "ms per window", "mean batch", "largest", "WER %"),
        cells=tuple(_to_cells(row) for row in rows),
        rows=tuple(asdict(row) for row in rows),
    ).publish(output)
    return rows


def _run_round(
    runner: ModelRunner, tokenizer: Tokenizer, clips: Sequence[Clip], concurrency: int, n_requests: int
) -> Round:
    """Keep `concurrency` requests under way until `n_requests` are answered."""
    scheduler = Scheduler(concurrency)
    encoder_ms: list[float] = []
    batch_sizes: Counter[int] = Counter()
    texts: dict[str, str] = {}
    n_submitted = n_finished = 0
    started = time.perf_counter()
    while n_finished < n_requests:
        while n_submitted < n_requests and n_submitted - n_finished < concurrency:
            scheduler.submit(_to_request(n_submitted, clips[n_submitted % len(clips)]))
            n_submitted += 1
        finished: list[Running] = []
        encoder = run_tick(scheduler, runner, scheduler.admit(), finished.append).encoder
        if encoder.windows:
            encoder_ms.append(encoder.ms)
            batch_sizes[encoder.windows] += 1
        for sequence in finished:
            clip = clips[sequence.request.utterance_id % len(clips)]
            texts[clip.name] = tokenizer.decode(sequence.tokens)
        n_finished += len(finished)
    return Round(time.perf_counter() - started, n_requests, tuple(encoder_ms), batch_sizes, texts)


def _to_request(number: int, clip: Clip) -> Request:
    return Request(
        session_id="bench",
        utterance_id=number,
        # A window of its own on the clock, so that no request finds its encoder output held by an earlier one.
        window=Window(number, number + len(clip.audio)),
        audio=clip.audio,
        prefix=(),
        draft=(),
        language="en",
        wants_words=False,
        is_final=True,
        ready_at=float(number),
    )


def _to_row(mode: EncoderMode, concurrency: int, rounds: Sequence[Round], clips: Sequence[Clip]) -> Row:
    sizes = sum((r.batch_sizes for r in rounds), Counter[int]())
    references = {clip.name: clip.reference for clip in clips}
    texts = rounds[0].texts
    return Row(
        concurrency=concurrency,
        arm=mode.value,
        requests_per_s=median(r.n_requests / r.seconds for r in rounds),
        encoder_ms_per_tick=median(ms for r in rounds for ms in r.encoder_ms),
        encoder_ms_per_window=median(sum(r.encoder_ms) / r.n_requests for r in rounds),
        mean_batch=sum(size * n for size, n in sizes.items()) / sizes.total(),
        largest_batch=max(sizes),
        wer=word_error_rate([references[name] for name in texts], list(texts.values())),
    )


def _to_cells(row: Row) -> tuple[str, ...]:
    return (
        row.arm,
        str(row.concurrency),
        f"{row.requests_per_s:.2f}",
        f"{row.encoder_ms_per_tick:.0f}",
        f"{row.encoder_ms_per_window:.0f}",
        f"{row.mean_batch:.1f}",
        str(row.largest_batch),
        f"{100 * row.wer:.2f}",
    )
