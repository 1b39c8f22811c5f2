"""Wire audio to what the engine hears: 16 kHz mono float32.

Stands behind `protocol.Connection.receive` and before `bridge.Session.push`: bytes of one session go in, in order,
samples come out. Knows no socket and no engine. One `AudioDecoder` per session, used by one task.

Law, with a test of the same name: however the same samples are cut into messages, the same samples come out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import soxr

from engine.types import SAMPLE_RATE, Samples
from tickscribe.messages import AudioFormat, ErrorCode, ProtocolError

_PCM16_SCALE: Final = 1.0 / 32768.0
_MAX_AMPLITUDE: Final = 8.0  # a client's own resampler may overshoot 1; beyond this the samples are no -1..1 floats
_PCM16: Final = np.dtype("<i2")
_FLOAT32: Final = np.dtype("<f4")


class AudioDecoder:
    """Decode, downmix and resample the audio of one session.

    Call `accept` per binary message, then `finish` once for what the resampler still holds.

    Args:
        audio_format: how samples lie in the bytes, little endian, channels interleaved.
        sample_rate: samples per second and channel on the wire.
        channels: they are averaged.
    """

    def __init__(self, audio_format: AudioFormat, *, sample_rate: int, channels: int) -> None:
        self._format = audio_format
        self._width = (_PCM16 if audio_format is AudioFormat.PCM16 else _FLOAT32).itemsize  # bytes of a sample
        self._channels = channels
        self._frame_bytes = channels * self._width  # one sample of every channel
        self._rest = b""  # whole samples of a frame whose other channels are still to come
        self._resampler = (
            None if sample_rate == SAMPLE_RATE else soxr.ResampleStream(sample_rate, SAMPLE_RATE, 1, dtype="float32")
        )

    def accept(self, data: bytes) -> Samples:
        """Take the bytes of one message.

        Returns:
            (n,) float32 in -1..1; n varies, as the resampler gives its output in blocks.

        Raises:
            ProtocolError: (audio_format) a message ends inside a sample, or float samples are no audio.
        """
        if len(data) % self._width:
            raise ProtocolError(
                ErrorCode.AUDIO_FORMAT,
                f"A message of {len(data)} bytes does not hold whole {self._format} samples of {self._width} bytes; "
                "check the format and send whole samples.",
            )
        data = self._rest + data
        whole = len(data) - len(data) % self._frame_bytes
        self._rest = data[whole:]
        return self._resampled(self._mono(data[:whole]), is_last=False)

    def finish(self) -> Samples:
        """Give what the resampler still holds.

        Raises:
            ProtocolError: (audio_format) the audio ended between the channels of one moment.
        """
        if self._rest:
            raise ProtocolError(
                ErrorCode.AUDIO_FORMAT,
                f"The audio ended between its {self._channels} channels; check the number of channels.",
            )
        return self._resampled(np.empty(0, np.float32), is_last=True)

    def _mono(self, data: bytes) -> Samples:
        floats = _from_pcm16(data) if self._format is AudioFormat.PCM16 else _from_float32(data)
        frames = floats.reshape(-1, self._channels)  # (frames, channels)
        return floats if self._channels == 1 else frames.mean(axis=1, dtype=np.float32)

    def _resampled(self, mono: Samples, *, is_last: bool) -> Samples:
        if self._resampler is None:
            return mono
        resampled: Samples = self._resampler.resample_chunk(mono, last=is_last)
        return resampled


def _from_pcm16(data: bytes) -> Samples:
    return np.frombuffer(data, _PCM16).astype(np.float32) * np.float32(_PCM16_SCALE)


def _from_float32(data: bytes) -> Samples:
    samples = np.frombuffer(data, _FLOAT32)
    peak = float(np.max(np.abs(samples), initial=0.0))  # NaN if any is
    if not peak <= _MAX_AMPLITUDE:
        raise ProtocolError(
            ErrorCode.AUDIO_FORMAT,
            f"float32 samples must be numbers between -1 and 1, one of them is {peak:g}; "
            "check format and byte order, or send integers as pcm16.",
        )
    return np.clip(samples, -1.0, 1.0).astype(np.float32, copy=False)
