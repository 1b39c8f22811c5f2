"""Signs that a text went wrong while it was decoded.

Whisper now and then falls into a loop, above all where its context is not what it was trained on. Loops are stopped
while they are decoded, and a window whose text looks wrong is run once more with the full 30-second context (the
scheduler does it). Pure functions of tokens and probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.session.requests import FinishReason
from engine.types import SuppressReason

_LONGEST_PERIOD = 24  # tokens: a sentence
_LEAST_SPAN = 16  # tokens that a loop has to fill: "no, no, no, no" is speech
_LEAST_REPEATS = 3
_LEAST_SCORED = 5  # tokens
_LEAST_LOGPROB = -1.0  # mean per token, as in openai/whisper, transcribe.py


def loop_period(tokens: Sequence[int]) -> int:
    """Return the length of the phrase that the end of the text repeats, or 0 if it does not.

    A loop is the same phrase at least three times in a row, over at least 16 tokens.
    """
    for period in range(1, min(_LONGEST_PERIOD, len(tokens) // _LEAST_REPEATS) + 1):
        span = max(_LEAST_SPAN, period * _LEAST_REPEATS)
        if len(tokens) >= span and all(tokens[-i] == tokens[-i - period] for i in range(1, span - period + 1)):
            return period
    return 0


def without_loop(tokens: Sequence[int], *, n_kept: int = 0) -> list[int]:
    """Return the text with the phrase that its end repeats said once; the first `n_kept` tokens stay in any case."""
    kept = list(tokens)
    period = loop_period(kept)
    if period:
        while len(kept) > max(period, n_kept) and kept[-1] == kept[-1 - period]:
            kept.pop()
    return kept


def is_unlikely(avg_logprob: float, n_tokens: int) -> bool:
    """Whether the model itself hardly believes its text; a few tokens tell nothing."""
    return n_tokens >= _LEAST_SCORED and avg_logprob < _LEAST_LOGPROB


def retry_reason(finish_reason: FinishReason) -> SuppressReason:
    """Why a window that is to be decoded again looked wrong."""
    match finish_reason:
        case FinishReason.LOOP:
            return SuppressReason.LOOP
        case FinishReason.TOKEN_LIMIT:
            return SuppressReason.TOO_LONG
        case FinishReason.END_OF_TEXT:
            return SuppressReason.UNLIKELY
