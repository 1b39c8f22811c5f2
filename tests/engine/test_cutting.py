"""Where long speech is cut, and how text is divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cutting import choose_cut, ends_sentence, to_segments
from engine.types import SAMPLE_RATE, Segment, Window, Word
from tests.engine.scripted import ms

WINDOW = Window(SAMPLE_RATE, 26 * SAMPLE_RATE)


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


@given(words=spoken_words(), n_committed=st.integers(0, 80))
def test_a_cut_keeps_committed_text_together_and_leaves_audio_on_both_sides(
    words: list[Word], n_committed: int
) -> None:
    n_words = choose_cut(words, WINDOW, n_committed)
    if n_words is None:
        return
    assert 1 <= n_words < len(words)
    assert sum(len(word.tokens) for word in words[:n_words]) >= n_committed
    assert words[n_words - 1].end - WINDOW.start >= 8 * SAMPLE_RATE
    assert WINDOW.end - words[n_words - 1].end >= SAMPLE_RATE


@given(words=spoken_words())
def test_a_cut_prefers_the_end_of_a_sentence(words: list[Word]) -> None:
    n_words = choose_cut(words, WINDOW, 0)
    possible = [
        n
        for n, word in enumerate(words[:-1], start=1)
        if ends_sentence(word) and WINDOW.start + 8 * SAMPLE_RATE <= word.end <= WINDOW.end - ms(1500)
    ]
    if possible:
        assert n_words == possible[-1]


def test_without_a_sentence_the_widest_gap_is_cut() -> None:
    words = make_words(*["a"] * 40)
    words[25:] = [Word(w.text, w.tokens, w.start + 4000, w.end + 4000, 0.9) for w in words[25:]]
    assert choose_cut(words, WINDOW, 0) == 25


@pytest.mark.parametrize("words", [[], make_words("alone"), make_words("two", "words")])
def test_there_is_no_cut_in_little_text(words: list[Word]) -> None:
    assert choose_cut(words, WINDOW, 0) is None


def test_there_is_no_cut_inside_committed_text() -> None:
    words = make_words(*["a"] * 40)
    assert choose_cut(words, WINDOW, len(words)) is None


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
