"""Which tentative words are shown, and that words change their form without changing anything else."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.session.agreement import TokenWord, flatten
from engine.session.partials import PartialFilter, with_forms, word_logprobs
from engine.session.requests import FinishReason, Hypothesis
from engine.types import Stability, Word

words = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple), max_size=6)


def text_of(tokens: Sequence[int]) -> str:
    return "".join(map(str, tokens))


def make_hypothesis(spoken: Sequence[TokenWord]) -> Hypothesis:
    timed = tuple(Word(text_of(word), word, i, i + 1, 0.5) for i, word in enumerate(spoken))
    return Hypothesis(flatten(spoken), -0.1, 0.01, "en", FinishReason.END_OF_TEXT, timed)


def shows(stability: Stability = Stability.BALANCED) -> PartialFilter:
    return PartialFilter(stability, key=lambda word: word)


heard = st.lists(st.tuples(words, st.lists(st.floats(-3, 0), min_size=6, max_size=6)), min_size=1, max_size=6)


@given(heard, st.data())
def test_each_mode_shows_no_more_than_the_faster_one_unless_it_keeps_what_was_shown(
    heard: list[tuple[list[TokenWord], list[float]]], data: st.DataObject
) -> None:
    modes = {stability: shows(stability) for stability in Stability}
    committed: list[TokenWord] = []
    before: tuple[int, ...] = ()
    for newest, certainties in heard:
        n_committed = data.draw(st.integers(0, len(newest)))
        committed, tentative = committed + newest[:n_committed], newest[n_committed:]
        logprobs = certainties[: len(tentative)]
        shown = {
            stability: flatten(committed) + showing.update(committed, tentative, logprobs, [0] * len(tentative))
            for stability, showing in modes.items()
        }
        everything = flatten([*committed, *tentative])
        assert shown[Stability.FAST] == everything
        assert shown[Stability.FINAL] == flatten(committed)
        balanced = shown[Stability.BALANCED]
        assert balanced in (everything[: len(balanced)], before)
        before = balanced


def n_shown(*probabilities: float, committed: int = 0, ages: Sequence[int] = (0,) * 9) -> int:
    words = [(n,) for n in range(len(probabilities))]
    logprobs = [math.log(probability) for probability in probabilities]
    return len(shows().update([(-1 - n,) for n in range(committed)], words, logprobs, ages))


def test_balanced_shows_words_up_to_the_first_doubtful_one_and_never_the_last() -> None:
    assert n_shown(0.9, 0.8, 0.9) == 2
    assert n_shown(0.9, 0.4, 0.9, 0.9) == 1
    assert n_shown(0.9) == n_shown() == 0


def test_the_first_word_of_an_utterance_is_shown_even_if_it_is_less_certain() -> None:
    assert n_shown(0.4, 0.9) == 1
    assert n_shown(0.1, 0.9) == 0
    assert n_shown(0.4, 0.9, committed=1) == 0
    assert n_shown(0.9, 0.4, 0.9) == 1


def test_a_word_needs_the_less_the_longer_it_stayed_the_same() -> None:
    assert n_shown(0.9, 0.45, 0.9, ages=(0, 96_000, 0)) == 2
    assert n_shown(0.9, 0.45, 0.9, ages=(0, 48_000, 0)) == 1
    assert n_shown(0.01, 0.01, 0.9, ages=(240_000, 240_000, 0)) == 2
    assert n_shown(0.01, 0.01, 0.9, ages=(240_000, 240_000, 240_000)) == 2, "never the last one"


def test_only_the_certainty_of_the_words_behind_the_committed_ones_counts() -> None:
    logprobs = [-9.0, -9.0, -0.1, -0.1]
    assert shows().update([(1,), (2,)], [(3,), (4,)], logprobs, [0, 0]) == (3,)


SURE, DOUBTFUL = math.log(0.9), math.log(0.2)


def test_what_is_shown_stays_until_something_certain_takes_its_place() -> None:
    showing = shows()
    assert showing.update([], [(1,), (2,), (3,)], [SURE] * 3, [0] * 3) == (1, 2)
    assert showing.update([], [(1,), (2,), (4,), (5,)], [DOUBTFUL] * 4, [0] * 4) == (1, 2), "the same words, in doubt"
    assert showing.update([], [(1,), (7,), (8,)], [SURE, DOUBTFUL, SURE], [0] * 3) == (1, 2), "another word, in doubt"
    assert showing.update([], [], [], []) == (1, 2), "nothing at all"
    assert showing.update([], [(1,), (7,), (8,)], [SURE] * 3, [0] * 3) == (1, 7), "another word, for certain"


def test_what_is_shown_gives_way_to_what_is_committed() -> None:
    showing = shows()
    assert showing.update([], [(1,), (2,), (3,)], [SURE] * 3, [0] * 3) == (1, 2)
    assert showing.update([(1,)], [(9,)], [DOUBTFUL], [0]) == (2,)
    assert showing.update([(1,), (9,)], [(8,)], [DOUBTFUL], [0]) == ()


@given(prefix=words, fresh=words, data=st.data())
def test_words_take_another_form_and_keep_their_times(
    prefix: list[TokenWord], fresh: list[TokenWord], data: st.DataObject
) -> None:
    form = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple)
    settled = [data.draw(st.just(word) | form) for word in fresh]
    before = make_hypothesis(prefix + fresh)
    after = with_forms(before, len(flatten(prefix)), fresh, settled, text_of)
    assert after == make_hypothesis(prefix + settled)


def test_a_word_that_the_prefix_runs_into_is_one_word_with_a_new_form() -> None:
    """Behind a prefix a comma may come as a word of its own; among all words it belongs to the one before."""
    whole = make_hypothesis([(1,), (2, 3), (4,)])
    after = with_forms(whole, 2, [(3,), (4,)], [(3,), (5, 6)], text_of)
    assert [word.tokens for word in after.words] == [(1,), (2, 3), (5, 6)]
    after = with_forms(whole, 2, [(3,), (4,)], [(7, 8), (4,)], text_of)
    assert [word.tokens for word in after.words] == [(1,), (2, 7, 8), (4,)]


@given(words, st.data())
def test_a_word_is_as_certain_as_its_least_certain_token(spoken: list[TokenWord], data: st.DataObject) -> None:
    n_tokens = len(flatten(spoken))
    logprobs = data.draw(st.lists(st.floats(-9, 0), min_size=n_tokens, max_size=n_tokens))
    least = word_logprobs(spoken, logprobs, is_sign=lambda token: False)
    assert len(least) == len(spoken)
    assert min(least, default=0.0) == min(logprobs, default=0.0)
    assert all(value in logprobs for value in least)


def test_punctuation_leaves_a_word_as_certain_as_it_is() -> None:
    spoken = [(1, 2, 0), (0,), (0, 3)]
    assert word_logprobs(spoken, [-0.5, -0.1, -9, -8, -7, -0.2], is_sign=lambda token: token == 0) == [-0.5, 0.0, -0.2]
