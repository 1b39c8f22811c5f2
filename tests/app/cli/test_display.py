"""What a terminal shows, and what a pipe gets."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from app.cli.display import clock, open_display
from engine.types import EndReason
from tickscribe.messages import FinalMessage, PartialMessage, WarningCode, WarningMessage

WIDTH = 60


def make_console(*, is_terminal: bool) -> tuple[Console, io.StringIO]:
    screen = io.StringIO()
    return Console(file=screen, force_terminal=is_terminal, width=WIDTH, highlight=False, color_system=None), screen


def make_partial(committed: str, tentative: str) -> PartialMessage:
    return PartialMessage(utterance=0, revision=1, committed=committed, tentative=tentative, start=0.0, end=1.0)


def make_final(text: str, *, start: float = 61.25) -> FinalMessage:
    return FinalMessage(utterance=0, text=text, start=start, end=start + 1, reason=EndReason.PAUSE, language="en")


def shown(*events: PartialMessage | FinalMessage | WarningMessage, is_terminal: bool, label_width: int = 0) -> str:
    """Everything written to a console between the first event and the end."""
    console, screen = make_console(is_terminal=is_terminal)
    with open_display(console, label_width=label_width) as display:
        track = display.add("talk.wav", 10.0)
        for event in events:
            track.show(event)
        track.advance(2.5)
    return screen.getvalue()


def test_a_terminal_shows_open_words_and_position() -> None:
    text = shown(make_partial("he hoped there", " would be"), is_terminal=True)
    assert "he hoped there would be" in text
    assert "0:02.5 of 0:10.0" in text


def test_of_a_long_utterance_the_newest_words_are_shown_behind_the_label() -> None:
    text = shown(make_partial("first " + "word " * 50, "newest"), is_terminal=True, label_width=8)
    (line,) = [line.strip("\r") for line in text.splitlines() if "newest" in line]
    assert "talk.wav  " in line
    assert line.endswith("newest")
    assert "first" not in text


def test_a_pipe_gets_finals_only_one_line_each() -> None:
    long = "word " * 50 + "end"
    text = shown(make_partial("open", " words"), make_final(long), make_final(" Bye. "), is_terminal=False)
    assert text == f" 1:01.2  {long}\n 1:01.2  Bye.\n"


def test_a_final_without_words_is_no_line() -> None:
    assert shown(make_final("  "), is_terminal=False) == ""


def test_several_recordings_are_told_apart() -> None:
    assert shown(make_final("Bye."), is_terminal=False, label_width=10) == "talk.wav     1:01.2  Bye.\n"


def test_warnings_are_shown() -> None:
    warning = WarningMessage(code=WarningCode.AUDIO_SUSPICIOUS, message="Is it float32?")
    assert shown(warning, is_terminal=False) == "warning: Is it float32?\n"


def test_text_cannot_command_the_terminal() -> None:
    text = shown(make_final("\x1b]0;owned\x07 [red]words[/red]\r\nend"), is_terminal=False)
    assert text == " 1:01.2   ]0;owned  [red]words[/red]  end\n"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00.0"), (59.99, "0:59.9"), (60, "1:00.0"), (3725.5, "62:05.5")])
def test_clock_has_minutes_and_tenths(seconds: float, text: str) -> None:
    assert clock(seconds) == text
