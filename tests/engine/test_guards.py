"""Loops are found and kept once; ordinary speech is left alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.guards import is_unlikely, loop_period, without_loop

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


def test_a_few_tokens_are_never_unlikely() -> None:
    assert is_unlikely(-1.5, 5) and not is_unlikely(-0.9, 5) and not is_unlikely(-1.5, 4)
