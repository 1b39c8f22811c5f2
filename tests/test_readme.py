"""README tells the truth: its examples run, and its tables list what the code has."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from app.cli.main import cli
from tests.app.serving import serving
from tests.fakes import ScriptedEngine, loud, pcm16, silence
from tickscribe import messages

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def table_row(first_cell: str) -> str:
    """The rest of the row that begins with this cell."""
    match = re.search(rf"^\| {re.escape(first_cell)} \| (.*) \|$", README, flags=re.MULTILINE)
    assert match, f"README has no row {first_cell}"
    return match[1]


async def test_the_python_example_transcribes(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = code_blocks("python")
    names: dict[str, Callable[[bytes, str], Awaitable[list[str]]]] = {}
    exec(compile(example, "README.md", "exec"), names)  # type: ignore[arg-type]
    async with serving(ScriptedEngine()) as served:
        texts = await names["transcribe"](pcm16(np.concatenate([loud(3.0), silence(1.0)])), served.url())
    assert texts and all(texts)
    assert capsys.readouterr().out.strip(), "partials were printed"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("`ready`", messages.ReadyMessage),
        ("`speech_started`", messages.SpeechStartedMessage),
        ("`partial`", messages.PartialMessage),
        ("`final`", messages.FinalMessage),
        ("`debug`, if asked for", messages.DebugMessage),
        ("`warning`, `error`", messages.ErrorMessage),
        ("`closed`", messages.ClosedMessage),
        ("`start`", messages.Start),
    ],
)
def test_the_message_table_names_every_field(row: str, message: type[msgspec.Struct]) -> None:
    described = table_row(row)
    for field in msgspec.structs.fields(message):
        assert f"`{field.name}`" in described, f"README does not name {field.name} of {row}"


def test_every_error_code_is_listed() -> None:
    (listed,) = re.findall(r"^Error codes: (.*?)\.$", README, flags=re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == {code.value for code in messages.ErrorCode}


def test_every_warning_code_is_listed() -> None:
    (listed,) = re.findall(r"^Warning codes: (.*?)\.$", README, flags=re.MULTILINE | re.DOTALL)
    assert {code.value for code in messages.WarningCode} <= set(re.findall(r"`(\w+)`", listed))


def test_every_flag_in_readme_exists() -> None:
    help_text = CliRunner().invoke(cli, ["serve", "--help"], env={"COLUMNS": "200"}).output
    for flag in re.findall(r"^\| `(--[\w-]+)` \|", README, flags=re.MULTILINE):
        assert flag in help_text, flag
