"""What a client may ask for depends on the model; what it may not is refused with a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.dialects.settings import check_settings
from engine.session.history import MAX_HISTORY_TOKENS
from engine.session.hotwords import MAX_HOTWORD_LENGTH, MAX_HOTWORDS
from engine.types import SessionSettings, Stability, Task
from tests.fakes import MODEL
from tickscribe.messages import ErrorCode, ProtocolError, Start

ENGLISH = replace(MODEL, name="tiny.en", multilingual=False, languages=("en",))


def test_settings_that_the_model_can_follow_go_to_the_engine() -> None:
    start = Start(
        language="de",
        task="translate",
        stability="fast",
        prompt="x" * MAX_HISTORY_TOKENS,
        hotwords=("Zürich",) * MAX_HOTWORDS,
        previous_text=True,
    )
    check_settings(start, MODEL)
    assert start.settings == SessionSettings(
        language="de",
        interim=True,
        task=Task.TRANSLATE,
        stability=Stability.FAST,
        prompt="x" * MAX_HISTORY_TOKENS,
        hotwords=("Zürich",) * MAX_HOTWORDS,
        previous_text=True,
    )


def test_without_settings_the_engine_has_its_own_defaults() -> None:
    check_settings(Start(), ENGLISH)
    assert Start().settings == SessionSettings()


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (Start(task="translate"), "--model base"),
        (Start(task="summarise"), "'summarise'; it is one of transcribe, translate"),
        (Start(stability="slow"), "'slow'; it is one of fast, balanced, final"),
        (Start(prompt="x" * (MAX_HISTORY_TOKENS + 1)), "220 tokens, the model takes 219; shorten it"),
        (Start(hotwords=("a",) * (MAX_HOTWORDS + 1)), "101 hotwords; 100 are the most"),
        (Start(hotwords=("Zürich", " ")), "hotword ' '"),
        (Start(hotwords=("x" * (MAX_HOTWORD_LENGTH + 1),)), "between 1 and 60 characters"),
    ],
)
def test_what_the_model_cannot_follow_is_refused_with_what_it_can(start: Start, words: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_settings(start, ENGLISH)
    assert caught.value.code is ErrorCode.BAD_SETTING
    assert words in caught.value.message
