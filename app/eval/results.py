"""What came out: per clip, pooled over groups of clips, as a table, and as plain data for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.bench.clips import Entry
from app.bench.delays import Distribution
from app.bench.scoring import CHARACTER_LANGUAGES, Errors
from app.eval.measures import Revisions, bootstrap_interval
from app.eval.streamed import Timing

OTHER_LANGUAGES = "other languages"
NONSPEECH = "nonspeech"


@dataclass(frozen=True, slots=True)
class ClipResult:
    """One recording through one arm.

    Attributes:
        group: with which it is pooled.
        start_errors_s, end_errors_s: of the words whose times are known.
        timing: where it was streamed.
        fault: why the text is not all of the recording; None if it is.
    """

    entry: Entry
    group: str
    text: str
    errors: Errors
    start_errors_s: tuple[float, ...] = ()
    end_errors_s: tuple[float, ...] = ()
    timing: Timing | None = None
    fault: str | None = None

    @property
    def invented_words(self) -> int:
        """Words that are final, or were shown and taken back, where nobody speaks."""
        if self.entry.reference:
            return 0
        return self.errors.insertions + (self.timing.revisions.revised if self.timing else 0)


@dataclass(frozen=True, slots=True)
class ArmResult:
    """All recordings through one arm; `settings` says how it ran."""

    name: str
    settings: str
    clips: tuple[ClipResult, ...]

    def group(self, name: str) -> list[ClipResult]:
        """The clips of one group."""
        return [clip for clip in self.clips if clip.group == name]

    def pooled(self, group: str) -> Errors:
        """Errors of a group, added up."""
        return sum((clip.errors for clip in self.group(group)), Errors())

    def interval(self, group: str) -> tuple[float, float] | None:
        """95 % interval of the group's error rate."""
        recordings: dict[Path, Errors] = {}
        for clip in self.group(group):  # the same recording, heard again, is no other one
            recordings[clip.entry.path] = recordings.get(clip.entry.path, Errors()) + clip.errors
        return bootstrap_interval(list(recordings.values()))

    @property
    def invented_words(self) -> int:
        """Words in recordings in which nobody speaks, also those that were shown and taken back."""
        return sum(clip.invented_words for clip in self.group(NONSPEECH))

    @property
    def timings(self) -> list[Timing]:
        """Of the clips that were streamed."""
        return [clip.timing for clip in self.clips if clip.timing]

    @property
    def first_text_s(self) -> Distribution:
        """From the beginning of speech to the first text."""
        return Distribution.of(one.first_text_s for one in self.timings if one.first_text_s is not None)

    @property
    def word_s(self) -> Distribution:
        """From the end of a word to its first showing."""
        return Distribution.of(late for one in self.timings for late in one.word_s)

    @property
    def final_s(self) -> Distribution:
        """From when the pause rule could fire to the final."""
        return Distribution.of(late for one in self.timings for late in one.final_s)

    @property
    def lateness_s(self) -> Distribution:
        """Of the speakers themselves."""
        return Distribution.of(late for one in self.timings for late in one.late_s)

    @property
    def revisions(self) -> Revisions:
        """Over all clips."""
        return sum((one.revisions for one in self.timings), Revisions())

    @property
    def start_error_s(self) -> Distribution:
        """How far starts of words lie from the known ones."""
        return Distribution.of(off for clip in self.clips for off in clip.start_errors_s)

    @property
    def end_error_s(self) -> Distribution:
        """How far ends of words lie from the known ones."""
        return Distribution.of(off for clip in self.clips for off in clip.end_errors_s)

    @property
    def faults(self) -> list[str]:
        """What went wrong, with the names of the clips."""
        return [f"{clip.entry.name}: {clip.fault}" for clip in self.clips if clip.fault]


def group_of(entry: Entry) -> str:
    """English clips by their kind, other languages by whether words or characters are counted, silence by itself."""
    if not entry.reference:
        return NONSPEECH
    if entry.language == "en":
        return entry.kind
    return entry.language if entry.language in CHARACTER_LANGUAGES else OTHER_LANGUAGES


def groups_of(arms: Sequence[ArmResult]) -> list[str]:
    """The groups with references, in the order of the manifest, other languages last."""
    found = dict.fromkeys(clip.group for clip in arms[0].clips if clip.group != NONSPEECH)
    return sorted(found, key=lambda group: group == OTHER_LANGUAGES or group in CHARACTER_LANGUAGES)


