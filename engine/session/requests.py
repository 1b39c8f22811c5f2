"""What a session asks of the decoder, and what it gets back. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.session.hotwords import Hotwords
from engine.types import MAX_WINDOW_SAMPLES, POSITION_SAMPLES, Samples, Task, Word


class FinishReason(StrEnum):
    """Why the decoding of a window stopped."""

    END_OF_TEXT = "end_of_text"
    TOKEN_LIMIT = "token_limit"
    LOOP = "loop"  # the text repeated itself; it is kept once


@dataclass(frozen=True, slots=True)
class Window:
    """The audio interval [start, end) shown to the encoder, in samples of the session clock."""

    start: int
    end: int

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end, f"empty window {self.start}..{self.end}"
        assert self.end - self.start <= MAX_WINDOW_SAMPLES, f"window of {self.end - self.start} samples"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One window to transcribe.

    Attributes:
        session_id, utterance_id: whose it is; at most one request per utterance is in flight.
        window: where the audio lies on the session clock.
        audio: (window.end - window.start,) float32.
        prefix: text tokens that are forced, never decoded again: those of what was said before the utterance, if the
            window begins there, then those that are committed.
        n_left_context: so many tokens of the prefix were said before the utterance.
        draft: a guess at the tokens after the prefix, verified in one pass; it changes the cost, never the result.
        language: language code, or None to detect.
        likely_language: what is spoken unless another language is so many times (`language_odds`) as probable.
        task: transcribe or translate.
        history: text tokens that the model takes for what was said before; at most `MAX_HISTORY_TOKENS`.
        hotwords: words that are raised while they are decoded.
        wants_words: the hypothesis is to carry word times.
        is_final: the utterance is over; somebody waits for exactly this result.
        ready_at: when the request became possible, in the engine's `now`; for queue wait and fairness.
        own_start: sample at which the utterance itself begins; what lies before it is final.
    """

    session_id: str
    utterance_id: int
    window: Window
    audio: Samples
    prefix: tuple[int, ...]
    draft: tuple[int, ...]
    language: str | None
    wants_words: bool
    is_final: bool
    ready_at: float
    likely_language: str | None = None
    language_odds: float = 1.0
    task: Task = Task.TRANSCRIBE
    history: tuple[int, ...] = ()
    hotwords: Hotwords | None = None
    n_left_context: int = 0
    own_start: int = 0

    @property
    def n_committed(self) -> int:
        """Tokens of the prefix that are committed for this utterance: those behind the lead."""
        return len(self.prefix) - self.n_left_context

    @property
    def wants_whole(self) -> bool:
        """What may become final is encoded with the whole window in view; nothing frozen is reused of it."""
        return self.is_final or self.wants_words

    @property
    def n_final_positions(self) -> int:
        """Encoder positions at the beginning of the window whose text is final."""
        return max(0, self.own_start - self.window.start) // POSITION_SAMPLES


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The result of decoding one window.

    Attributes:
        tokens: text tokens, the forced prefix included.
        avg_logprob: mean log-probability of the decoded tokens (the end token counts, the prefix does not).
        no_speech_prob: probability that the model gave to "no speech" before any text; 0 where text is committed.
        language: language of the window, given or detected.
        language_prob: how probable the model found it among all languages; 1 where it was not asked.
        logprobs: of the decoded tokens, one per token behind the prefix.
        words: with times; only where the request asked for them (finals, and windows about to be cut).
        finish_reason: why decoding stopped.
    """

    tokens: tuple[int, ...]
    avg_logprob: float
    no_speech_prob: float
    language: str
    finish_reason: FinishReason
    words: tuple[Word, ...] = ()
    language_prob: float = 1.0
    logprobs: tuple[float, ...] = ()
