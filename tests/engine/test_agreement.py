"""Laws of the commit rule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.agreement import Agreement, TokenWord, common_prefix, flatten

words = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple), max_size=6)


def make_agreement(*hypotheses: list[TokenWord]) -> Agreement:
    agreement = Agreement()
    for fresh in hypotheses:
        agreement.observe(fresh)
    return agreement


@given(guess=words, hypotheses=st.lists(words, max_size=8))
def test_committed_words_only_grow(guess: list[TokenWord], hypotheses: list[list[TokenWord]]) -> None:
    agreement = Agreement(guess)
    for fresh in hypotheses:
        before = list(agreement.committed)
        agreement.observe(fresh)
        assert agreement.committed[: len(before)] == before


@given(guess=words, hypotheses=st.lists(words, max_size=8))
def test_committed_and_tentative_are_the_newest_hypothesis(
    guess: list[TokenWord], hypotheses: list[list[TokenWord]]
) -> None:
    agreement = Agreement(guess)
    for fresh in hypotheses:
        forced = agreement.committed_tokens
        agreement.observe(fresh)
        assert agreement.committed_tokens + agreement.tentative_tokens == forced + flatten(fresh)


@given(guess=words, hypotheses=st.lists(words, min_size=1, max_size=8))
def test_only_what_two_hypotheses_say_alike_is_committed(
    guess: list[TokenWord], hypotheses: list[list[TokenWord]]
) -> None:
    agreement = Agreement(guess)
    for fresh in hypotheses:
        before, last = len(agreement.committed), agreement.tentative
        agreement.observe(fresh)
        gained = agreement.committed[before:]
        assert gained == last[: len(gained)] == fresh[: len(gained)]
        assert len(gained) < max(1, len(fresh)), "the last word may be cut in the middle"


def test_a_word_is_committed_by_its_second_hearing() -> None:
    agreement = make_agreement([(1,), (2,), (9,)])
    assert agreement.committed == []
    agreement.observe([(1,), (2,), (3,), (8,)])
    assert agreement.committed == [(1,), (2,)]
    assert agreement.tentative == [(3,), (8,)]


def test_a_disagreement_commits_nothing_behind_it() -> None:
    assert make_agreement([(1,), (2,), (3,), (4,)], [(1,), (7,), (3,), (4,)]).committed == [(1,)]


def test_a_guess_counts_as_the_first_hearing() -> None:
    agreement = Agreement([(1,), (2,), (3,)])
    agreement.observe([(1,), (2,), (3,), (4,)])
    assert agreement.committed == [(1,), (2,)]


@given(left=words, right=words)
def test_the_common_prefix_is_the_longest(left: list[TokenWord], right: list[TokenWord]) -> None:
    n = common_prefix(left, right)
    assert left[:n] == right[:n]
    assert n in (len(left), len(right)) or left[n] != right[n]
