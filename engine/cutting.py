"""Where long speech is cut, and where final text is divided into segments.

Pure functions of words with times, used by the session.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.types import SAMPLE_RATE, Segment, Window, Word

_RIGHT_CONTEXT = 3 * SAMPLE_RATE // 2  # the newest words of a window may still change
_LEAST_KEPT = 8 * SAMPLE_RATE
_SENTENCE_ENDS = (".", "?", "!", "。", "？", "！", "…")


def choose_cut(words: Sequence[Word], window: Window, n_committed: int) -> int | None:
    """Choose how many words of a long window become final.

    Args:
        words: all words of the hypothesis, with times.
        window: the interval they were heard in.
        n_committed: tokens that are committed; they stay together.

    Returns:
        A number of words, at least one and fewer than all, ending behind the committed text and with some audio after
        it: at the last end of a sentence, else at the widest gap. None where there is no such place.
    """
    places = []
    n_tokens = 0
    for n_words, word in enumerate(words[:-1], start=1):
        n_tokens += len(word.tokens)
        late_enough = n_tokens >= n_committed and word.end >= window.start + _LEAST_KEPT
        if late_enough and word.end <= window.end - _RIGHT_CONTEXT:
            places.append(n_words)
    if not places:
        return None
    sentence_ends = [n for n in places if ends_sentence(words[n - 1])]
    if sentence_ends:
        return sentence_ends[-1]
    return max(places, key=lambda n: (words[n].start - words[n - 1].end, n))


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
