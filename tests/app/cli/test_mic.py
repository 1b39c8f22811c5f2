"""`tickscribe mic`: the inlet by itself; the command as a process, with real pipes, signals and PortAudio."""

from __future__ import annotations

import asyncio
import ctypes.util
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.cli.mic import MAX_HELD_S, Inlet, ServerTooSlow
from engine.types import SAMPLE_RATE, Samples
from tests.app.serving import serving
from tests.fakes import ScriptedEngine, loud, pcm16, silence
from tickscribe.command import console_script

BLOCK = 1600  # bytes of 50 ms
PATIENCE_S = 20

# ALSA's null device gives samples without end, as fast as they are read: a microphone that outruns every server.
NULL_MICROPHONE = "pcm.default { type null }\n"
NO_MICROPHONE = "pcm.nothing { type hw card 99 }\n"

needs_portaudio = pytest.mark.skipif(
    sys.platform != "linux" or ctypes.util.find_library("portaudio") is None, reason="needs Linux with PortAudio"
)


@asynccontextmanager
async def mic(*arguments: str, alsa: Path | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `tickscribe mic`; `alsa` replaces the sound devices of this machine."""
    process = await asyncio.create_subprocess_exec(
        console_script(),
        "mic",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | ({"ALSA_CONFIG_PATH": str(alsa)} if alsa else {}),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def outcome(process: asyncio.subprocess.Process, stdin: bytes | None = None) -> tuple[int | None, str, str]:
    out, err = await asyncio.wait_for(process.communicate(stdin), PATIENCE_S)
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
def null_microphone(tmp_path: Path) -> Path:
    path = tmp_path / "asound.conf"
    path.write_text(NULL_MICROPHONE)
    return path


@pytest.fixture
def no_microphone(tmp_path: Path) -> Path:
    path = tmp_path / "asound.conf"
    path.write_text(NO_MICROPHONE)
    return path


# ------------------------------------------------------------------------------------------------ the inlet


async def taken(inlet: Inlet) -> list[bytes]:
    return [piece async for piece in inlet.pieces()]


async def test_whole_blocks_come_out_however_the_bytes_went_in() -> None:
    inlet = Inlet(SAMPLE_RATE)
    for n in (1, 2, 3, BLOCK, 5 * BLOCK - 6):
        inlet.feed(bytes(n))
    inlet.end()
    assert [len(piece) for piece in await taken(inlet)] == [BLOCK] * 6


async def test_half_a_sample_at_the_end_is_left_out() -> None:
    inlet = Inlet(SAMPLE_RATE)
    inlet.feed(bytes(BLOCK + 3))
    inlet.end()
    assert [len(piece) for piece in await taken(inlet)] == [BLOCK, 2]


async def test_what_comes_after_the_end_is_ignored() -> None:
    inlet = Inlet(SAMPLE_RATE)
    inlet.feed(bytes(BLOCK))
    inlet.end()
    inlet.feed(bytes(BLOCK))
    assert await taken(inlet) == [bytes(BLOCK)]


async def test_a_full_inlet_is_an_error_not_a_gap() -> None:
    inlet = Inlet(SAMPLE_RATE)
    for _ in range(MAX_HELD_S):
        inlet.feed(bytes(2 * SAMPLE_RATE))
    inlet.feed(bytes(2))
    with pytest.raises(ServerTooSlow, match="taken no audio for 10 s"):
        await taken(inlet)


async def test_an_inlet_that_is_read_never_fills() -> None:
    inlet = Inlet(SAMPLE_RATE)
    pieces = inlet.pieces()
    for _ in range(3 * MAX_HELD_S * 20):
        inlet.feed(bytes(BLOCK))
        assert await anext(pieces) == bytes(BLOCK)


# ------------------------------------------------------------------------------------------------ standard input


async def test_raw_audio_on_standard_input_becomes_words() -> None:
    audio = pcm16(loud(1.0)) + pcm16(silence(1.0)) + pcm16(loud(2.0, amplitude=0.3))
    async with serving() as served, mic("-", "--url", served.url()) as process:
        assert await outcome(process, audio) == (0, " 0:00.0  a50\n 0:02.0  a30 a30\n", "")


class Listening(ScriptedEngine):
    """Says when it was given a number of seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.n_missing = round(seconds * SAMPLE_RATE)
        self.has_heard = threading.Event()

    def push(self, session_id: str, samples: Samples) -> None:
        super().push(session_id, samples)
        self.n_missing -= len(samples)
        if self.n_missing <= 0:
            self.has_heard.set()


async def test_the_first_interrupt_ends_the_audio_and_loses_no_word() -> None:
    engine = Listening(3.0)
    async with serving(engine) as served, mic("-", "--url", served.url()) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(pcm16(loud(1.0)) + pcm16(silence(1.0)) + pcm16(loud(1.0)))
        assert await asyncio.to_thread(engine.has_heard.wait, PATIENCE_S)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.stdout.read() == b" 0:00.0  a50\n 0:02.0  a50\n"
            assert await process.wait() == 0


async def test_an_interrupt_while_audio_pours_in_ends_it_too() -> None:
    engine = Listening(1.0)
    async with serving(engine) as served, mic("-", "--url", served.url()) as process:
        assert process.stdin is not None
        process.stdin.write(pcm16(loud(60.0)))
        assert await asyncio.to_thread(engine.has_heard.wait, PATIENCE_S)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
        assert process.stderr is not None
        assert await process.stderr.read() == b""


async def test_without_a_server_it_says_how_to_start_one() -> None:
    async with mic("-", "--url", "ws://127.0.0.1:9/v1/stream") as process:
        code, out, err = await outcome(process, b"")
    assert (code, out) == (2, "")
    assert "tickscribe serve" in err
    assert "Traceback" not in err


# ------------------------------------------------------------------------------------------------ PortAudio


@needs_portaudio
@pytest.mark.parametrize("arguments", [(), ("--list-devices",)])
async def test_a_machine_without_microphone_says_what_to_do(arguments: tuple[str, ...], no_microphone: Path) -> None:
    async with mic(*arguments, alsa=no_microphone) as process:
        code, out, err = await outcome(process)
    assert (code, out) == (2, "")
    assert "plug in a microphone, or pipe" in err
    assert "Traceback" not in err


@needs_portaudio
async def test_devices_are_listed(null_microphone: Path) -> None:
    async with mic("--list-devices", alsa=null_microphone) as process:
        code, out, err = await outcome(process)
    assert (code, err) == (0, "")
    assert "default" in out


@needs_portaudio
@pytest.mark.parametrize("device", ["no such microphone", "77"])
async def test_an_unknown_device_is_named(device: str, null_microphone: Path) -> None:
    async with mic("--device", device, alsa=null_microphone) as process:
        code, _, err = await outcome(process)
    assert code == 2
    assert device in err
    assert "Traceback" not in err


@needs_portaudio
async def test_a_microphone_that_outruns_the_server_ends_with_a_named_error(null_microphone: Path) -> None:
    async with serving() as served, mic("--url", served.url(), alsa=null_microphone) as process:
        code, _, err = await outcome(process)
    assert code == 2
    assert err.strip().endswith("it or the network is too slow.")


async def test_missing_portaudio_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sounddevice.py").write_text('raise OSError("PortAudio library not found")\n')
    process = await asyncio.create_subprocess_exec(
        console_script(),
        "mic",
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    _, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 2
    assert b"apt install libportaudio2" in err
    assert b"Traceback" not in err
