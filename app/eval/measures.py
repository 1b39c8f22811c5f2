"""What is measured of one transcript: intervals, revisions, word times. Pure: no clock, no models, no files but tables.

All times are seconds of the recording.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.bench.clips import ClipError
from app.bench.reference import TimedWord, plain_words
from app.bench.scoring import CHARACTER_LANGUAGES, Errors

_RESAMPLES = 2000
_SEED = 1
_COVERAGE = 95  # percent


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """One word as it is written, and when it is said."""

    word: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Revisions:
    """Words of partials: how many were shown, and how many of these did not stay until the final."""

    shown: int = 0
    revised: int = 0

    @property
    def rate(self) -> float:
        """Share of shown words that were later changed; nan where none was shown."""
        return self.revised / self.shown if self.shown else math.nan

    def __add__(self, other: Revisions) -> Revisions:
        return Revisions(self.shown + other.shown, self.revised + other.revised)


def bootstrap_interval(clips: Sequence[Errors]) -> tuple[float, float] | None:
    """95 % interval of the pooled error rate: percentiles over resampled clips, always with the same seed.

    Returns:
        Lowest and highest rate; None for fewer than two clips, which say nothing of other clips.
    """
    if len(clips) < 2:
        return None
    counts = np.array([(errors.n, errors.n_reference) for errors in clips])
    picks = np.random.default_rng(_SEED).integers(0, len(clips), (_RESAMPLES, len(clips)))
    errors, said = counts[picks].sum(axis=1).T
    tail = (100 - _COVERAGE) / 2
    low, high = np.percentile(errors / np.maximum(said, 1), [tail, 100 - tail])
    return float(low), float(high)


def units(text: str, language: str | None) -> list[str]:
    """Split shown text into words without case and punctuation, or into characters where words are not set apart."""
    if language in CHARACTER_LANGUAGES:
        return [character for character in text if character.isalnum()]
    return plain_words(text)


def count_revisions(partials: Sequence[Sequence[str]], final: Sequence[str]) -> Revisions:
    """Follow the words of one utterance from text to text.

    From one text to the next those words stay that are in the longest common subsequence of both. A word that goes
    and comes back was changed, and is shown anew; one that only the final has was never shown.

    Args:
        partials: the words of each partial, in order.
        final: the words of the final.
    """
    shown = revised = 0
    before: Sequence[str] = ()
    for words in [*partials, final]:
        n_kept = _n_common(before, words)
        revised += len(before) - n_kept
        shown += len(words) - n_kept
        before = words
    n_only_final = len(final) - _n_common(partials[-1] if partials else (), final)
    return Revisions(shown - n_only_final, revised)


def _n_common(one: Sequence[str], other: Sequence[str]) -> int:
    from rapidfuzz.distance import LCSseq  # comes with jiwer

    return LCSseq.similarity(one, other)


def word_time_errors(known: Sequence[SpokenWord], heard: Sequence[SpokenWord]) -> tuple[list[float], list[float]]:
    """Give how far starts and ends of the words that were heard rightly lie from the known ones, in seconds."""
    from rapidfuzz.distance import Levenshtein

    starts, ends = list[float](), list[float]()
    keys = [[plain_words(word.word) for word in words] for words in (known, heard)]
    for step in Levenshtein.opcodes(*([" ".join(key) for key in side] for side in keys)):
        if step.tag == "equal":
            pairs = zip(known[step.src_start : step.src_end], heard[step.dest_start : step.dest_end], strict=True)
            for expected, found in pairs:
                starts.append(abs(found.start_s - expected.start_s))
                ends.append(abs(found.end_s - expected.end_s))
    return starts, ends


def to_timed(words: Sequence[SpokenWord]) -> list[TimedWord]:
    """Give plain words with their ends, in order of these, as delays are counted from."""
    timed = [TimedWord(part, word.end_s) for word in words for part in plain_words(word.word)]
    return sorted(timed, key=lambda word: word.end_s)


def read_words(table: Path) -> list[SpokenWord]:
    """Read a table of words: tab-separated with the heading word, start, end; times in seconds.

    Raises:
        ClipError: there is no such table, or a line of it cannot be read.
    """
    if not table.is_file():
        raise ClipError(f"There is no table of words at {table}, which the manifest names.")
    words = []
    with table.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE), start=2):
            try:
                word = SpokenWord(row["word"], float(row["start"]), float(row["end"]))
            except (KeyError, TypeError, ValueError) as error:
                raise ClipError(f"{table}, line {number} is not a word, a start and an end in seconds.") from error
            if not 0 <= word.start_s <= word.end_s:
                raise ClipError(f"{table}, line {number}: {word.word} ends before it starts.")
            words.append(word)
    return words
