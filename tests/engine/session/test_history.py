"""What the model is told to have been said before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.session.history import MAX_HISTORY_TOKENS, History
from engine.session.requests import FinishReason, Hypothesis
from engine.types import SAMPLE_RATE

SURE = Hypothesis((1, 2), -0.2, 0.01, "en", FinishReason.END_OF_TEXT)

texts = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=100), max_size=6)


@given(prompt=st.lists(st.integers(10, 19), max_size=MAX_HISTORY_TOKENS), texts=texts)
def test_the_history_is_the_prompt_and_as_many_of_the_last_words_as_fit(
    prompt: list[int], texts: list[list[int]]
) -> None:
    history = History(prompt, keeps_text=True)
    for text in texts:
        history.note(text, SURE, 0)
    told = history.before(0)
    said = [token for text in texts for token in text]
    n_kept = min(len(said), MAX_HISTORY_TOKENS - len(prompt))
    assert told == (*prompt, *said[len(said) - n_kept :])


@pytest.mark.parametrize(
    "doubtful",
    [
        replace(SURE, avg_logprob=-0.9),
        replace(SURE, finish_reason=FinishReason.LOOP),
        replace(SURE, finish_reason=FinishReason.TOKEN_LIMIT),
    ],
)
def test_doubtful_text_is_not_passed_on_and_nothing_before_it(doubtful: Hypothesis) -> None:
    history = History((7,), keeps_text=True)
    history.note((1, 2), SURE, 0)
    history.note((3, 4), doubtful, 0)
    assert history.before(0) == (7,)
    history.note((5,), SURE, 0)
    assert history.before(0) == (7, 5)


def test_another_language_begins_anew() -> None:
    history = History((), keeps_text=True)
    history.note((1, 2), SURE, 0)
    history.note((3,), replace(SURE, language="de"), 0)
    assert history.before(0) == (3,)


def test_what_was_said_long_ago_is_forgotten() -> None:
    history = History((), keeps_text=True)
    history.note((1, 2), SURE, SAMPLE_RATE)
    assert history.before(5 * SAMPLE_RATE) == (1, 2)
    assert history.before(60 * SAMPLE_RATE) == ()


def test_text_is_passed_on_only_where_it_is_wanted() -> None:
    history = History((7,), keeps_text=False)
    history.note((1, 2), SURE, 0)
    assert history.before(0) == (7,)
