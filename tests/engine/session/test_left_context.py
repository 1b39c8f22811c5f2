"""What leads to an utterance."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.session.left_context import LONGEST_LEFT_CONTEXT, LeftContext, LeftContextSource, without_left_context
from engine.session.requests import FinishReason, Hypothesis
from engine.types import MAX_WINDOW_SAMPLES, Word
from tests.engine.scripted import ms


def word(token: int, start_ms: int, end_ms: int) -> Word:
    return Word(f" w{token}", (token,), ms(start_ms), ms(end_ms), 0.9)


def lead_before(start_ms: int, *words: Word, window_start: int = 0) -> LeftContext | None:
    last_words = LeftContextSource(MAX_WINDOW_SAMPLES)
    last_words.note(words, window_start)
    return last_words.before(ms(start_ms))


def speech(n_words: int) -> list[Word]:
    return [word(n, 500 * n, 500 * n + 500) for n in range(n_words)]


def test_the_words_before_lead_to_an_utterance_from_where_their_window_began() -> None:
    words = (word(1, 1000, 1500), word(2, 1500, 2000), word(3, 2000, 2500))
    assert lead_before(3000, *words, window_start=ms(600)) == LeftContext(ms(600), (1, 2, 3))
    assert lead_before(3000, *words, window_start=ms(1500)) == LeftContext(ms(1500), (2, 3))


def test_a_lead_that_has_become_too_long_begins_anew_with_the_last_words() -> None:
    kept = lead_before(26_000, *speech(52))
    assert kept == LeftContext(0, tuple(range(52)))
    anew = lead_before(26_500, *speech(53))
    assert anew is not None and anew.tokens == tuple(range(14, 53)) and anew.start == ms(7_000)


def test_a_lead_of_too_many_tokens_begins_anew() -> None:
    words = [word(n, 100 * n, 100 * n + 100) for n in range(113)]
    assert lead_before(11_200, *words[:112]) == LeftContext(0, tuple(range(112)))
    anew = lead_before(11_300, *words)
    assert anew is not None and anew.tokens == tuple(range(33, 113))


def test_a_word_that_ended_where_the_window_began_is_not_in_it() -> None:
    words = (word(1, 1000, 1500), word(2, 2000, 2000), word(3, 2000, 2500))
    assert lead_before(3000, *words, window_start=ms(2000)) == LeftContext(ms(2000), (3,))


def test_nothing_leads_to_the_first_utterance_and_to_one_after_a_long_pause() -> None:
    assert lead_before(2500) is None
    assert lead_before(5100, word(1, 1000, 2000)) is None


def test_what_lies_behind_a_long_pause_is_left_out() -> None:
    assert lead_before(7500, word(1, 0, 1000), word(2, 6000, 7000)) == LeftContext(ms(5800), (2,))


def test_where_windows_are_short_so_are_leads() -> None:
    last_words = LeftContextSource(ms(8000))
    last_words.note(speech(40), 0)
    lead = last_words.before(ms(20_000))
    assert lead is not None and lead.tokens == (37, 38, 39)


def test_a_lead_begins_with_no_part_of_the_word_before() -> None:
    words = speech(60)
    lead = lead_before(30_000, *words)
    assert lead is not None
    assert lead.start == words[lead.tokens[0]].start
    assert lead.tokens[-1] == 59


@given(
    lengths=st.lists(st.integers(50, 3000), max_size=80),
    gap_ms=st.integers(0, 4000),
    window_start=st.integers(0, ms(60_000)),
)
def test_a_lead_is_bounded_and_has_all_words_from_its_beginning_on(
    lengths: list[int], gap_ms: int, window_start: int
) -> None:
    words = []
    clock = 0
    for token, length in enumerate(lengths):
        words.append(word(token, clock, clock + length))
        clock += length
    start = ms(clock + gap_ms)
    lead = lead_before(clock + gap_ms, *words, window_start=window_start)
    if lead is not None:
        assert 0 <= start - lead.start <= LONGEST_LEFT_CONTEXT
        assert list(lead.tokens) == [w.tokens[0] for w in words if w.start >= lead.start]
        assert all(after - before == 1 for before, after in pairwise(lead.tokens))


def decode(tokens: Sequence[int]) -> str:
    return "".join(f" w{token}" for token in tokens)


def test_a_word_that_began_in_the_lead_keeps_its_rest() -> None:
    words = (word(1, 1000, 1500), Word(" w2,", (2, 3), ms(1500), ms(2600), 0.9), word(4, 2600, 3100))
    whole = Hypothesis((1, 2, 3, 4), -0.1, 0.0, "en", FinishReason.END_OF_TEXT, words)
    rest = without_left_context(whole, 2, ms(2500), decode)
    assert [w.tokens for w in rest.words] == [(3,), (4,)]
    assert rest.words[0] == Word(" w3", (3,), ms(2500), ms(2600), 0.9)
    assert sum((w.tokens for w in rest.words), ()) == rest.tokens


def test_a_hypothesis_without_its_lead_has_the_words_of_the_utterance_alone() -> None:
    words = (word(1, 1000, 1500), word(2, 1500, 2300), word(3, 2300, 2800), word(4, 2800, 3100))
    whole = Hypothesis((1, 2, 3, 4), -0.1, 0.0, "en", FinishReason.END_OF_TEXT, words)
    rest = without_left_context(whole, 2, ms(2500), decode)
    assert rest.tokens == (3, 4)
    assert [(w.tokens, w.start, w.end) for w in rest.words] == [
        ((3,), ms(2500), ms(2800)),
        ((4,), ms(2800), ms(3100)),
    ]
