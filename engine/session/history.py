"""What the model takes for the text before an utterance: the session's prompt, and its last words if they are wanted.

Whisper was trained to go on from earlier text, so it keeps its spelling, but also its mistakes: what the model was
unsure of, what went round in a loop, what is in another language or lies long ago is not passed on. Pure: tokens and
samples only. One `History` belongs to one session.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.session.requests import FinishReason, Hypothesis
from engine.types import SAMPLE_RATE

# Of Whisper's 448 text positions, so that 224 tokens of text, four of the prompt itself and the mark before the history
# always fit.
MAX_HISTORY_TOKENS = 219
_LEAST_LOGPROB = -0.7  # mean per token: below it the text is more wrong than right
_LONGEST_PAUSE = 10 * SAMPLE_RATE


class History:
    """Call `note` with each final text and `before` when an utterance is first decoded."""

    def __init__(self, prompt: Sequence[int], *, keeps_text: bool) -> None:
        """Begin a session.

        Args:
            prompt: tokens that every utterance is given; at most MAX_HISTORY_TOKENS.
            keeps_text: the last words are given too, as many as there is room for.
        """
        self.prompt = tuple(prompt)
        assert len(self.prompt) <= MAX_HISTORY_TOKENS, f"a prompt of {len(self.prompt)} tokens"
        self._keeps_text = keeps_text
        self._text: list[int] = []
        self._language = ""
        self._end = 0

    def note(self, tokens: Sequence[int], hypothesis: Hypothesis, end: int) -> None:
        """Take what became final of a hypothesis; `end` is the sample at which it ends."""
        if not self._keeps_text or not tokens:
            return
        is_sound = hypothesis.finish_reason is FinishReason.END_OF_TEXT and hypothesis.avg_logprob >= _LEAST_LOGPROB
        if not is_sound or hypothesis.language != self._language:
            self._text.clear()
        if is_sound:
            self._text += tokens
        self._language, self._end = hypothesis.language, end

    def before(self, start: int) -> tuple[int, ...]:
        """Return what was said before an utterance that starts at sample `start`."""
        if start - self._end > _LONGEST_PAUSE:
            self._text.clear()
        n_free = MAX_HISTORY_TOKENS - len(self.prompt)
        return (*self.prompt, *self._text[-n_free:]) if n_free else self.prompt
