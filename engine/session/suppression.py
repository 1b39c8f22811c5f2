"""Signs that a text was never said.

Where nobody speaks Whisper writes what often stood under such sounds in training; the session keeps that from the text.
Pure functions of tokens and probabilities; no lists of phrases, which somebody may really say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.session.requests import Hypothesis
from engine.types import SuppressReason

_ECHO_RUN = 3  # tokens
_ECHO_SHARE = 0.8
_LEAST_SPEECH_LOGPROB = -2.75
_LEAST_SPEECH_PROB = 0.2
_LEAST_LED_LOGPROB = -1.75
_ECHO_NO_SPEECH_PROB = 0.3
_ECHO_LOGPROB = -0.7


def suppress_reason(hypothesis: Hypothesis, speech_prob: float, prompt: Sequence[int]) -> SuppressReason | None:
    """Why the text of an utterance of which nothing is committed is no text; None where it is one.

    Args:
        hypothesis: decoded without a forced prefix, so that its probabilities are those of the whole window.
        speech_prob: mean of what the speech detector gave the utterance so far.
        prompt: what the model was told to have been said before.
    """
    if not hypothesis.tokens:
        return None
    if is_no_speech(hypothesis, speech_prob):
        return SuppressReason.NO_SPEECH
    return SuppressReason.PROMPT_ECHO if echoes(hypothesis, prompt) else None


def is_no_speech(hypothesis: Hypothesis, speech_prob: float) -> bool:
    """Whether doubts that anything was said add up: the model's, those of its text, and the speech detector's.

    Whisper's own rule asks for the first two, each against a bound of its own (openai/whisper, transcribe.py), and so
    takes what is doubtful in both ways for text. Here the probability of speech, the mean probability per token and the
    detector's are multiplied: one clear sign makes up for two weak ones. The detector alone never decides, because a
    session may ask to be heard where it is nearly sure that nobody speaks. Bounds by measurement: README, Decisions.
    """
    speech_logprob = math.log(max(1 - hypothesis.no_speech_prob, 1e-6))
    return speech_logprob + _text_logprob(hypothesis, speech_prob) < _LEAST_SPEECH_LOGPROB


def needs_own_window(hypothesis: Hypothesis, speech_prob: float) -> bool:
    """Whether a text behind the words before is so doubtful that the model has to say whether it is speech at all.

    With the words before in view it cannot: they are speech.
    """
    return _text_logprob(hypothesis, speech_prob) < _LEAST_LED_LOGPROB


def _text_logprob(hypothesis: Hypothesis, speech_prob: float) -> float:
    return hypothesis.avg_logprob + math.log(max(speech_prob, _LEAST_SPEECH_PROB))


def echoes(hypothesis: Hypothesis, prompt: Sequence[int]) -> bool:
    """Whether a doubtful text merely repeats the prompt: nearly all runs of three tokens are the prompt's."""
    tokens = hypothesis.tokens
    is_doubtful = hypothesis.no_speech_prob > _ECHO_NO_SPEECH_PROB or hypothesis.avg_logprob < _ECHO_LOGPROB
    if not prompt or not tokens or not is_doubtful:
        return False
    length = min(_ECHO_RUN, len(tokens))
    told = set(_runs(prompt, length))
    runs = _runs(tokens, length)
    return sum(run in told for run in runs) >= _ECHO_SHARE * len(runs)


def _runs(tokens: Sequence[int], length: int) -> list[tuple[int, ...]]:
    return [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
