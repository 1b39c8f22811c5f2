"""What the model is shown once more before an utterance: the words said just before it, and their audio.

Whoever pauses for half a second in the middle of a sentence begins an utterance there, and a window that begins in the
middle of a sentence is transcribed badly. So the window of an utterance that follows soon begins earlier, as long as
there is room for both; the words said there are forced, like committed ones, and appear in no event.

Where it can, it begins where the window before it began: what was encoded for that one is in the cache, so that the
context of many utterances costs no more than that of one. When it has become too long, a new one begins with the last
of these words. Pure. One `LeftContextSource` belongs to one session.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from engine.session.requests import Hypothesis
from engine.types import MAX_WINDOW_SAMPLES, SAMPLE_RATE, Word

LONGEST_LEFT_CONTEXT = 26 * SAMPLE_RATE  # from its beginning to the utterance
SHORT_WINDOW = 12 * SAMPLE_RATE  # where none may be longer, a lead counts within the length of its utterance
MOST_TOKENS = 192  # of a lead and its utterance: a window may have 224, and more may be said before it is shown
_LONGEST_NEW_LEAD = 20 * SAMPLE_RATE
_LONGEST_IN_SHORT = 8 * SAMPLE_RATE  # of thirty seconds
_LONGEST_GAP = 3 * SAMPLE_RATE  # between two words; what lies further back is another matter
_MARGIN = SAMPLE_RATE // 5  # before the first word, so that it keeps its first sound
_MOST_LEAD_TOKENS = 112
_MOST_NEW_LEAD_TOKENS = 80
_MOST_WORDS = 128


@dataclass(frozen=True, slots=True)
class LeftContext:
    """The words before an utterance: the sample at which their audio begins, and their tokens."""

    start: int
    tokens: tuple[int, ...]


class LeftContextSource:
    """Call `note` with the words of each final and `before` when an utterance is asked for."""

    def __init__(self, longest: int) -> None:
        """Begin a session.

        Args:
            longest: window that there may be; leads are bounded by their share of thirty seconds.
        """
        is_short = longest <= SHORT_WINDOW
        self._longest = longest * (_LONGEST_IN_SHORT if is_short else LONGEST_LEFT_CONTEXT) // MAX_WINDOW_SAMPLES
        self._longest_new = longest * (_LONGEST_IN_SHORT if is_short else _LONGEST_NEW_LEAD) // MAX_WINDOW_SAMPLES
        self._words: deque[Word] = deque(maxlen=_MOST_WORDS)
        self._window_start = 0

    def note(self, words: Iterable[Word], window_start: int) -> None:
        """Take the words of a final, in order of time, and where the window that told them began."""
        self._words += words
        self._window_start = window_start

    def before(self, start: int) -> LeftContext | None:
        """Return the words that lead to an utterance which starts at sample `start`; None where none do."""
        taken, earlier = self._back_to(self._window_start, start)
        reaches_back = earlier is None or _is_before(earlier, self._window_start)
        n_tokens = sum(len(word.tokens) for word in taken)
        if taken and reaches_back and start - self._window_start <= self._longest and n_tokens <= _MOST_LEAD_TOKENS:
            return _lead(self._window_start, taken)
        taken, earlier = self._back_to(start - self._longest_new + _MARGIN, start, _MOST_NEW_LEAD_TOKENS)
        if not taken:
            return None
        return _lead(max(0, taken[0].start - _MARGIN, earlier.end if earlier else 0), taken)

    def _back_to(self, begin: int, start: int, most_tokens: float = math.inf) -> tuple[list[Word], Word | None]:
        """Return the words that follow each other from sample `begin` to `start`, and the one before them."""
        taken = deque[Word]()
        n_tokens = 0
        for word in reversed(self._words):
            next_start = taken[0].start if taken else start
            n_tokens += len(word.tokens)
            if next_start - word.end > _LONGEST_GAP or _is_before(word, begin) or n_tokens > most_tokens:
                return list(taken), word
            taken.appendleft(word)
        return list(taken), None


def _is_before(word: Word, begin: int) -> bool:
    """Whether the sound of a word is not in what begins at a sample: a word may have no length."""
    return word.start < begin or word.end <= begin


def _lead(begin: int, words: Sequence[Word]) -> LeftContext:
    return LeftContext(min(begin, words[0].start), tuple(token for word in words for token in word.tokens))


def without_left_context(
    hypothesis: Hypothesis, n_tokens: int, start: int, decode: Callable[[Sequence[int]], str]
) -> Hypothesis:
    """Return the hypothesis of an utterance that starts at sample `start`, without the tokens that lead to it.

    A comma may make the last word of the lead and the first token of the utterance one word; of that the rest is kept.
    """
    words = []
    at = 0
    for word in hypothesis.words:
        at += len(word.tokens)
        if at > n_tokens:
            kept = word.tokens[-(at - n_tokens) :]
            text = word.text if kept == word.tokens else decode(kept)
            begin = max(word.start, start)
            words.append(replace(word, text=text, tokens=kept, start=begin, end=max(word.end, begin)))
    return replace(hypothesis, tokens=hypothesis.tokens[n_tokens:], words=tuple(words))
