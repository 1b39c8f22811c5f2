"""One request on its way through the decoder: where it stands, and the text that it has gained so far. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from engine.decode.guards import is_unlikely, loop_period, without_loop
from engine.decode.slots import Slot
from engine.session.requests import FinishReason, Hypothesis, Request
from engine.types import SAMPLE_RATE, Word

_MAX_TEXT_TOKENS = 224  # half of Whisper's 448 text positions, as in openai/whisper
_TOKENS_PER_SECOND = 14  # fast speech in the scripts that need most tokens per sound stays below
_FREE_TOKENS = 16


class Status(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    ENCODING = "encoding"  # holds a slot, as do the next two
    ENCODED = "encoded"
    DECODING = "decoding"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class StepTokens:
    """What one sequence gained in a tick.

    Attributes:
        tokens: text tokens chosen, in order.
        logprobs: one per token, plus one for the end of text if it was chosen.
        ended: the model chose the end of text.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: bool


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its way through the decoder.

    Attributes:
        first_position: the encoder position from which the window is to be encoded; what lies before is in the row.
        full_context: the second try of a window whose text looked wrong: padded to 30 seconds.
        tokens: text tokens so far, beginning with the forced prefix.
        logprobs: of the tokens behind the prefix.
        logprob_sum, n_scored: over the tokens that the model chose, end-of-text included.
    """

    request: Request
    status: Status = Status.WAITING
    slot: Slot | None = None
    first_position: int = 0
    full_context: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logprob_sum: float = 0.0
    n_scored: int = 0
    no_speech_prob: float = 0.0
    language: str = ""
    language_prob: float = 1.0
    finish_reason: FinishReason | None = None
    words: tuple[Word, ...] = ()

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prefix)

    @property
    def max_tokens(self) -> int:
        """Most text tokens, so that a loop ends: so many per second of audio, and no more than the cache holds."""
        seconds = (self.request.window.end - self.request.window.start) / SAMPLE_RATE
        return min(_MAX_TEXT_TOKENS, _FREE_TOKENS + int(_TOKENS_PER_SECOND * seconds))

    @property
    def looks_wrong(self) -> bool:
        """Whether a finished sequence deserves a second try."""
        is_broken_off = self.finish_reason in (FinishReason.TOKEN_LIMIT, FinishReason.LOOP)
        is_doubtful = self.request.wants_whole and is_unlikely(self.avg_logprob, self.n_scored)
        return not self.full_context and (is_broken_off or is_doubtful)

    @property
    def avg_logprob(self) -> float:
        """Mean over the tokens that the model chose."""
        return self.logprob_sum / max(1, self.n_scored)

    def enter(self, step: StepTokens) -> None:
        """Add what was gained, token by token, so that a draft is broken off where plain decoding would be."""
        for token, logprob in zip(step.tokens, step.logprobs, strict=False):
            self.logprob_sum += logprob
            self.n_scored += 1
            if len(self.tokens) < self.max_tokens:
                self.tokens.append(token)
                self.logprobs.append(logprob)
            if loop_period(self.tokens):
                n_prefix = len(self.request.prefix)
                self.tokens = without_loop(self.tokens, n_kept=n_prefix)
                del self.logprobs[len(self.tokens) - n_prefix :]
                self.finish_reason = FinishReason.LOOP
                return
            if len(self.tokens) >= self.max_tokens:
                self.finish_reason = FinishReason.TOKEN_LIMIT
                return
        if step.ended:
            self.logprob_sum += step.logprobs[-1]
            self.n_scored += 1
            self.finish_reason = FinishReason.END_OF_TEXT

    def to_hypothesis(self) -> Hypothesis:
        """Return the result of a finished sequence."""
        assert self.finish_reason is not None
        return Hypothesis(
            tokens=tuple(self.tokens),
            avg_logprob=self.avg_logprob,
            no_speech_prob=self.no_speech_prob,
            language=self.language,
            finish_reason=self.finish_reason,
            words=self.words,
            language_prob=self.language_prob,
            logprobs=tuple(self.logprobs),
        )
