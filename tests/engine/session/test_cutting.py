"""Where long speech is cut, and how text is divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.session.cutting import CutRules, choose_cut, ends_sentence, n_settled, to_segments, with_known_times
from engine.session.requests import Window
from engine.types import SAMPLE_RATE, Segment, Word
from tests.engine.scripted import ms

WINDOW = Window(SAMPLE_RATE, 26 * SAMPLE_RATE)
RULES = CutRules()


def make_words(*texts: str, word_ms: int = 500, start: int = WINDOW.start) -> list[Word]:
    """Words without gaps, one token each."""
    step = ms(word_ms)
    return [Word(t, (i,), start + i * step, start + (i + 1) * step, 0.9) for i, t in enumerate(texts)]


@st.composite
def spoken_words(draw: st.DrawFn) -> list[Word]:
    """Words of one to three tokens in order of time, gaps between them, some at the end of a sentence."""
    words: list[Word] = []
    clock = WINDOW.start
    for index in range(draw(st.integers(0, 60))):
        start = clock + ms(draw(st.integers(0, 400)))
        end = clock = start + ms(draw(st.integers(100, 900)))
        if end > WINDOW.end:
            break
        text = f" w{index}" + draw(st.sampled_from(["", "", ".", "?", ","]))
        words.append(Word(text, tuple(range(draw(st.integers(1, 3)))), start, end, 0.9))
    return words


@pytest.mark.parametrize("longest_s", [5, 8, 30])
def test_a_shorter_limit_cuts_earlier_in_proportion(longest_s: int) -> None:
    rules = CutRules(longest_s * SAMPLE_RATE)
    shares = [length / rules.longest for length in (rules.look_after, rules.patience, rules.least_kept)]
    assert shares == pytest.approx([24 / 30, 28 / 30, 8 / 30], abs=1e-4)


@given(words=spoken_words(), n_committed=st.integers(0, 80), is_full=st.booleans())
def test_a_cut_covers_the_committed_text_and_leaves_what_is_in_doubt(
    words: list[Word], n_committed: int, is_full: bool
) -> None:
    tokens = [token for word in words for token in word.tokens]
    n_committed = min(n_committed, len(tokens))
    n_words = choose_cut(words, WINDOW, n_committed, RULES, is_full=is_full)
    if n_words is None:
        assert not is_full
        return
    kept, rest = words[:n_words], words[n_words:]
    n_kept = sum(len(word.tokens) for word in kept)
    assert n_kept >= n_committed
    assert rest or is_full
    if rest and not is_full:
        assert kept[-1].end - WINDOW.start >= 8 * SAMPLE_RATE
        is_committed = n_kept - len(kept[-1].tokens) < n_committed
        assert is_committed or WINDOW.end - kept[-1].end >= SAMPLE_RATE


@given(words=spoken_words(), is_full=st.booleans())
def test_a_cut_prefers_the_end_of_a_sentence(words: list[Word], is_full: bool) -> None:
    possible = [
        n
        for n, word in enumerate(words[:-1], start=1)
        if ends_sentence(word) and WINDOW.start + 8 * SAMPLE_RATE <= word.end <= WINDOW.end - ms(1500)
    ]
    if possible:
        assert choose_cut(words, WINDOW, 0, RULES, is_full=is_full) == possible[-1]


def test_inside_a_sentence_the_cut_waits_then_takes_the_widest_gap() -> None:
    words = make_words(*["a"] * 40)
    words[25:] = [Word(w.text, w.tokens, w.start + 4000, w.end + 4000, 0.9) for w in words[25:]]
    assert choose_cut(words, WINDOW, 0, RULES, is_full=False) is None
    assert choose_cut(words, Window(WINDOW.start, WINDOW.start + ms(28_000)), 0, RULES, is_full=False) == 25
    assert choose_cut(words, WINDOW, 0, RULES, is_full=True) == 25


def test_committed_text_ends_at_a_good_place_however_near_the_end() -> None:
    words = make_words(*["a"] * 49)
    words[47] = Word("end.", (47,), words[47].start, words[47].end, 0.9)
    assert choose_cut(words, WINDOW, 48, RULES, is_full=False) == 48
    assert choose_cut(words, WINDOW, 47, RULES, is_full=False) is None


def test_a_full_window_leaves_the_last_word_which_may_be_cut_in_the_middle() -> None:
    words = make_words("two", "words", start=WINDOW.end - ms(1000))
    assert choose_cut(words, WINDOW, 0, RULES, is_full=True) == 1


def test_a_full_window_without_any_place_is_cut_at_its_end() -> None:
    assert choose_cut([], WINDOW, 0, RULES, is_full=True) == 0
    assert choose_cut([Word("noise", (0,), WINDOW.start, WINDOW.end, 0.1)], WINDOW, 0, RULES, is_full=True) == 1


@pytest.mark.parametrize("words", [[], make_words("alone"), make_words("two", "words")])
def test_there_is_no_cut_in_little_text(words: list[Word]) -> None:
    assert choose_cut(words, WINDOW, 0, RULES, is_full=False) is None


def test_there_is_no_cut_inside_committed_text() -> None:
    words = make_words(*["a."] * 40)
    assert choose_cut(words, WINDOW, len(words), RULES, is_full=False) is None


@given(words=spoken_words())
def test_segments_hold_every_word_once_in_order(words: list[Word]) -> None:
    text = "".join(word.text for word in words).strip()
    segments = to_segments(text, words, WINDOW.start, WINDOW.end)
    assert " ".join(segment.text for segment in segments) == text
    assert all(segment.start <= segment.end for segment in segments)
    assert [s.start for s in segments] == sorted(s.start for s in segments)
    assert all(before.text.endswith((".", "?")) for before in segments[:-1])


def test_a_segment_is_a_sentence_with_the_times_of_its_words() -> None:
    words = make_words(" One", " two.", " Three?", " Four")
    times = [(segment.text, segment.start, segment.end) for segment in to_segments("One two. Three? Four", words, 0, 9)]
    assert times == [
        ("One two.", words[0].start, words[1].end),
        ("Three?", words[2].start, words[2].end),
        ("Four", words[3].start, words[3].end),
    ]


def test_text_without_words_is_one_segment() -> None:
    assert to_segments("One. Two.", (), 5, 9) == (Segment("One. Two.", 5, 9),)


def test_no_text_is_no_segment() -> None:
    assert to_segments("", (), 5, 9) == ()


@pytest.mark.parametrize("text", [" end.", " end?", " end!", ' end."', " end.)", "終。", "终？", " end…", " end.»"])
def test_punctuation_ends_a_sentence(text: str) -> None:
    assert ends_sentence(make_words(text)[0])


@pytest.mark.parametrize("text", [" word", " word,", " 3.5", ' "word"', ""])
def test_a_word_does_not_end_a_sentence(text: str) -> None:
    assert not ends_sentence(make_words(text)[0])


def test_what_lies_a_second_and_a_half_before_the_end_is_settled() -> None:
    words = make_words("a", "b", "c", "d", "e", start=WINDOW.end - ms(2500))
    assert n_settled(words, WINDOW) == 2
    assert n_settled(words[:1], WINDOW) == 1
    assert n_settled(words[2:], WINDOW) == n_settled([], WINDOW) == 0


def test_known_words_have_the_times_they_had_and_the_others_come_later() -> None:
    known = [Word(" a", (1,), 100, 200, 0.9), Word(" b", (2,), 200, 300, 0.9)]
    drawn = [Word(" a", (1,), 900, 905, 0.5), Word(" b,", (2, 9), 905, 910, 0.5), Word(" c", (3,), 250, 280, 0.5)]
    timed = with_known_times(drawn, known)
    assert [(word.text, word.start, word.end) for word in timed] == [
        (" a", 100, 200),
        (" b,", 200, 300),
        (" c", 300, 300),
    ]
    assert with_known_times(drawn[2:], known) == (drawn[2],), "another word has the time that it was heard at"
    assert with_known_times([], known) == ()
