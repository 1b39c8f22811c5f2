"""`tickscribe file` against a real server with a scripted engine: pacing, outputs, exit codes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import av
import numpy as np
import pytest

from app.audio.media import open_media
from app.cli.file import FileOptions, OutputError, paced, plan_outputs, transcribe_files
from app.cli.subtitles import Format
from engine.types import SAMPLE_RATE, Samples
from tests.app.serving import Served, serving
from tests.fakes import loud, silence


def write_wav(path: Path, *parts: Samples) -> Path:
    samples = np.concatenate(parts)
    with av.open(str(path), "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=SAMPLE_RATE, layout="mono")
        pcm = (samples * 32767).astype(np.int16).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(pcm, format="s16", layout="mono")
        frame.sample_rate = SAMPLE_RATE
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as running:
        yield running


async def run(*paths: Path, served: Served, output: Path | None = None, formats: tuple[Format, ...] = ()) -> int:
    options = FileOptions(url=served.url(), pace=0, output=output, formats=formats)
    return await asyncio.to_thread(transcribe_files, paths, options)


# ------------------------------------------------------------------------------------------------ whole runs


async def test_words_are_printed_line_by_line(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = write_wav(tmp_path / "talk.wav", loud(1.0), silence(1.0), loud(2.0, amplitude=0.3))
    assert await run(talk, served=served) == 0
    assert capsys.readouterr().out == " 0:00.0  a50\n 0:02.0  a30 a30\n"


async def test_each_file_gets_its_own_words(served: Served, tmp_path: Path) -> None:
    amplitudes = (0.2, 0.4, 0.6, 0.8)
    paths = [write_wav(tmp_path / f"{a}.wav", loud(1.0 + i, amplitude=a)) for i, a in enumerate(amplitudes)]
    assert await run(*paths, served=served, output=tmp_path / "out") == 0
    assert [(tmp_path / f"out/{a}.txt").read_text() for a in amplitudes] == [
        "a20\n",
        "a40 a40\n",
        "a60 a60 a60\n",
        "a80 a80 a80 a80\n",
    ]


async def test_one_bad_file_does_not_stop_the_others(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_wav(tmp_path / "good.wav", loud(1.0))
    letter = tmp_path / "letter.wav"
    letter.write_text("Dear Sir or Madam")
    missing = tmp_path / "missing.wav"
    assert await run(letter, good, missing, served=served, output=tmp_path / "out") == 2
    assert (tmp_path / "out/good.txt").read_text() == "a50\n"
    assert not (tmp_path / "out/letter.txt").exists()
    faults = capsys.readouterr().err.splitlines()
    assert len(faults) == 2
    assert faults[0].startswith(f"{letter} is not audio")
    assert faults[1] == f"There is no file {missing}."


@pytest.mark.parametrize("form", Format)
async def test_the_suffix_of_the_output_chooses_the_format(form: Format, served: Served, tmp_path: Path) -> None:
    talk = write_wav(tmp_path / "talk.wav", loud(1.0))
    target = tmp_path / f"words.{form}"
    assert await run(talk, served=served, output=target) == 0
    text = target.read_text()
    expected = {
        Format.TXT: "a50\n",
        Format.SRT: "1\n00:00:00,000 --> 00:00:01,000\na50\n",
        Format.VTT: "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\na50\n",
    }
    assert text == expected.get(form) or json.loads(text)["text"] == "a50"


async def test_a_format_without_output_goes_to_stdout_alone(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = write_wav(tmp_path / "talk.wav", loud(1.0))
    assert await run(talk, served=served, formats=(Format.JSON,)) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["text"] == "a50"
    assert "a50" in printed.err


async def test_an_output_that_cannot_be_written_is_named(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = write_wav(tmp_path / "talk.wav", loud(1.0))
    (tmp_path / "file").write_text("")
    assert await run(talk, served=served, output=tmp_path / "file/words.srt") == 2
    assert "could not be written" in capsys.readouterr().err


async def test_a_full_server_fails_the_file_that_found_no_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write_wav(tmp_path / f"{name}.wav", loud(2.0)) for name in "ab"]
    async with serving(max_sessions=1) as served:
        options = FileOptions(url=served.url(), pace=4, output=tmp_path / "out")
        assert await asyncio.to_thread(transcribe_files, paths, options) == 2
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


# ------------------------------------------------------------------------------------------------ pacing


@pytest.mark.parametrize("pace", [1, 2, 4])
async def test_no_chunk_comes_before_it_would_have_been_spoken(pace: float, tmp_path: Path) -> None:
    talk = write_wav(tmp_path / "talk.wav", loud(1.0))
    loop = asyncio.get_running_loop()
    loop_resolution_s = time.get_clock_info("monotonic").resolution + 0.001  # of the loop's timers
    begin, positions = loop.time(), list[float]()
    with open_media(talk) as media:
        async for _ in paced(media, pace, on_sent=positions.append):
            n_chunks = len(positions) + 1
            assert loop.time() - begin >= n_chunks * 0.05 / pace - loop_resolution_s
    assert positions == pytest.approx([0.05 * (i + 1) for i in range(20)])


# ------------------------------------------------------------------------------------------------ outputs


def planned(*names: str, output: str | None = None, formats: tuple[Format, ...] = ()) -> list[list[str]]:
    options = FileOptions(url="", output=Path(output) if output else None, formats=formats)
    return [[str(target) for _, target in targets] for targets in plan_outputs([Path(name) for name in names], options)]


def test_a_folder_gets_a_transcript_per_file_and_format() -> None:
    assert planned("a/x.wav", "y.flac", output="out", formats=(Format.SRT, Format.TXT)) == [
        ["out/x.srt", "out/x.txt"],
        ["out/y.srt", "out/y.txt"],
    ]


def test_files_that_differ_by_suffix_only_keep_it() -> None:
    assert planned("x.wav", "x.flac", "y.wav", output="out") == [
        ["out/x.wav.txt"],
        ["out/x.flac.txt"],
        ["out/y.txt"],
    ]


def test_an_existing_folder_may_look_like_a_file(tmp_path: Path) -> None:
    (tmp_path / "talks.srt").mkdir()
    assert planned("x.wav", output=str(tmp_path / "talks.srt")) == [[str(tmp_path / "talks.srt/x.txt")]]


@pytest.mark.parametrize(
    ("names", "output", "formats", "sentence"),
    [
        (("a.wav", "b.wav"), "words.srt", (), "name a folder"),
        (("a.wav",), "words.docx", (), "txt, srt, vtt, json"),
        (("a.wav",), "words.srt", (Format.VTT,), "disagree"),
        (("a.wav", "b.wav"), None, (Format.SRT,), "name a folder"),
        (("a.wav",), None, (Format.SRT, Format.VTT), "name a folder"),
        (("a/x.wav", "b/x.wav"), "out", (), "overwrite"),
        (("x.wav", "x.wav"), "out", (), "overwrite"),
    ],
)
def test_outputs_that_make_no_sense_are_refused_before_anything_is_sent(
    names: tuple[str, ...], output: str | None, formats: tuple[Format, ...], sentence: str
) -> None:
    with pytest.raises(OutputError, match=sentence):
        planned(*names, output=output, formats=formats)
