"""`tickscribe mic`: the microphone of this machine, or raw audio on standard input, through the public WebSocket.

PortAudio calls back on a thread of its own; its audio reaches the event loop through an `Inlet`. If the server takes
nothing for so long that the inlet is full, the session ends with a named error: audio is never dropped silently.
`sounddevice` is imported only here and only when a microphone is asked for, as it fails where PortAudio is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from app.cli.display import open_display
from engine.types import SAMPLE_RATE
from tickscribe.client import ClientError, transcribe
from tickscribe.messages import MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, Start

STDIN = "-"
BLOCKS_PER_SECOND = 20  # messages per second
MAX_HELD_S = 10  # of audio that the server has not taken yet
_SAMPLE_BYTES = 2
_READ_BYTES = 4096
_PIPE_HINT = "pipe raw 16-bit 16 kHz mono audio in: arecord -f S16_LE -r 16000 -c 1 -t raw | tickscribe mic -"


class MicrophoneError(Exception):
    """There is no usable microphone; the message says what to install or choose."""


class ServerTooSlow(ClientError):
    """The server did not take the audio as fast as the microphone gives it."""


@dataclass(frozen=True, slots=True)
class MicOptions:
    """How to listen.

    Attributes:
        url: the server's `/v1/stream`.
        start: settings of the session; its sample rate is set to that of the input.
        device: number or part of the name of an input device; "-" reads standard input, None takes the default.
    """

    url: str
    start: Start = Start()
    device: str | None = None


class Inlet:
    """Bytes of PCM16 from a callback to one reader, both on the event loop; bounded.

    Attributes:
        sample_rate: of the audio in it.
        stream: what the bytes go through; a pipe may feed it directly.
        stop: how to say that no more bytes come; with a pipe, it is the pipe that says so once it is closed.
    """

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self.stream = asyncio.StreamReader()
        self.stop: Callable[[], None] = self.stream.feed_eof
        self._held_bytes = 0
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Take the next audio; more than `MAX_HELD_S` waiting makes the reader fail."""
        if self._ended:
            return  # what is spoken after the end is not meant
        self._held_bytes += len(data)
        if self._held_bytes > MAX_HELD_S * self.sample_rate * _SAMPLE_BYTES:
            self._ended = True
            self.stream.set_exception(
                ServerTooSlow(f"The server has taken no audio for {MAX_HELD_S} s; it or the network is too slow.")
            )
            return
        self.stream.feed_data(data)

    def end(self) -> None:
        """Say that no more audio comes; what is held is still read."""
        self._ended = True
        self.stop()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield whole blocks, and what is left at the end without a half sample.

        Raises:
            ServerTooSlow: the inlet ran full.
        """
        n_bytes = self.sample_rate // BLOCKS_PER_SECOND * _SAMPLE_BYTES
        while True:
            try:
                piece = await self.stream.readexactly(n_bytes)
            except asyncio.IncompleteReadError as rest:
                if whole := len(rest.partial) // _SAMPLE_BYTES * _SAMPLE_BYTES:
                    yield rest.partial[:whole]
                return
            self._held_bytes -= len(piece)
            yield piece


def listen(options: MicOptions) -> None:
    """Transcribe until the input ends or Ctrl-C is pressed, and show the words live.

    Raises:
        MicrophoneError: there is no usable microphone or input.
        ClientError: the session could not be opened or ended early.
    """
    asyncio.run(_listen(options))


def list_devices() -> None:
    """Print the input devices: number, name, channels, usual rate.

    Raises:
        MicrophoneError: PortAudio is missing, or it sees no input device.
    """
    sounddevice = _sounddevice()
    devices = [device for device in sounddevice.query_devices() if device["max_input_channels"] > 0]
    if not devices:
        raise _no_microphone()
    table = Table("number", "name", "channels", "rate", box=None)
    for device in devices:
        rate = f"{device['default_samplerate']:.0f} Hz"
        table.add_row(str(device["index"]), device["name"], str(device["max_input_channels"]), rate)
    Console(highlight=False).print(table)


async def _listen(options: MicOptions) -> None:
    source = _standard_input() if options.device == STDIN else _microphone(options.device)
    console = Console(highlight=False)
    async with source as inlet:
        with _on_interrupt(inlet), open_display(console) as display:
            track = display.add("listening; Ctrl-C ends", None)
            start = msgspec.structs.replace(options.start, sample_rate=inlet.sample_rate)
            await transcribe(options.url, start, inlet.pieces(), on_event=track.show)


@contextmanager
def _on_interrupt(inlet: Inlet) -> Iterator[None]:
    """Let the first Ctrl-C end the audio, so that the last words are still answered; a second one aborts."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        inlet.end()

    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C aborts at once
        loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)


