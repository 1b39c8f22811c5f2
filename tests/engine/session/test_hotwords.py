"""Which tokens hotwords raise, and that a real model then writes a name that it does not know."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.compute.runner import ModelRunner
from engine.models.whisper.tokenizer import Tokenizer
from engine.session.hotwords import Hotwords, hotwords_of
from tests.conftest import LoadClip
from tests.engine.real_models import Transcriber, make_request

paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=4)


@given(starting=paths, inside=paths, tokens=st.lists(st.integers(0, 2), max_size=8))
def test_a_token_is_raised_where_the_text_ends_with_the_beginning_of_its_path(
    starting: list[list[int]], inside: list[list[int]], tokens: list[int]
) -> None:
    bonuses = Hotwords(starting, inside).bonuses(tokens)
    going_on = {
        path[n]
        for path in starting + inside
        for n in range(1, len(path))
        if len(tokens) >= n and tokens[-n:] == path[:n]
    }
    beginning = {path[0] for path in starting} - going_on
    assert bonuses.keys() == going_on | beginning
    assert all(bonuses[a] > bonuses[b] > 0 for a in going_on for b in beginning)


def test_a_word_is_expected_behind_a_space_and_elsewhere_only_continued() -> None:
    hotwords = hotwords_of(["Ab"], lambda text: [ord(character) for character in text])
    assert hotwords is not None
    assert set(hotwords.bonuses([])) == {ord(" ")}
    assert set(hotwords.bonuses([ord("A")])) == {ord(" "), ord("b")}
    assert set(hotwords.bonuses([ord(" ")])) == {ord(" "), ord("A")}


def test_a_script_without_capitals_may_begin_anywhere() -> None:
    hotwords = hotwords_of(["东京"], lambda text: [ord(character) for character in text])
    assert hotwords is not None
    assert set(hotwords.bonuses([ord("去")])) == {ord(" "), ord("东")}


def test_no_words_are_no_hotwords() -> None:
    assert hotwords_of([], lambda _: [1]) is None


@pytest.mark.parametrize(
    ("clip", "word", "misheard"),
    [
        ("utterance/ls-2414-128291-0007.flac", "hath", "who had not"),
        ("utterance/fleurs-en-001.flac", "nouns", "all now alongside"),
        ("utterance/ls-1688-142285-0007.flac", "shocked", "shock-daw"),
    ],
)
def test_a_word_that_the_model_mishears_is_written_right_with_its_hotword(
    runner: ModelRunner, tokenizer: Tokenizer, load_clip: LoadClip, clip: str, word: str, misheard: str
) -> None:
    request = make_request(load_clip(clip))
    hotwords = hotwords_of([word, "Zarathustra", "Helstone"], tokenizer.encode)
    plain, raised = Transcriber(runner)([request, replace(request, session_id="raised", hotwords=hotwords)])
    before, after = tokenizer.decode(plain.tokens).lower(), tokenizer.decode(raised.tokens).lower()
    assert misheard in before and word not in before
    assert word in after and misheard not in after
    assert "zarathustra" not in after and "helstone" not in after