def measure_name(group: str) -> str:
    """The rate that is given of a group."""
    return f"{group} {'CER' if group in CHARACTER_LANGUAGES else 'WER'} %"


# ------------------------------------------------------------------------------------------- the table


def to_table(arms: Sequence[ArmResult]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Headings and cells: one line per arm; what no arm was asked for has no column."""
    columns: list[tuple[str, list[str]]] = [("arm", [arm.name for arm in arms])]
    for group in groups_of(arms):
        cells = [rate_cell(arm.pooled(group), arm.interval(group)) for arm in arms]
        columns.append((measure_name(group), cells))
    if any(arm.group(NONSPEECH) for arm in arms):
        columns.append(("invented words", [str(arm.invented_words) for arm in arms]))
    if any(arm.timings for arm in arms):
        columns += [
            ("first text p50 s", [_number(arm.first_text_s.p50) for arm in arms]),
            ("p95", [_number(arm.first_text_s.p95) for arm in arms]),
            ("word p50 s", [_number(arm.word_s.p50) for arm in arms]),
            ("p95", [_number(arm.word_s.p95) for arm in arms]),
            ("final p50 s", [_number(arm.final_s.p50) for arm in arms]),
            ("p95", [_number(arm.final_s.p95) for arm in arms]),
            ("revised %", [_number(100 * arm.revisions.rate, digits=1) for arm in arms]),
        ]
    if any(arm.start_error_s.n for arm in arms):
        columns += [
            ("word start off p50 s", [_number(arm.start_error_s.p50) for arm in arms]),
            ("word end off p50 s", [_number(arm.end_error_s.p50) for arm in arms]),
        ]
    return tuple(heading for heading, _ in columns), tuple(zip(*(cells for _, cells in columns), strict=True))


def rate_cell(errors: Errors, interval: tuple[float, float] | None) -> str:
    """Such as 7.05 (5.1-9.3), in percent."""
    if not interval:
        return _number(100 * errors.rate)
    low, high = interval
    return f"{100 * errors.rate:.2f} ({100 * low:.1f}\N{EN DASH}{100 * high:.1f})"


def _number(value: float, *, digits: int = 2) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


# ------------------------------------------------------------------------------------------- plain data


def to_row(arm: ArmResult) -> dict[str, Any]:
    """Everything of one arm, ready for JSON; what was not measured is None."""
    groups = dict.fromkeys(clip.group for clip in arm.clips)
    row = {
        "arm": arm.name,
        "settings": arm.settings,
        "groups": {
            group: asdict(arm.pooled(group))
            | {"clips": len(arm.group(group)), "rate": arm.pooled(group).rate, "interval": arm.interval(group)}
            for group in groups
            if group != NONSPEECH
        },
        "invented_words": arm.invented_words,
        "first_text_s": asdict(arm.first_text_s),
        "word_s": asdict(arm.word_s),
        "words_shown": sum(len(one.word_s) for one in arm.timings),
        "words_to_show": sum(one.n_words for one in arm.timings),
        "final_s": asdict(arm.final_s),
        "speakers_late_s": asdict(arm.lateness_s),
        "revisions": asdict(arm.revisions) | {"rate": arm.revisions.rate},
        "word_start_error_s": asdict(arm.start_error_s),
        "word_end_error_s": asdict(arm.end_error_s),
        "faults": arm.faults,
        "clips": [_clip_row(clip) for clip in arm.clips],
    }
    cleaned: dict[str, Any] = _without_nan(row)
    return cleaned


def _clip_row(clip: ClipResult) -> dict[str, Any]:
    timing = clip.timing
    row: dict[str, Any] = {
        "file": clip.entry.name,
        "group": clip.group,
        "language": clip.entry.language,
        "reference": clip.entry.reference,
        "text": clip.text,
        "errors": asdict(clip.errors) | {"rate": clip.errors.rate},
        "fault": clip.fault,
    }
    if timing:
        row |= {
            "first_text_s": timing.first_text_s,
            "word_s": asdict(Distribution.of(timing.word_s)),
            "final_s": asdict(Distribution.of(timing.final_s)),
            "revisions": asdict(timing.revisions),
        }
    return row


def _without_nan(value: Any) -> Any:
    """JSON knows no nan."""
    match value:
        case dict():
            return {key: _without_nan(one) for key, one in value.items()}
        case list() | tuple():
            return [_without_nan(one) for one in value]
        case float() if math.isnan(value):
            return None
        case _:
            return value
