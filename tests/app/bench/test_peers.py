"""What the messages of other servers mean to `tickscribe bench peers`; hand-written in their words, no server runs."""

from __future__ import annotations

import base64
import gzip
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from app.bench.delays import Distribution
from app.bench.load import LoadError, Message
from app.bench.machine import Machine
from app.bench.peer_dialects import WhisperLiveDialect, WhisperLiveKitDialect
from app.bench.peer_environment import ctranslate2_folder, prepare_weights
from app.bench.peer_files import FileResult
from app.bench.peers import Measured, Options, files_report, live_report
from app.bench.point import Quality
from engine.config import EngineConfig
from engine.models.registry import ResolvedModel, Source

MACHINE = Machine("a processor", 2, None, "3.11", "2.13", "0.1")


def message(at_s: float, **fields: object) -> Message:
    return Message(at_s, msgspec.json.encode(fields).decode())


def segment(start: str, text: str, *, completed: bool) -> dict[str, object]:
    return {"start": start, "end": "9.000", "text": text, "completed": completed}


def line(text: str, *, speaker: int = 1) -> dict[str, object]:
    return {"speaker": speaker, "text": text, "start": "0:00:00", "end": "0:00:01"}


def served(word_p95: float = 1.0) -> Quality:
    """How somebody was served for whom everything else is well."""
    some = Distribution.of([0.01])
    return Quality(
        word=Distribution.of([word_p95]),
        word_committed=some,
        word_final=some,
        phrase_shown=some,
        phrase_final=some,
        drift_s_per_min=0.0,
        words_shown=1.0,
        wer=0.1,
        offline_wer=0.1,
        lateness=some,
        held_up_s=0.0,
        faults=(),
        lost_phrases=(),
    )


def test_whisper_lives_completed_segments_are_final_and_stay() -> None:
    messages = [
        message(1.0, uid="0", segments=[segment("0.000", " One", completed=False)]),
        message(2.0, uid="0", segments=[segment("0.000", " One two", completed=True)]),
        message(
            3.0,
            uid="0",
            segments=[segment("0.000", " One two", completed=True), segment("2.000", " three", completed=False)],
        ),
        message(4.0, uid="0", segments=[segment("10.000", " ten", completed=True)]),
        message(5.0, uid="0", message="DISCONNECT"),
    ]
    updates = WhisperLiveDialect("").to_updates(messages)
    assert [(u.at_s, u.final.split(), u.shown.split()) for u in updates] == [
        (1.0, [], ["One"]),
        (2.0, ["One", "two"], ["One", "two"]),
        (3.0, ["One", "two"], ["One", "two", "three"]),
        (4.0, ["One", "two", "ten"], ["One", "two", "ten"]),
    ]


def test_whisper_live_kits_lines_are_final_and_its_buffer_is_not() -> None:
    messages = [
        message(1.0, status="active_transcription", lines=[], buffer_transcription=" One"),
        message(
            2.0,
            status="active_transcription",
            lines=[line("One"), line("", speaker=-2), line("two")],
            buffer_transcription=" three",
        ),
        message(3.0, type="ready_to_stop"),
    ]
    updates = WhisperLiveKitDialect("").to_updates(messages)
    assert [(u.final.split(), u.shown.split()) for u in updates] == [
        ([], ["One"]),
        (["One", "two"], ["One", "two", "three"]),
    ]
    assert WhisperLiveKitDialect("").is_last(messages[-1].text)


def test_what_is_no_json_is_a_named_error() -> None:
    with pytest.raises(LoadError, match="no JSON"):
        WhisperLiveDialect("").to_updates([Message(1.0, "hello")])


def test_words_in_time_without_faults_count_as_served() -> None:
    assert Measured("a", 2, served()).in_time
    assert not Measured("a", 2, served(word_p95=2.5)).in_time
    assert not Measured("a", 2, replace(served(), faults=("gone",))).in_time
    assert not Measured("a", 2, replace(served(), drift_s_per_min=math.nan)).in_time
    assert not Measured("a", 2, failure="it ended").in_time


def test_only_the_hopeless_are_spared_more_speakers() -> None:
    assert not Measured("a", 2, served(word_p95=5.0)).is_hopeless
    assert Measured("a", 2, served(word_p95=7.0)).is_hopeless
    assert Measured("a", 2, served(word_p95=math.nan)).is_hopeless
    assert Measured("a", 2, failure="it ended").is_hopeless


def test_tables_have_a_line_per_server_and_number_even_for_those_that_failed() -> None:
    rounds = [Measured("a", 1, served()), Measured("a", 1, served()), Measured("b", 1, failure="it ended")]
    options = Options(EngineConfig(), Path(), Path())
    live = live_report(rounds, MACHINE, options, {"a": "defaults"}, {"c": "no such package"})
    assert [cells[:3] for cells in live.cells] == [("a", "1", "2/2"), ("b", "1", "failed")]
    assert all(len(cells) == len(live.headings) for cells in live.cells)
    assert "c did not run: no such package" in live.setting
    results = [FileResult("a", 2.0, 0.1, 0.05), FileResult("a", 3.0, 0.15, 0.05)]
    assert files_report(results, MACHINE, options, {}).cells == (("a", "2.5", "8.0", "5.00"),)


def test_weights_are_written_as_peers_read_them(tmp_path: Path) -> None:
    weights = prepare_weights("tiny.en", tmp_path)
    assert (weights.ctranslate2 / "model.bin").is_file()
    assert (weights.torch / "model.safetensors").is_file()
    table = gzip.decompress(base64.b85decode(weights.alignment_heads))
    assert sum(table) == 8  # heads that openai/whisper names for tiny.en
    assert len(table) == 4 * 6


def test_weights_that_come_in_pieces_are_joined_for_peers(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "config.json").write_text("{}")
    for name, content in (("model.bin.part1", b"one"), ("model.bin.part2", b"two")):
        (package / name).write_bytes(content)
    parts = (package / "model.bin.part1", package / "model.bin.part2")
    folder = ctranslate2_folder(ResolvedModel("base", package, Source.PACKAGE, parts), tmp_path / "peers")
    assert (folder / "model.bin").read_bytes() == b"onetwo"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.bin"]
