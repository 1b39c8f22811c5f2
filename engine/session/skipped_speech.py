"""Where the text of a window leaves out speech.

Whisper now and then ends its text after a sentence although somebody speaks on, or skips to a later one; mostly in long
windows and where the voice changes. openai/whisper goes on at the last time stamp; here the words' times and the speech
detector tell where. Pure. One `SpeechLog` belongs to one session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.session.endpoint import BLOCK_SAMPLES
from engine.types import SAMPLE_RATE, Word

_LEAST_LEFT_OUT = 2 * SAMPLE_RATE  # of speech
_LONGEST_WORD = 3 * SAMPLE_RATE // 2  # one that lasts longer was drawn out over what was left out


class SpeechLog:
    """What the speech detector said of each block of a stream, from the oldest on that is remembered."""

    def __init__(self, release: float) -> None:
        """Take for speech what has at least the probability `release`."""
        self._least = round(255 * release)
        self._probabilities = bytearray()  # in 255ths
        self._first = 0  # block

    def note(self, probability: float) -> None:
        """Take the next block."""
        self._probabilities.append(round(255 * probability))

    def between(self, start: int, end: int) -> int:
        """Return how many samples of [start, end) are speech."""
        return sum(value >= self._least for value in self._blocks(start, end)) * BLOCK_SAMPLES

    def mean(self, start: int, end: int) -> float:
        """Return the mean probability of speech in [start, end); 0 where nothing is remembered."""
        blocks = self._blocks(start, end)
        return sum(blocks) / (255 * max(1, len(blocks)))

    def forget_before(self, index: int) -> None:
        """Nobody will ask for samples before `index`."""
        n_blocks = max(0, index // BLOCK_SAMPLES - self._first)
        del self._probabilities[:n_blocks]
        self._first += n_blocks

    def _blocks(self, start: int, end: int) -> bytearray:
        first, last = (max(0, at // BLOCK_SAMPLES - self._first) for at in (start, end))
        return self._probabilities[first : max(first, last)]


@dataclass(frozen=True, slots=True)
class SkippedSpeech:
    """Speech without text behind the first `n_words` words; it begins at sample `start`."""

    n_words: int
    start: int


def find_skipped_speech(words: Sequence[Word], n_committed: int, end: int, speech: SpeechLog) -> SkippedSpeech | None:
    """Find the first place behind the committed words at which two seconds of speech have no text.

    Args:
        words: of a hypothesis, with times.
        n_committed: tokens that stay in any case.
        end: of the speech that was shown.
        speech: what the detector took for speech.
    """
    n_tokens = 0
    for n_words, word in enumerate(words, start=1):
        n_tokens += len(word.tokens)
        said = min(word.end, word.start + _LONGEST_WORD)
        next_start = words[n_words].start if n_words < len(words) else end
        if n_tokens >= n_committed and speech.between(said, next_start) >= _LEAST_LEFT_OUT:
            return SkippedSpeech(n_words, said)
    return None


def begins_late(words: Sequence[Word], start: int, speech: SpeechLog) -> bool:
    """Whether two seconds of speech lie between sample `start` and the first of the words, if there is any."""
    return bool(words) and speech.between(start, words[0].start) >= _LEAST_LEFT_OUT
