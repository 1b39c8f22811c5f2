"""Where long speech is cut, and where final text is divided into segments.

Pure functions of words with times, used by the session.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.session.requests import Window
from engine.types import MAX_WINDOW_SAMPLES, SAMPLE_RATE, Segment, Word

_RIGHT_CONTEXT = 3 * SAMPLE_RATE // 2  # the newest words of a window may still change
_SENTENCE_ENDS = (".", "?", "!", "。", "？", "！", "…")


@dataclass(frozen=True, slots=True)
class CutRules:
    """How long an utterance may grow; every length is a share of the longest, in samples.

    Attributes:
        longest: an utterance never grows beyond it.
    """

    longest: int = MAX_WINDOW_SAMPLES

    @property
    def look_after(self) -> int:
        """From here on an open utterance looks for a place to be cut: 24 s of 30."""
        return self.longest * 24 // 30

    @property
    def patience(self) -> int:
        """A window this long is cut inside a sentence if none has ended: 28 s of 30."""
        return self.longest * 28 // 30

    @property
    def least_kept(self) -> int:
        """What ends by a cut is at least so long, if there is a choice: 8 s of 30."""
        return self.longest * 8 // 30


def choose_cut(
    words: Sequence[Word], window: Window, n_committed: int, rules: CutRules, *, is_full: bool
) -> int | None:
    """Choose how many words of a long window become final.

    Args:
        words: all words of the hypothesis, with times.
        window: the interval they were heard in.
        n_committed: tokens that are committed; they become final in any case.
        rules: how long the utterance may grow.
        is_full: the window cannot grow any more, so it has to be cut.

    Returns:
        A number of words that covers the committed text: up to the last end of a sentence, or to the widest gap once
        patience is over; in a full window all but the last word, which may be cut in the middle. None while there is
        no such place and the window can grow.
    """
    places = _places(words, window, n_committed, rules)
    if sentence_ends := [n for n in places if ends_sentence(words[n - 1])]:
        return sentence_ends[-1]
    if places and (is_full or window.end - window.start >= rules.patience):
        return max(places, key=lambda n: (words[n].start - words[n - 1].end, n))
    if not is_full:
        return None
    n_before_last = sum(len(word.tokens) for word in words[:-1])
    can_wait = words and words[-1].start >= window.start + rules.least_kept and n_before_last >= n_committed
    return len(words) - 1 if can_wait else len(words)


def _places(words: Sequence[Word], window: Window, n_committed: int, rules: CutRules) -> list[int]:
    """Numbers of words, fewer than all, after which nothing is in doubt: the committed ones, and those well before."""
    places = []
    n_tokens = 0
    for n_words, word in enumerate(words[:-1], start=1):
        n_before, n_tokens = n_tokens, n_tokens + len(word.tokens)
        is_committed = n_before < n_committed <= n_tokens
        is_sure = is_committed or (n_tokens >= n_committed and is_settled(word, window))
        if is_sure and word.end >= window.start + rules.least_kept:
            places.append(n_words)
    return places


def n_settled(words: Sequence[Word], window: Window) -> int:
    """Return how many leading words of a window lie so far before its end that more audio will hardly change them."""
    return sum(1 for _ in itertools.takewhile(lambda word: is_settled(word, window), words))


def is_settled(word: Word, window: Window) -> bool:
    """Whether so much audio was heard behind the word that more will hardly change it."""
    return word.end <= window.end - _RIGHT_CONTEXT


def with_known_times(words: Sequence[Word], known: Sequence[Word]) -> tuple[Word, ...]:
    """Return words of a window with the times that the first of them are known to have; the others come later.

    Where a window leaves out speech, the words before it are drawn out over it: then what is known tells.

    Args:
        words: that begin with the known ones; punctuation may have been added to these.
        known: from the window before.
    """
    at = 0
    timed = []
    for word, earlier in itertools.zip_longest(words, known[: len(words)]):
        if earlier is not None and word.tokens[: len(earlier.tokens)] == earlier.tokens:
            word = replace(word, start=earlier.start, end=earlier.end)
        timed.append(replace(word, start=max(word.start, at), end=max(word.end, at)))
        at = timed[-1].end
    return tuple(timed)


def to_segments(text: str, words: Sequence[Word], start: int, end: int) -> tuple[Segment, ...]:
    """Divide the text of an utterance at the ends of its sentences.

    Without words it is one segment over the whole utterance; without text there is none.
    """
    if not text:
        return ()
    if not words:
        return (Segment(text, start, end),)
    segments = []
    sentence: list[Word] = []
    for word in words:
        sentence.append(word)
        if ends_sentence(word) or word is words[-1]:
            joined = "".join(w.text for w in sentence).strip()
            segments.append(Segment(joined, sentence[0].start, max(sentence[0].start, sentence[-1].end)))
            sentence = []
    return tuple(segments)


def ends_sentence(word: Word) -> bool:
    """Whether the word closes a sentence by its punctuation."""
    return word.text.rstrip("\"'”’)]»").endswith(_SENTENCE_ENDS)
