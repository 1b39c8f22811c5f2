"""Loops are found and kept once; ordinary speech is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.decode.guards import is_unlikely, loop_period, without_loop
from engine.session.requests import FinishReason, Hypothesis
from engine.session.suppression import is_no_speech

phrases = st.lists(st.integers(0, 50), min_size=1, max_size=12)


@given(start=st.lists(st.integers(51, 99), max_size=20), phrase=phrases, repeats=st.integers(16, 20))
def test_a_repeating_end_is_a_loop_and_is_kept_once(start: list[int], phrase: list[int], repeats: int) -> None:
    tokens = start + phrase * repeats
    period = loop_period(tokens)
    assert 0 < period <= len(phrase) and len(phrase) % period == 0
    assert without_loop(tokens) == start + phrase[:period]


@given(st.lists(st.integers(0, 10_000), unique=True))
def test_text_that_repeats_nothing_is_left_alone(tokens: list[int]) -> None:
    assert loop_period(tokens) == 0
    assert without_loop(tokens) == tokens


@given(word=st.integers(), repeats=st.integers(1, 8))
def test_a_word_said_a_few_times_is_speech(word: int, repeats: int) -> None:
    assert loop_period([word] * repeats) == 0


@pytest.mark.parametrize(
    ("no_speech_prob", "avg_logprob", "speech_prob", "expected"),
    [
        (0.95, -0.6, 0.5, True),  # no word is very unlikely, but there is hardly any speech
        (0.6, -0.9, 0.2, True),  # three weak doubts
        (0.5, -1.1, 0.2, True),  # a guitar
        (0.6, -0.9, 0.8, False),  # the detector is sure
        (0.1, -0.4, 0.2, False),  # a faint voice, but every word is clear
        (0.05, -1.9, 0.8, False),  # unclear speech
        (1.0, 0.0, 1.0, True),
        (0.1, -0.8, 0.0, False),  # the detector alone decides nothing
    ],
)
def test_doubts_add_up_and_one_clear_sign_makes_up_for_two(
    no_speech_prob: float, avg_logprob: float, speech_prob: float, expected: bool
) -> None:
    hypothesis = Hypothesis((1,), avg_logprob, no_speech_prob, "en", FinishReason.END_OF_TEXT)
    assert is_no_speech(hypothesis, speech_prob) is expected


def test_a_few_tokens_are_never_unlikely() -> None:
    assert is_unlikely(-1.5, 5) and not is_unlikely(-0.9, 5) and not is_unlikely(-1.5, 4)