# ----------------------------------------------------------------------------------------------- standard input


@asynccontextmanager
async def _standard_input() -> AsyncIterator[Inlet]:
    """Raw PCM16, 16 kHz, mono, as fast as the server takes it.

    A thread copies standard input into a pipe of ours: so the event loop can wait for files, terminals and pipes
    alike, and the flags of a standard input that belongs to others as well stay as they are.
    """
    if sys.stdin.isatty():
        raise MicrophoneError(f"Standard input is a terminal; {_PIPE_HINT}")
    inlet = Inlet(SAMPLE_RATE)
    read_end, write_end = os.pipe()
    threading.Thread(target=_copy, args=(sys.stdin.fileno(), write_end), name="stdin", daemon=True).start()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(inlet.stream), os.fdopen(read_end, "rb", buffering=0)
    )
    inlet.stop = transport.close
    try:
        yield inlet
    finally:
        transport.close()


def _copy(source: int, target: int) -> None:
    try:
        with contextlib.suppress(BrokenPipeError):  # the session is over
            while data := os.read(source, _READ_BYTES):
                os.write(target, data)
    finally:
        os.close(target)


# ----------------------------------------------------------------------------------------------- microphone


@asynccontextmanager
async def _microphone(device: str | None) -> AsyncIterator[Inlet]:
    sounddevice = _sounddevice()
    chosen: int | str | None = int(device) if device is not None and device.isdecimal() else device
    with ExitStack() as opened:
        try:
            inlet = Inlet(_sample_rate(sounddevice, chosen))
            opened.enter_context(_open_stream(sounddevice, chosen, inlet))
        except ValueError as error:  # sounddevice's word for a name or number that fits no device
            raise MicrophoneError(f"{error}; `tickscribe mic --list-devices` shows what there is.") from error
        except sounddevice.PortAudioError as error:
            if not any(found["max_input_channels"] for found in sounddevice.query_devices()):
                raise _no_microphone() from error
            raise MicrophoneError(f"The microphone cannot be opened: {error}.") from error
        yield inlet


def _open_stream(sounddevice: Any, device: int | str | None, inlet: Inlet) -> Any:
    """A stream that runs while its context is open; its callbacks run on PortAudio's thread."""
    loop = asyncio.get_running_loop()

    def on_audio(data: Any, frames: int, time: Any, status: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(inlet.feed, bytes(data))

    def on_end() -> None:  # also when the device is unplugged
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(inlet.end)

    return sounddevice.RawInputStream(
        samplerate=inlet.sample_rate,
        blocksize=inlet.sample_rate // BLOCKS_PER_SECOND,
        device=device,
        channels=1,
        dtype="int16",
        callback=on_audio,
        finished_callback=on_end,
    )


def _sample_rate(sounddevice: Any, device: int | str | None) -> int:
    """16 kHz if the device gives it, else its own rate: the server resamples."""
    try:
        sounddevice.check_input_settings(device=device, channels=1, dtype="int16", samplerate=SAMPLE_RATE)
    except sounddevice.PortAudioError:
        rate = int(sounddevice.query_devices(device, "input")["default_samplerate"])
        return min(max(rate, MIN_SAMPLE_RATE), MAX_SAMPLE_RATE)
    return SAMPLE_RATE


def _sounddevice() -> Any:
    try:
        import sounddevice
    except OSError as error:
        raise MicrophoneError(
            "PortAudio is missing, so no microphone can be opened; install it (Debian and Ubuntu: "
            f"apt install libportaudio2; Fedora: dnf install portaudio), or {_PIPE_HINT}"
        ) from error
    return sounddevice


def _no_microphone() -> MicrophoneError:
    return MicrophoneError(f"PortAudio sees no input device; plug in a microphone, or {_PIPE_HINT}")
