"""Which tentative words are shown, and in which form a word stays.

Pure; the session asks for each partial. What is committed is always shown (session/agreement.py); these rules are about
the rest. One `PartialFilter` belongs to one utterance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import assert_never

from engine.session.agreement import TokenWord, flatten, n_common
from engine.session.requests import Hypothesis
from engine.types import SAMPLE_RATE, Stability, Word

_SURE = 0.7  # a word so probable is shown when it is heard once, and committed when twice
_SURE_OF_FIRST = 0.4  # the first word of an utterance shows that somebody is heard
_LESS_PER_SECOND = 0.05  # for each second of audio that a word stayed the same


class PartialFilter:
    """What one utterance shows: call `update` after each hypothesis.

    What is shown stays until something certain takes its place: a hypothesis that doubts a word, leaves it out or stops
    before it says nothing better, and the next one often brings it back.
    """

    def __init__(self, stability: Stability, key: Callable[[TokenWord], Hashable]) -> None:
        """Begin an utterance; words with equal keys are the same word."""
        self._stability = stability
        self._key = key
        self._shown: list[TokenWord] = []

    def update(
        self,
        committed: Sequence[TokenWord],
        tentative: Sequence[TokenWord],
        logprobs: Sequence[float],
        ages: Sequence[int],
    ) -> tuple[int, ...]:
        """Return the tokens that are shown behind the committed words.

        Args:
            committed: words that will not change.
            tentative: those behind them in the newest hypothesis.
            logprobs: how certain its newest words are (`word_logprobs`); the last ones are those of `tentative`.
            ages: for how many samples each tentative word was the same.
        """
        newest = [*committed, *tentative]
        match self._stability:
            case Stability.FAST:
                self._shown = newest
            case Stability.BALANCED:
                of_tentative = logprobs[len(logprobs) - len(tentative) :]
                n_certain = len(committed) + _n_likely(of_tentative, ages, is_beginning=not committed)
                n_same = n_common(self._shown, newest, self._key)
                if n_same == len(self._shown) or n_same < n_certain:
                    self._shown = newest[: max(n_certain, n_same)]
            case Stability.FINAL:
                self._shown = list(committed)
            case _:
                assert_never(self._stability)
        return flatten(self._shown[len(committed) :])


def are_certain(logprobs: Sequence[float]) -> list[bool]:
    """Return for each word whether it will hardly change, given the log-probability of its least certain token."""
    return [math.exp(logprob) >= _SURE for logprob in logprobs]


def _n_likely(logprobs: Sequence[float], ages: Sequence[int], *, is_beginning: bool) -> int:
    """Return how many leading words will hardly change; never the last one, whose audio may be cut in the middle."""
    for n, (logprob, age) in enumerate(zip(logprobs[:-1], ages, strict=False)):
        least = _SURE_OF_FIRST if n == 0 and is_beginning else _SURE
        if math.exp(logprob) < least - _LESS_PER_SECOND * age / SAMPLE_RATE:
            return n
    return len(logprobs[:-1])


def with_forms(
    hypothesis: Hypothesis,
    n_prefix: int,
    fresh: Sequence[TokenWord],
    settled: Sequence[TokenWord],
    decode: Callable[[Sequence[int]], str],
) -> Hypothesis:
    """Return the hypothesis with other forms of some of its words.

    Args:
        hypothesis: its tokens are `n_prefix` tokens and then those of `fresh`.
        n_prefix: tokens that stay as they are.
        fresh: the words as they were decoded.
        settled: the same words in the form that they are to have.
        decode: text of tokens, for words with times.
    """
    if list(settled) == list(fresh):
        return hypothesis
    tokens = hypothesis.tokens[:n_prefix] + flatten(settled)
    forms: dict[int, tuple[TokenWord, TokenWord]] = {}  # where a word begins, what it is, what it becomes
    at = n_prefix
    for old, new in zip(fresh, settled, strict=True):
        forms[at] = (old, new)
        at += len(old)
    words = []
    at = 0
    for word in hypothesis.words:
        taken, end = list[int](), at + len(word.tokens)
        while at < end:
            old, new = forms.get(at, (word.tokens[:1], (hypothesis.tokens[at],)))
            taken += new
            at += len(old)
        words.append(Word(decode(taken), tuple(taken), word.start, word.end, word.probability))
    return replace(hypothesis, tokens=tokens, words=tuple(words))


def word_logprobs(words: Sequence[TokenWord], logprobs: Sequence[float], is_sign: Callable[[int], bool]) -> list[float]:
    """Return the log-probability of each word's least certain token; a word of nothing but signs is certain.

    Args:
        words: decoded words.
        logprobs: of their tokens.
        is_sign: whether a token is nothing but punctuation, which may change without changing the word.
    """
    rest = iter(logprobs)
    least = []
    for word in words:
        of_letters = [logprob for token, logprob in zip(word, rest, strict=False) if not is_sign(token)]
        least.append(min(of_letters, default=0.0))
    return least
