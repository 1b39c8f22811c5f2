"""How late text is, from recorded traces. Pure: no clock, no sockets, no servers.

All times are seconds of a speaker's clock, on which sample n is said at n / 16000: the schedule, not what the load
generator or the server made of it (the rule against coordinated omission). A word is late by the time from its end to
the first update that shows it at its place in the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from app.bench.reference import TimedWord, plain_words
from app.bench.streams import Phrase

_EARLY_S = 0.5  # a word may show this long before its measured end: alignment is no more exact than that


@dataclass(frozen=True, slots=True)
class Update:
    """All text of a speaker after a message: what is final, what is not to be revised, and all that is shown.

    Each begins with the one before it, as far as the server has these.
    """

    at_s: float
    final: str
    committed: str
    shown: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of a set of seconds; nan where there were none."""

    n: int
    p50: float
    p95: float
    p99: float
    worst: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        """Nearest rank: the smallest value that so many do not exceed."""
        ordered = sorted(values)
        if not ordered:
            return cls(0, math.nan, math.nan, math.nan, math.nan)

        def rank(share: float) -> float:
            return ordered[math.ceil(share * len(ordered)) - 1]

        return cls(len(ordered), rank(0.50), rank(0.95), rank(0.99), ordered[-1])


def first_seen(words: Sequence[TimedWord], texts: Iterable[tuple[float, str]]) -> list[float | None]:
    """Find when each word was there first.

    Each text is aligned with the words that can have been said by then; a word counts where it is met as it is.

    Args:
        words: in order of their ends.
        texts: when, and the whole text from then on.

    Returns:
        Per word the time of the first text that has it; None if none has.
    """
    seen: list[float | None] = [None] * len(words)
    ends = [word.end_s for word in words]
    keys = [word.word for word in words]
    before = ""
    for at_s, text in texts:
        if text == before:
            continue
        before = text
        n_said = int(np.searchsorted(ends, at_s + _EARLY_S, side="right"))
        for index in _matched(plain_words(text), keys[:n_said]):
            if seen[index] is None:
                seen[index] = at_s
    return seen


def _matched(found: list[str], expected: list[str]) -> Iterable[int]:
    """Indices of expected words that a least-edits alignment finds; the earliest of equally good ones."""
    from rapidfuzz.distance import Levenshtein  # comes with jiwer

    # The mark at the end keeps a last word from being matched with its latest likeness.
    for step in Levenshtein.opcodes(found, [*expected, "\0"]):
        if step.tag == "equal":
            yield from range(step.dest_start, step.dest_end)


def word_delays(
    words: Sequence[TimedWord], seen: Sequence[float | None], *, since_s: float
) -> list[tuple[float, float]]:
    """Give (end, delay) of each word that was seen and ended after `since_s`."""
    pairs = zip(words, seen, strict=True)
    return [(word.end_s, at - word.end_s) for word, at in pairs if at is not None and word.end_s >= since_s]


def phrase_delays(
    phrases: Sequence[Phrase], seen: Sequence[float | None], *, since_s: float
) -> tuple[list[float], list[str]]:
    """From the end of a phrase to the moment when all of its words that were ever seen were there.

    Args:
        phrases: in order; `seen` is over all their words.

    Returns:
        The delays of phrases that ended after `since_s`, and the names of phrases of which no word was ever seen.
    """
    delays, lost = [], []
    n_before = 0
    for phrase in phrases:
        times = [at for at in seen[n_before : n_before + len(phrase.words)] if at is not None]
        n_before += len(phrase.words)
        if not times:
            if len(phrase.words) > 2:  # one or two words may be misheard for good
                lost.append(phrase.name)
        elif phrase.speech_end_s >= since_s:
            delays.append(max(times) - phrase.speech_end_s)
    return delays, lost


def drift_s_per_min(points: Sequence[tuple[float, float]]) -> float:
    """By how much a delay grows per minute: slope of the least-squares line through (when, delay); nan for too few."""
    if len({when for when, _ in points}) < 2:
        return math.nan
    when, delay = np.array(points).T
    return float(60 * np.polyfit(when, delay, 1)[0])
