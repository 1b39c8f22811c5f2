"""What the model is shown once more before an utterance: the words said just before it, and their audio.

Whoever pauses for half a second in the middle of a sentence begins an utterance there, and a window that begins in the
middle of a sentence is transcribed badly. So the window of an utterance that follows soon, and is still short, begins a
few words earlier; these words are forced, like committed ones, and appear in no event. Pure. One `LastWords` belongs to
one session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from engine.types import MAX_WINDOW_SAMPLES, SAMPLE_RATE, Hypothesis, Word

LONGEST_LEAD = 8 * SAMPLE_RATE  # from its beginning to the utterance
LONGEST_LED_WINDOW = 12 * SAMPLE_RATE  # an utterance that has grown has context of its own
_LONGEST_GAP = 3 * SAMPLE_RATE // 2  # between two words; what lies further back is another matter
_MARGIN = SAMPLE_RATE // 5  # before the first word, so that it keeps its first sound
_MOST_WORDS = 64


@dataclass(frozen=True, slots=True)
class Lead:
    """The words before an utterance: the sample at which their audio begins, and their tokens."""

    start: int
    tokens: tuple[int, ...]


class LastWords:
    """Call `note` with the words of each final and `before` when an utterance is asked for."""

    def __init__(self, longest: int) -> None:
        """Begin a session.

        Args:
            longest: window that there may be; a lead is at most eight seconds of thirty.
        """
        self._longest = longest * LONGEST_LEAD // MAX_WINDOW_SAMPLES
        self._words: deque[Word] = deque(maxlen=_MOST_WORDS)

    def note(self, words: Iterable[Word]) -> None:
        """Take the words of a final, in order of time."""
        self._words += words

    def before(self, start: int) -> Lead | None:
        """Return the words that lead to an utterance which starts at sample `start`; None where none do."""
        taken = list[Word]()
        earlier: Word | None = None
        for word in reversed(self._words):
            next_start = taken[-1].start if taken else start
            if next_start - word.end > _LONGEST_GAP or start - word.start > self._longest - _MARGIN:
                earlier = word
                break
            taken.append(word)
        if not taken:
            return None
        begin = max(0, taken[-1].start - _MARGIN, earlier.end if earlier else 0)
        return Lead(min(begin, taken[-1].start), tuple(token for word in reversed(taken) for token in word.tokens))


def without_lead(
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
