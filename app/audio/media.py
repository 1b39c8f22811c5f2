"""Audio files of any container, decoded as a stream: the way in for `tickscribe file`.

PyAV reads whatever FFmpeg reads; channels are averaged and soxr brings the rate to 16 kHz. Only a few frames are in
memory at a time, so an hour costs no more than a second. Knows no sockets and no event loop; a `MediaFile` belongs to
one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
import soxr
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer

from engine.types import SAMPLE_RATE, Samples

CHUNK_SAMPLES = SAMPLE_RATE // 20  # 50 ms
_MICROSECONDS = 1_000_000  # per second; the unit of a container's duration


class MediaError(Exception):
    """A file cannot be used as audio; the message names it and says why."""


class MediaFile:
    """One open audio file. Read it once, from beginning to end, with `chunks`.

    Attributes:
        path: where it came from.
        duration_s: what the container claims; None where it says nothing (recordings of browsers).
        n_damaged: packets that could not be decoded and were skipped so far, as players do.
    """

    def __init__(self, path: Path, container: InputContainer, stream: AudioStream) -> None:
        self.path = path
        self.duration_s = _duration_s(container, stream)
        self.n_damaged = 0
        self._container = container
        self._stream = stream

    def chunks(self, n_samples: int = CHUNK_SAMPLES) -> Iterator[Samples]:
        """Yield the audio in pieces of `n_samples`; only the last may be shorter.

        Yields:
            (n_samples,) float32 mono 16 kHz; decoders of lossy formats may leave -1..1 by a little.

        Raises:
            MediaError: nothing in the file could be decoded.
        """
        held: list[Samples] = []
        n_held = 0
        n_total = 0
        for block in self._resampled():
            held.append(block)
            n_held += len(block)
            n_total += len(block)
            if n_held >= n_samples:
                joined = np.concatenate(held)
                whole = n_held - n_held % n_samples
                yield from joined[:whole].reshape(-1, n_samples)
                held, n_held = [joined[whole:]], n_held - whole
        if n_held:
            yield np.concatenate(held)
        if n_total == 0:
            raise MediaError(f"{self.path} holds no audio that could be decoded.")

    def _resampled(self) -> Iterator[Samples]:
        """Mono blocks at 16 kHz, of whatever length the decoder and the resampler give."""
        resampler: soxr.ResampleStream | None = None
        rate = 0
        for block, block_rate in self._mono():
            if block_rate != rate:
                if resampler is not None:
                    yield resampler.resample_chunk(np.empty(0, np.float32), last=True)
                rate = block_rate
                resampler = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32") if rate != SAMPLE_RATE else None
            yield block if resampler is None else resampler.resample_chunk(block)
        if resampler is not None:
            yield resampler.resample_chunk(np.empty(0, np.float32), last=True)

    def _mono(self) -> Iterator[tuple[Samples, int]]:
        """Decoded frames as (samples of one channel, rate)."""
        converter, shape = AudioResampler(format="fltp"), None
        for frame in self._frames():
            if shape != (shape := (frame.format.name, frame.layout.name, frame.sample_rate)):
                converter = AudioResampler(format="fltp")  # chained Ogg files and some AAC change midway
            for planar in converter.resample(frame):
                yield planar.to_ndarray().mean(axis=0, dtype=np.float32), planar.sample_rate

    def _frames(self) -> Iterator[av.AudioFrame]:
        """Decoded frames; damaged packets are counted and skipped."""
        try:
            for packet in self._container.demux(self._stream):
                try:
                    frames = packet.decode()
                except av.error.FFmpegError:
                    self.n_damaged += 1
                    continue
                for frame in frames:
                    assert isinstance(frame, av.AudioFrame)
                    yield frame
        except av.error.FFmpegError as error:
            raise MediaError(f"{self.path} could not be read to its end: {_reason(error)}.") from error


@contextmanager
def open_media(path: Path) -> Iterator[MediaFile]:
    """Open an audio or video file and find its first audio stream.

    Raises:
        MediaError: there is no such file, it cannot be read, or it holds no audio.
    """
    if path.is_dir():
        raise MediaError(f"{path} is a folder; give an audio file.")
    if not path.exists():
        raise MediaError(f"There is no file {path}.")
    if path.is_file() and path.stat().st_size == 0:
        raise MediaError(f"{path} is empty.")
    try:
        container = av.open(f"file:{path}", mode="r")  # without the prefix a name with a colon would be a protocol
    except av.error.InvalidDataError as error:
        raise MediaError(f"{path} is not audio, or of a format that FFmpeg does not know.") from error
    except av.error.FFmpegError as error:
        raise MediaError(f"{path} cannot be opened as audio: {_reason(error)}.") from error
    with container:
        if not container.streams.audio:
            raise MediaError(f"{path} holds no audio, only {_kinds(container)}.")
        yield MediaFile(path, container, container.streams.audio[0])


def _duration_s(container: InputContainer, stream: AudioStream) -> float | None:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return container.duration / _MICROSECONDS if container.duration is not None else None


def _kinds(container: InputContainer) -> str:
    """What a container holds, for an error message."""
    kinds = sorted({stream.type for stream in container.streams})
    return " and ".join(kinds) or "a header"


def _reason(error: av.error.FFmpegError) -> str:
    return error.strerror or str(error)
