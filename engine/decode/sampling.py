"""Which token comes next: rules on scores, for the whole batch at once, on the device.

Pure functions of tensors: no cache, no sessions. Greedy; the rules are Whisper's own (openai/whisper, decoding.py): a
list of tokens that never make text is suppressed, and a few more at the very beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.decode.sequence import StepTokens
from engine.session.hotwords import Hotwords

Text = tuple[Hotwords | None, Sequence[int]]  # tokens so far, and the hotwords that count behind them


@dataclass(frozen=True, slots=True)
class Bonuses:
    """What is added to some scores before the choice: (n,) row of the scores, (n,) token, (n,) float32 value."""

    rows: Tensor
    tokens: Tensor
    values: Tensor

    def added_to(self, scores: Tensor) -> Tensor:
        """Return (n, V) scores with the bonuses; what is forbidden stays so."""
        return scores.index_put((self.rows, self.tokens), self.values, accumulate=True)


def bonuses_of(texts: Sequence[Text], device: torch.device) -> Bonuses | None:
    """Gather the bonuses of hotwords, given for each row of scores the text before it; None if there are none."""
    found = [
        (row, token, value)
        for row, (hotwords, tokens) in enumerate(texts)
        if hotwords is not None
        for token, value in hotwords.bonuses(tokens).items()
    ]
    if not found:
        return None
    rows, tokens, values = zip(*found, strict=True)
    return Bonuses(
        torch.tensor(rows, device=device), torch.tensor(tokens, device=device), torch.tensor(values, device=device)
    )


class Sampler:
    """Whisper's suppression lists, and the greedy choice under them."""

    def __init__(
        self,
        suppress: tuple[int, ...],
        begin: tuple[int, ...],
        device: torch.device,
        other_case: Sequence[int] | None = None,
    ) -> None:
        """Make the rules of a vocabulary.

        Args:
            suppress: tokens that are allowed nowhere.
            begin: tokens that are not allowed as the first of a text.
            other_case: per token the one that is the same but for the case of its first letter, or itself.
        """
        self._suppress = torch.tensor(suppress, dtype=torch.int64, device=device)
        self._begin = torch.tensor(begin, dtype=torch.int64, device=device)
        self._other_case = torch.tensor(other_case, dtype=torch.int64, device=device) if other_case else None

    def __call__(
        self, scores: Tensor, first: Sequence[int] = (), bonuses: Bonuses | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choose the best allowed token of each row.

        Args:
            scores: (n, V) float32; those of forbidden tokens are overwritten.
            first: rows whose token would be the first of its text.
            bonuses: raise the scores of some tokens for the choice only.

        Returns:
            (n,) int64 tokens and their (n,) float32 log-probabilities (`logprobs`) among the allowed ones, as the model
            itself sees them.
        """
        scores.index_fill_(1, self._suppress, -torch.inf)
        if first:
            rows = torch.tensor(first, device=scores.device)
            scores[rows[:, None], self._begin] = -torch.inf
        raised = scores if bonuses is None else bonuses.added_to(scores)
        tokens = _argmax(raised)
        return tokens, self.logprobs(scores, tokens)

    def runner_ups(self, scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the likeliest word beside each of (n,) tokens, and its log-probability: (n,) int64, (n,) float32.

        The token of other case is the same word.

        Args:
            scores: (n, V) float32 after the choice; they are overwritten.
            tokens: (n,) int64.
        """
        total = scores.logsumexp(dim=-1)
        scores.scatter_(1, tokens[:, None], -torch.inf)
        if self._other_case is not None:
            scores.scatter_(1, self._other_case[tokens][:, None], -torch.inf)
        others = _argmax(scores)
        return others, scores.gather(1, others[:, None]).squeeze(1) - total

    def logprobs(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """Return the (n,) log-probabilities that (n, V) scores give to (n,) tokens as words.

        A token and the one of other case share theirs, because they are the same word: where a window begins in the
        middle of a sentence, "for" and "For" are equally likely and both right.
        """
        best = scores.gather(1, tokens[:, None])
        logprobs = -(scores - best).exp_().sum(dim=-1).log_()
        if self._other_case is not None:
            others = self._other_case[tokens]
            gained = (scores.gather(1, others[:, None]) - best).squeeze(1).exp_()
            logprobs += gained.masked_fill_(others == tokens, 0).log1p_()
        return logprobs


def _argmax(scores: Tensor) -> Tensor:
    """(n, V) -> (n,); on a CPU by NumPy, which is ten times as fast at it."""
    if scores.device.type == "cpu":
        return torch.from_numpy(scores.numpy().argmax(axis=-1))
    return scores.argmax(dim=-1)


def verify(draft: tuple[int, ...], choices: list[int], logprobs: list[float], end_of_text: int) -> StepTokens:
    """Keep what greedy decoding itself would have said of a draft.

    Args:
        draft: n guessed tokens.
        choices: n + 1 tokens: the greedy choice before each draft token and after the last.
        logprobs: of the choices.

    Returns:
        The leading draft tokens that equal the choices, and the first choice beyond them.
    """
    n_accepted = 0
    while n_accepted < len(draft) and choices[n_accepted] == draft[n_accepted]:
        n_accepted += 1
    gained = tuple(choices[: n_accepted + 1])
    ended = gained[-1] == end_of_text
    return StepTokens(tokens=gained[:-1] if ended else gained, logprobs=tuple(logprobs[: n_accepted + 1]), ended=ended)
