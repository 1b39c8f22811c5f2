"""Where the text of a window leaves out speech."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.session.endpoint import BLOCK_SAMPLES
from engine.session.skipped_speech import SkippedSpeech, SpeechLog, begins_late, find_skipped_speech
from engine.types import Word
from tests.engine.scripted import ms


def said(*spans_ms: tuple[int, int]) -> list[Word]:
    """Words of two tokens each."""
    return [Word(" w", (2 * i, 2 * i + 1), ms(start), ms(end), 0.9) for i, (start, end) in enumerate(spans_ms)]


def log(*spans_ms: tuple[int, int], until_ms: int = 20_000) -> SpeechLog:
    """Speech in these intervals, whole blocks."""
    speech = SpeechLog(0.35)
    for block in range(ms(until_ms) // BLOCK_SAMPLES):
        is_speech = any(ms(start) <= block * BLOCK_SAMPLES < ms(end) for start, end in spans_ms)
        speech.note(0.5 if is_speech else 0.25)
    return speech


ALL = log((0, 20_000))
WORDS = ((0, 500), (500, 1000), (1000, 1500))


def test_a_text_that_goes_as_far_as_the_speech_has_no_hole() -> None:
    assert find_skipped_speech(said(*WORDS), 0, ms(3000), ALL) is None


def test_a_text_that_ends_before_the_speech_does_has_a_hole_at_its_end() -> None:
    assert find_skipped_speech(said(*WORDS), 0, ms(8000), ALL) == SkippedSpeech(3, ms(1500))


def test_silence_is_no_hole() -> None:
    assert find_skipped_speech(said(*WORDS), 0, ms(8000), log((0, 1500), (7000, 8000))) is None


def test_a_text_that_skips_speech_has_a_hole_in_its_middle() -> None:
    words = said(*WORDS, (6000, 6500), (6500, 7000))
    assert find_skipped_speech(words, 0, ms(7000), ALL) == SkippedSpeech(3, ms(1500))


def test_what_was_left_out_may_be_drawn_into_the_word_before() -> None:
    words = said((0, 500), (500, 9000), (9000, 9500))
    assert find_skipped_speech(words, 0, ms(9500), ALL) == SkippedSpeech(2, ms(2000))


@pytest.mark.parametrize(("n_committed", "hole"), [(6, SkippedSpeech(3, ms(1500))), (7, None), (8, None)])
def test_committed_words_stay_whatever_they_leave_out(n_committed: int, hole: SkippedSpeech | None) -> None:
    words = said(*WORDS, (6000, 6500))
    assert find_skipped_speech(words, n_committed, ms(7000), ALL) == hole


def test_without_words_there_is_nothing_to_go_on_from() -> None:
    assert find_skipped_speech([], 0, ms(9000), ALL) is None


def test_two_seconds_of_speech_before_the_first_word_were_left_out() -> None:
    assert begins_late(said((3000, 3400)), ms(900), ALL)
    assert not begins_late(said((2500, 2900)), ms(900), ALL)
    assert not begins_late([], ms(900), ALL)


@given(
    blocks=st.lists(st.booleans(), max_size=200),
    start=st.integers(0, 250),
    length=st.integers(0, 250),
    forgotten=st.integers(0, 250),
)
def test_the_log_counts_the_speech_that_it_still_knows(
    blocks: list[bool], start: int, length: int, forgotten: int
) -> None:
    speech = SpeechLog(0.35)
    for at, is_speech in enumerate(blocks):
        speech.note(is_speech)
        if at % 3 == 0:
            speech.forget_before(min(forgotten, at) * BLOCK_SAMPLES)
    first = max(start, min(forgotten, 3 * ((len(blocks) - 1) // 3) if blocks else 0))
    expected = sum(blocks[first : start + length]) if first < start + length else 0
    assert speech.between(start * BLOCK_SAMPLES, (start + length) * BLOCK_SAMPLES) == expected * BLOCK_SAMPLES


def test_the_log_gives_the_mean_of_what_the_detector_said() -> None:
    speech = SpeechLog(0.35)
    for probability in (0.0, 0.2, 0.6, 1.0):
        speech.note(probability)
    assert speech.mean(0, 4 * BLOCK_SAMPLES) == pytest.approx(0.45, abs=0.01)
    assert speech.mean(2 * BLOCK_SAMPLES, 3 * BLOCK_SAMPLES) == pytest.approx(0.6, abs=0.01)
    assert speech.mean(4 * BLOCK_SAMPLES, 9 * BLOCK_SAMPLES) == 0
