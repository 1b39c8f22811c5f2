"""The command line as a process: help, errors as sentences, exit codes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import AUDIO
from tickscribe.command import console_script

PATIENCE_S = 60
NOBODY = "ws://127.0.0.1:9/v1/stream"  # the discard port: nobody listens there


def tickscribe(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [console_script(), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"},
    )


def refused(*arguments: str) -> str:
    """Run a command that must fail for a named reason; gives its sentence."""
    done = tickscribe(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--help",), ("serve", "file", "mic", "model", "eval", "bench")),
        (("serve", "--help"), ("--host", "--port", "--model", "--encoder", "--gather-ms", "--slots", "--ssl-certfile")),
        (("file", "--help"), ("FILE...", "--url", "--pace", "--output", "--format", "--max-utterance-s", "--hotword")),
        (("mic", "--help"), ("--list-devices", "--device", "--pause-ms", "--threshold", "--stability")),
        (("model", "--help"), ("list",)),
        (("eval", "--help"), ("--manifest", "--arm", "--peer", "--pace", "--streams", "--file-pause-ms", "--html")),
        (("bench", "--help"), ("encoder",)),
    ],
)
def test_help_names_commands_and_flags(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = tickscribe(*arguments)
    assert done.returncode == 0
    assert [word for word in words if word not in done.stdout] == []


def test_help_does_not_wait_for_heavy_imports() -> None:
    code = "import sys, app.cli.main; print([m for m in ('torch', 'gradio', 'av', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "[]\n"


def test_version_is_one_line() -> None:
    done = tickscribe("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("tickscribe ")


def test_models_are_listed_with_where_they_are() -> None:
    done = tickscribe("model", "list")
    assert done.returncode == 0
    (line,) = [line for line in done.stdout.splitlines() if line.split()[0] == "tiny.en"]
    assert "installed package" in line


def test_a_setting_out_of_range_is_named_with_its_bounds() -> None:
    assert "pause_ms is 5, it must lie between 100 and 5000" in refused("serve", "--pause-ms", "5")


@pytest.mark.parametrize("command", [("file", "talk.wav"), ("mic",)])
def test_a_wish_of_a_session_out_of_range_is_refused_before_anything_is_sent(command: tuple[str, ...]) -> None:
    assert "pause_ms is 5; it must lie between 100 and 5000." in refused(*command, "--pause-ms", "5")


def test_a_certificate_without_key_is_refused() -> None:
    assert "belong together" in refused("serve", "--ssl-certfile", str(AUDIO / "manifest.tsv"))


def test_an_unknown_model_stops_the_server_with_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = tickscribe(
        "serve", "--port", str(port), "--host", "127.0.0.1", "--model", "no such model", "--log-level", "error"
    )
    assert done.returncode == 2, done.stderr
    assert "There is no model 'no such model'" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupting_the_server_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen(
        [console_script(), "serve", "--host", "127.0.0.1", "--port", str(port)],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        try:
            log = ""
            while "ready" not in log:
                line = process.stderr.readline()
                assert line, f"the server ended: {log}"
                log += line
            process.send_signal(signal.SIGINT)
            log += process.communicate(timeout=PATIENCE_S)[1]
        finally:
            process.kill()
    assert process.returncode == 0, log
    assert "Traceback" not in log


def test_a_file_without_a_server_says_how_to_start_one() -> None:
    sentence = refused("file", str(AUDIO / "utterance/jfk-inaugural.flac"), "--url", NOBODY)
    assert "tickscribe serve" in sentence
    assert len(sentence.splitlines()) == 1


def test_each_bad_file_gets_its_sentence(tmp_path: Path) -> None:
    letter = tmp_path / "letter.wav"
    letter.write_text("Dear Sir or Madam")
    lines = refused("file", str(letter), str(tmp_path / "missing.wav"), "--url", NOBODY).splitlines()
    assert [line.split(str(tmp_path))[0] for line in lines] == ["", "There is no file "]


def test_outputs_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    assert "name a folder" in refused("file", "a.wav", "b.wav", "-o", str(tmp_path / "words.srt"))


def test_a_wrong_address_is_answered_with_a_right_one() -> None:
    sentence = refused("file", str(AUDIO / "utterance/jfk-inaugural.flac"), "--url", "localhost:7860")
    assert "ws://localhost:7860/v1/stream" in sentence


def test_mic_takes_a_dash_but_no_file() -> None:
    assert "`tickscribe file` takes files" in refused("mic", "talk.wav")


@pytest.mark.parametrize("arguments", [(), ("file",), ("frobnicate",), ("file", "a.wav", "--pace", "-1")])
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = tickscribe(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
