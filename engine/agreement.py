"""Which words of an open utterance are stable: LocalAgreement-2.

Two successive hypotheses must agree on a word before it is committed (Liu et al. 2020; used for Whisper by Macháček et
al. 2023, arXiv:2307.14743). Pure: works on words as tuples of token ids. One `Agreement` belongs to one utterance.

Law: `committed` only ever grows; the decoder is made to start with it, so no later hypothesis can disagree.
"""

from __future__ import annotations

from collections.abc import Sequence

TokenWord = tuple[int, ...]  # the tokens of one word


class Agreement:
    """The commit rule of one utterance: call `observe` with each new hypothesis."""

    def __init__(self, guess: Sequence[TokenWord] = ()) -> None:
        self.committed: list[TokenWord] = []
        self.tentative: list[TokenWord] = list(guess)

    @property
    def committed_tokens(self) -> tuple[int, ...]:
        """Committed words as one run of tokens: what the decoder is made to start with."""
        return flatten(self.committed)

    @property
    def tentative_tokens(self) -> tuple[int, ...]:
        """The rest of the newest hypothesis: a good guess at what the next one will say."""
        return flatten(self.tentative)

    def observe(self, fresh: Sequence[TokenWord]) -> None:
        """Take what a hypothesis of the grown window says after the committed words; commit what it repeats.

        The last word of a hypothesis is never committed: its audio may be cut in the middle.
        """
        n_agreed = common_prefix(self.tentative[:-1], fresh[:-1])
        self.committed += fresh[:n_agreed]
        self.tentative = list(fresh[n_agreed:])


def common_prefix(left: Sequence[TokenWord], right: Sequence[TokenWord]) -> int:
    """Return how many leading words are equal."""
    n = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        n += 1
    return n


def flatten(words: Sequence[TokenWord]) -> tuple[int, ...]:
    """Return the tokens of `words` as one run."""
    return tuple(token for word in words for token in word)
