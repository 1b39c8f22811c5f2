"""Which other texts a text is weighed against before it becomes final.

Greedy decoding takes the likeliest next token, which is not always on the way to the likeliest text. Beam search keeps
several texts from token to token (openai/whisper and faster-whisper: five). Here the greedy text is there already, so
branches leave it where the model nearly took another token, and go on greedily; the rest of the greedy text is each
branch's draft, which makes a branch a matter of a few passes. The text with the best mean log-probability per token,
the end included, is taken. Pure: tokens and numbers; the passes are compute/runner.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.decode.guards import loop_period
from engine.decode.sequence import StepTokens

_LEAST_PROB = 0.1  # of the token that a branch begins with
_LOOKED_AHEAD = 4  # tokens of a draft among which a branch may find its way back to it


@dataclass(frozen=True, slots=True)
class Scored:
    """A text and the log-probability of each token, one more for its end."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean log-probability, the end included."""
        return sum(self.logprobs) / len(self.logprobs)


@dataclass(slots=True, eq=False)
class Branch:
    """A text on its way.

    Attributes:
        tokens, logprobs: so far.
        n_seen: so many of the tokens were shown to the model.
        draft: what may follow.
        text: set once it has ended.
    """

    tokens: list[int]
    logprobs: list[float]
    n_seen: int
    draft: tuple[int, ...]
    text: Scored | None = None

    @property
    def unseen(self) -> list[int]:
        """What the model is shown next: the newest token, and the draft."""
        return [*self.tokens[self.n_seen :], *self.draft]

    def fits(self, n_most: int) -> bool:
        """Whether the text may go on, with no more than `n_most` tokens in all; a draft beyond that is dropped."""
        # One less than there is room for, because the choice beyond the draft is gained as well.
        self.draft = self.draft[: max(0, n_most - len(self.tokens) - 1)]
        return self.text is None and len(self.tokens) < n_most

    def take(self, gain: StepTokens) -> None:
        """Go on with what the model says behind `unseen`."""
        n_accepted = len(gain.logprobs) - 1
        self.n_seen = len(self.tokens) + n_accepted
        self.tokens += gain.tokens
        self.logprobs += gain.logprobs
        if gain.ended:
            self.text = Scored(tuple(self.tokens), tuple(self.logprobs))
            return
        rest = self.draft[n_accepted:]
        back = [n for n, token in enumerate(rest[:_LOOKED_AHEAD]) if token == self.tokens[-1]]
        self.draft = rest[back[0] + 1 :] if back else rest


def branches_of(text: Scored, others: Sequence[tuple[int, float]], n_most: int) -> list[Branch]:
    """Return the branches that are worth following, the one that leaves last first.

    In that order each finds what it has in common with the text as the text left it in the cache.

    Args:
        text: n tokens.
        others: for each of them the likeliest other token at its place, and the log-probability of that.
        n_most: branches.
    """
    gaps = {
        place: logprob - text.logprobs[place]
        for place, (_, logprob) in enumerate(others)
        if logprob >= np.log(_LEAST_PROB)
    }
    places = sorted(gaps, key=lambda place: -gaps[place])[:n_most]
    return [
        Branch(
            tokens=[*text.tokens[:place], others[place][0]],
            logprobs=[*text.logprobs[:place], others[place][1]],
            n_seen=place,
            draft=text.tokens[place + 1 :],
        )
        for place in sorted(places, reverse=True)
    ]


def best_of(text: Scored, branches: Sequence[Branch]) -> Scored:
    """Return the best of a text and its branches; one that ends in a loop is none, however likely."""
    texts = [branch.text for branch in branches if branch.text and not loop_period(list(branch.text.tokens))]
    return max((text, *texts), key=lambda scored: scored.mean)
