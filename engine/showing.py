"""Which tentative words are shown, and in which form a word stays.

Pure functions of hypotheses; the session calls them for each partial. What is committed is always shown
(engine/agreement.py); these rules are about the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from engine.agreement import TokenWord, flatten
from engine.types import Hypothesis, Stability, Word

_LEAST_OF_WORD = math.log(0.7)  # that a word must be certain of, to be shown when it is heard once and kept when twice
_LEAST_OF_FIRST = math.log(0.4)  # the first word of an utterance shows that somebody is heard


def shown_tentative(
    tentative: Sequence[TokenWord], logprobs: Sequence[float], stability: Stability, *, is_beginning: bool
) -> tuple[int, ...]:
    """Return the tokens of the tentative words that are worth showing.

    Args:
        tentative: the words behind the committed ones, heard for the first time or disputed.
        logprobs: how certain the newest words are (`word_logprobs`); the last ones are those of `tentative`.
        stability: what the client wants.
        is_beginning: nothing is committed yet.
    """
    match stability:
        case Stability.FAST:
            return flatten(tentative)
        case Stability.BALANCED:
            return flatten(tentative[: _n_likely(logprobs[-len(tentative) :], is_beginning=is_beginning)])
        case Stability.FINAL:
            return ()
        case _:
            assert_never(stability)


def are_certain(logprobs: Sequence[float]) -> list[bool]:
    """Return for each word whether it will hardly change, given the log-probability of its least certain token."""
    return [logprob >= _LEAST_OF_WORD for logprob in logprobs]


def _n_likely(logprobs: Sequence[float], *, is_beginning: bool) -> int:
    """Return how many leading words will hardly change; never the last one, whose audio may be cut in the middle."""
    for n, logprob in enumerate(logprobs[:-1]):
        if logprob < (_LEAST_OF_FIRST if n == 0 and is_beginning else _LEAST_OF_WORD):
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


def word_logprobs(words: Sequence[TokenWord], logprobs: Sequence[float]) -> list[float]:
    """Return the log-probability of each word's least certain token.

    Args:
        words: decoded words.
        logprobs: of their tokens.
    """
    least = []
    at = 0
    for word in words:
        least.append(min(logprobs[at : at + len(word)], default=0.0))
        at += len(word)
    return least
