"""`tickscribe bench stream`: what a live stream costs, one saving after the other.

Every clip is streamed through a session of its own in 100 ms chunks; after each chunk the engine runs until it has
nothing to do, so the audio is the only clock and every arm sees the same windows. Arms add one flag at a time. Counted
per second of speech: encoder positions, decoder passes, the passes that plain greedy decoding would have taken for the
same texts, and time. Partials are compared, word by word, with those of the arm that encodes every window anew; finals
with the references.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from app.bench.clips import Clip, load_clips
from app.bench.machine import describe_machine
from app.bench.report import Report
from app.bench.scoring import word_error_rate
from engine.config import Context, EngineConfig, Precision
from engine.core import Engine, build_engine
from engine.types import SAMPLE_RATE, Final, Partial, SessionSettings, TickStats

_CHUNK = SAMPLE_RATE // 10
_LEAD = np.zeros(SAMPLE_RATE // 2, dtype=np.float32)  # silence before a clip
_TRAIL = np.zeros(SAMPLE_RATE, dtype=np.float32)  # and behind it: the pause that ends the utterance

Arms = dict[str, dict[str, object]]  # name -> flags that differ from the arm before

ARMS: Arms = {
    "full pad": {
        "context": Context.FULL,
        "freeze_after_s": 0.0,
        "draft": False,
        "dtype": Precision.FP32,
        "n_branches": 0,
    },
    "+ silence tail": {"context": Context.TAIL},
    "+ draft": {"draft": True},
    "+ frozen prefix": {"freeze_after_s": None},
    "+ int8": {"dtype": Precision.INT8},
    "+ branches": {"n_branches": EngineConfig().n_branches},
}
_REFERENCE_ARM = "+ draft"  # the last one in which every partial is encoded whole
_WHOLE = "whole"


@dataclass(slots=True)
class Tally:
    """What streaming all clips through one arm gave.

    Attributes:
        partials: text of each partial by clip and end of its window.
        finals: text of each clip.
    """

    seconds: float = 0.0
    positions: int = 0
    passes: int = 0
    greedy_passes: int = 0
    encoder_ms: float = 0.0
    decode_ms: float = 0.0
    retries: int = 0
    windows: int = 0
    partials: dict[tuple[str, int], str] = field(default_factory=dict)
    finals: dict[str, str] = field(default_factory=dict)

    def add(self, stats: TickStats) -> None:
        """Count one tick."""
        self.positions += stats.encoder_positions
        self.windows += stats.encoder_batch
        self.passes += stats.passes
        self.greedy_passes += stats.greedy_passes
        self.encoder_ms += stats.encoder_ms
        self.decode_ms += stats.decode_ms
        self.retries += stats.retries


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; everything but the rates is per second of speech."""

    arm: str
    positions: float
    passes: float
    greedy_passes: float
    encoder_ms: float
    decode_ms: float
    partial_difference: float
    wer: float
    retry_rate: float


def freezing_arms(freeze_after_s: Sequence[float]) -> Arms:
    """Return arms that differ in how soon positions are frozen, behind one that freezes none; all in float32."""
    whole: Arms = {_WHOLE: {"freeze_after_s": 0.0, "dtype": Precision.FP32, "n_branches": 0}}
    return whole | {f"frozen after {seconds:g} s": {"freeze_after_s": seconds} for seconds in freeze_after_s}


def run(
    config: EngineConfig, *, manifest: Path, freeze_after_s: Sequence[float] = (), output: Path | None = None
) -> list[Row]:
    """Stream the clips through every arm, print the table and, if asked, write it as JSON.

    Args:
        freeze_after_s: compare these in place of one saving after the other.
    """
    clips = load_clips(manifest)
    arms, reference = (freezing_arms(freeze_after_s), _WHOLE) if freeze_after_s else (ARMS, _REFERENCE_ARM)
    tallies: dict[str, Tally] = {}
    for arm, flags in arms.items():
        config = replace(config, **flags)  # type: ignore[arg-type]
        tallies[arm] = stream_all(build_engine(config), clips)
    rows = [_to_row(arm, tally, tallies[reference], clips) for arm, tally in tallies.items()]
    Report(
        title="What a live stream costs, per second of speech",
        command="tickscribe bench stream",
        machine=describe_machine(),
        setting=f"{config.model}, {len(clips)} clips, a partial every {config.partial_interval_ms} ms",
        headings=(
            "arm",
            "encoder positions",
            "decoder passes",
            "plain greedy",
            "encoder ms",
            "decoder ms",
            "partials differ %",
            "WER %",
            "retries %",
        ),
        cells=tuple(_to_cells(row) for row in rows),
        rows=tuple(asdict(row) for row in rows),
    ).publish(output)
    return rows


def stream_all(engine: Engine, clips: Sequence[Clip]) -> Tally:
    """Stream one clip after the other."""
    engine.warm_up()
    tally = Tally()
    for clip in clips:
        tally.seconds += len(clip.audio) / SAMPLE_RATE
        engine.open(clip.name, SessionSettings(language="en"))
        audio = np.concatenate([_LEAD, clip.audio, _TRAIL])
        texts: list[str] = []
        for start in range(0, len(audio), _CHUNK):
            engine.push(clip.name, audio[start : start + _CHUNK])
            texts += _run_until_idle(engine, clip, tally)
        engine.finish(clip.name)
        texts += _run_until_idle(engine, clip, tally)
        tally.finals[clip.name] = " ".join(texts)
    return tally


def _run_until_idle(engine: Engine, clip: Clip, tally: Tally) -> list[str]:
    finals = []
    for events, stats in engine.until_idle():
        tally.add(stats)
        for _, event in events:
            match event:
                case Partial():
                    tally.partials[(clip.name, event.end)] = event.committed + event.tentative
                case Final():
                    finals.append(event.text)
    return finals


def _to_row(arm: str, tally: Tally, reference: Tally, clips: Sequence[Clip]) -> Row:
    shared = sorted(tally.partials.keys() & reference.partials.keys())
    expected, found = ([texts.partials[key] for key in shared] for texts in (reference, tally))
    return Row(
        arm=arm,
        positions=tally.positions / tally.seconds,
        passes=tally.passes / tally.seconds,
        greedy_passes=tally.greedy_passes / tally.seconds,
        encoder_ms=tally.encoder_ms / tally.seconds,
        decode_ms=tally.decode_ms / tally.seconds,
        partial_difference=word_error_rate(
            [reference.partials[k] for k in shared], [tally.partials[k] for k in shared]
        ),
        wer=word_error_rate([clip.reference for clip in clips], [tally.finals[clip.name] for clip in clips]),
        retry_rate=tally.retries / max(1, tally.windows),
    )


def _to_cells(row: Row) -> tuple[str, ...]:
    return (
        row.arm,
        f"{row.positions:.0f}",
        f"{row.passes:.1f}",
        f"{row.greedy_passes:.1f}",
        f"{row.encoder_ms:.1f}",
        f"{row.decode_ms:.1f}",
        f"{100 * row.partial_difference:.2f}",
        f"{100 * row.wer:.2f}",
        f"{100 * row.retry_rate:.2f}",
    )
