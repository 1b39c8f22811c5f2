"""Laws of the commit rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.session.agreement import Agreement, TokenWord, flatten, is_sign, same_word

words = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple), max_size=6)


def make_agreement(*hypotheses: list[TokenWord]) -> Agreement:
    agreement = Agreement()
    for fresh in hypotheses:
        agreement.observe(fresh, 0)
    return agreement


@given(guess=words, hypotheses=st.lists(words, max_size=8))
def test_committed_words_only_grow(guess: list[TokenWord], hypotheses: list[list[TokenWord]]) -> None:
    agreement = Agreement(guess)
    for fresh in hypotheses:
        before = list(agreement.committed)
        agreement.observe(fresh, 0)
        assert agreement.committed[: len(before)] == before


@given(guess=words, hypotheses=st.lists(words, max_size=8))
def test_committed_and_tentative_are_the_newest_hypothesis(
    guess: list[TokenWord], hypotheses: list[list[TokenWord]]
) -> None:
    agreement = Agreement(guess)
    for fresh in hypotheses:
        forced = agreement.committed_tokens
        agreement.observe(fresh, 0)
        assert agreement.committed_tokens + agreement.tentative_tokens == forced + flatten(fresh)


@given(guess=words, hypotheses=st.lists(words, min_size=1, max_size=8))
def test_only_what_two_hypotheses_say_alike_is_committed(
    guess: list[TokenWord], hypotheses: list[list[TokenWord]]
) -> None:
    agreement = Agreement(guess)
    for fresh in hypotheses:
        before, last = len(agreement.committed), agreement.tentative
        agreement.observe(fresh, 0)
        gained = agreement.committed[before:]
        assert gained == last[: len(gained)] == fresh[: len(gained)]
        assert len(gained) < max(1, len(fresh)), "the last word may be cut in the middle"


def test_a_word_is_committed_by_its_second_hearing() -> None:
    agreement = make_agreement([(1,), (2,), (9,)])
    assert agreement.committed == []
    agreement.observe([(1,), (2,), (3,), (8,)], 0)
    assert agreement.committed == [(1,), (2,)]
    assert agreement.tentative == [(3,), (8,)]


def test_a_disagreement_commits_nothing_behind_it() -> None:
    assert make_agreement([(1,), (2,), (3,), (4,)], [(1,), (7,), (3,), (4,)]).committed == [(1,)]


def test_a_guess_counts_as_the_first_hearing() -> None:
    agreement = Agreement([(1,), (2,), (3,)])
    agreement.observe([(1,), (2,), (3,), (4,)], 0)
    assert agreement.committed == [(1,), (2,)]


# ------------------------------------------------------------------------------------------------ forms of a word


def parity(word: TokenWord) -> int:
    """Words agree where their sums are both even or both odd."""
    return sum(word) % 2


@given(guess=words, hypotheses=st.lists(words, max_size=8), commits=st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_word_keeps_the_form_in_which_it_was_heard_first(
    guess: list[TokenWord], hypotheses: list[list[TokenWord]], commits: list[bool]
) -> None:
    agreement = Agreement(guess, key=parity)
    for fresh, may_commit in zip(hypotheses, commits, strict=False):
        committed, tentative = list(agreement.committed), list(agreement.tentative)
        settled = agreement.observe(fresh, 0, commits=may_commit)
        assert [parity(word) for word in settled] == [parity(word) for word in fresh]
        n_agreed = 0
        while n_agreed < min(len(tentative), len(fresh)) - 1 and parity(tentative[n_agreed]) == parity(fresh[n_agreed]):
            n_agreed += 1
        assert settled == tentative[:n_agreed] + fresh[n_agreed:]
        assert agreement.committed == committed + (settled[:n_agreed] if may_commit else [])
        assert agreement.committed + agreement.tentative == committed + settled


@pytest.mark.parametrize(
    ("left", "right"),
    [(" word,", " word"), (" Mr.", " Mr"), (" Then", " then"), (" (so", " so"), (" 1,000.", " 1,000")],
)
def test_case_and_punctuation_do_not_make_another_word(left: str, right: str) -> None:
    assert same_word(left) == same_word(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [(" 5", " 5%"), (" 5", " -5"), (" 2.5", " 25"), (" it's", " its"), (" -", " ..."), (" resume", " résumé")],
)
def test_what_changes_the_meaning_makes_another_word(left: str, right: str) -> None:
    assert same_word(left) != same_word(right)


def test_a_word_is_stable_once_it_was_heard_for_so_long() -> None:
    """However often it was heard; a word that changes begins anew."""
    agreement = Agreement(stable_after=15)
    agreement.observe([(1,), (2,), (9,)], 10)
    for at in range(11, 25):
        agreement.observe([(1,), (3,), (9,)], at)
        assert not agreement.committed
    agreement.observe([(1,), (3,), (9,)], 25)
    assert agreement.committed == [(1,)]
    agreement.observe([(3,), (9,)], 26)
    assert agreement.committed == [(1,), (3,)]


def test_a_guess_is_heard_when_it_was_made() -> None:
    agreement = Agreement([(1,), (2,)], 10, stable_after=15)
    agreement.observe([(1,), (2,)], 24)
    assert not agreement.committed
    agreement.observe([(1,), (2,)], 25)
    assert agreement.committed == [(1,)]


def test_a_certain_word_needs_two_hearings_only_but_waits_for_those_before_it() -> None:
    agreement = Agreement(stable_after=15)
    words = [(1,), (2,), (3,), (9,)]
    agreement.observe(words, 10, [True] * 4)
    assert not agreement.committed, "heard once"
    agreement.observe(words, 11, [True, False, True, True])
    assert agreement.committed == [(1,)]
    agreement.observe(words[1:], 25, [False, True, True])
    assert agreement.committed == [(1,), (2,), (3,)]


def test_an_utterance_may_begin_with_what_is_known_already() -> None:
    agreement = Agreement([(2,), (3,)], committed=[(1,)])
    assert agreement.committed_tokens == (1,)
    agreement.observe([(2,), (3,)], 0, [True, True])
    assert agreement.committed == [(1,), (2,)]


def test_a_sign_is_punctuation_and_nothing_else() -> None:
    assert all(map(is_sign, (",", " ,", ".", "...", "?", "。")))
    assert not any(map(is_sign, ("", " ", " a", "5", "a,", "-", "%")))


def test_a_tentative_word_is_as_old_as_its_agreement() -> None:
    agreement = Agreement([(1,), (2,)], 10, stable_after=99)
    agreement.observe([(1,), (3,), (4,)], 14)
    assert agreement.ages(16) == [6, 2, 2]
    agreement.observe([(1,), (3,), (5,)], 20)
    assert agreement.ages(20) == [10, 6, 0]
