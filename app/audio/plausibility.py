"""Whether the first seconds of a session can be what its client says they are.

Stands beside `AudioDecoder`: the gateway shows it every message until `is_done` and sends its doubt as a `warning`.
Bytes that are read in a wrong way sound like noise where the right way is smooth; a voice of a wrong sample rate is too
deep for a human being, or comes more slowly than anybody speaks. Floats that are no audio need no doubt: `AudioDecoder`
refuses them. Pure: the time is an argument. One `Plausibility` per session, used by one task.

A false alarm is worse than a miss, so every rule wants several signs at once.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.types import SAMPLE_RATE, Samples
from tickscribe.messages import AudioFormat

JUDGED_S: Final = 2  # of audio, from its first sound on; and of time, for its pace

_AUDIBLE: Final = 0.01  # -40 dB; a voice is not looked for in what is fainter
_SMOOTH: Final = 0.6  # correlation of neighbouring samples: 19 of 20 recordings of speech have more than 0.63
_SMOOTHER: Final = 0.1  # by which another reading has to be smoother than the declared one

_FRAME_SAMPLES: Final = SAMPLE_RATE // 10  # holds three periods of the deepest voice that is looked for
_N_FOURIER: Final = 4096
_LAGS: Final = slice(SAMPLE_RATE // 1000, SAMPLE_RATE // 25)  # periods of 1000 down to 25 Hz

_USUAL_RATES: Final = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000)
_SLOW: Final = 0.75  # seconds of audio per second

Value = TypeVar("Value", bound=np.generic)


class Plausibility:
    """Call `listen` with each message until `is_done`.

    Args:
        audio_format, sample_rate, channels: what the client has declared.
    """

    def __init__(self, audio_format: AudioFormat, *, sample_rate: int, channels: int) -> None:
        width = 2 if audio_format is AudioFormat.PCM16 else 4
        self._is_pcm16 = audio_format is AudioFormat.PCM16
        self._sample_rate = sample_rate
        self._channels = channels
        self._bytes_per_s = sample_rate * channels * width
        # Whole floats of all channels stay whole, whatever silence is left out before them.
        self._bytes = _Beginning[np.uint8](JUDGED_S * self._bytes_per_s, grain=4 * channels)
        self._samples = _Beginning[np.float32](JUDGED_S * SAMPLE_RATE, grain=1)
        self._pace = _Pace()
        self._has_doubted = False

    @property
    def is_done(self) -> bool:
        """Nothing more is to be learnt."""
        is_heard = self._samples.is_full and (self._bytes.is_full or not self._is_pcm16)
        return self._has_doubted or (is_heard and self._pace.is_over)

    def listen(self, data: bytes, samples: Samples, *, now: float) -> str | None:
        """Take one message; return a sentence with the likely cause and what to send instead, at most once.

        Args:
            data: as it came.
            samples: (n,) what `AudioDecoder` made of it.
            now: monotonic seconds.
        """
        doubt = self._of_encoding(data) or self._of_pace(len(data), now) or self._of_voice(samples)
        self._has_doubted = doubt is not None
        return doubt

    def _of_encoding(self, data: bytes) -> str | None:
        values = np.frombuffer(data, np.uint8)
        if not self._is_pcm16 or not self._bytes.add(values, values != 0):
            return None
        likely = likely_encoding(self._bytes.taken, self._channels)
        return likely and f"The samples do not look like pcm16 but like {likely}"

    def _of_pace(self, n_bytes: int, now: float) -> str | None:
        speed = self._pace.add(n_bytes / self._bytes_per_s, now)
        if speed is None or speed > _SLOW:
            return None
        coming = speed * self._sample_rate
        rate = min(_USUAL_RATES, key=lambda usual: abs(usual - coming))
        if abs(rate - coming) > 0.05 * rate:
            return None  # a slow network, or a recording on purpose
        return (
            f"About {rate} samples come per second, where sample_rate says {self._sample_rate}; "
            f"if this is live audio, send sample_rate {rate}."
        )

    def _of_voice(self, samples: Samples) -> str | None:
        if not self._samples.add(samples, np.abs(samples) >= _AUDIBLE) or not is_too_deep(self._samples.taken):
            return None
        return (
            f"The voice is too deep for a human being: the audio seems to have more than {self._sample_rate} samples "
            "per second, perhaps 48000; send the sample_rate of the source, or resample."
        )


# ------------------------------------------------------------------------------------------------ encoding


def likely_encoding(data: NDArray[np.uint8], channels: int) -> str | None:
    """Say what bytes are that were sent as pcm16; None where they may well be that.

    Args:
        data: (n,) bytes from the first sample on, channels interleaved.

    Returns:
        The end of a sentence: what they look like, and what to send.
    """
    data = data[: len(data) // (4 * channels) * (4 * channels)]
    smoothness = _smoothness(data.view("<i2"), channels)
    if smoothness < _SMOOTH / 2 and _are_floats(data):
        return "float32; send format float32, or convert the samples."
    if _are_swapped(data, channels, smoothness):
        return "pcm16 with its bytes swapped; send the low byte first (little endian)."
    if _are_single_bytes(data, channels, smoothness):
        return "one byte per sample (8 bits, mu-law); send 16 bits per sample, or float32."
    return None


def _smoothness(values: NDArray[np.generic], channels: int) -> float:
    """Correlation of neighbouring samples, -1..1; noise has 0, and what never moves has 1."""
    frames = values.reshape(-1, channels).astype(np.float64)
    frames -= frames.mean(axis=0)
    power = float((frames * frames).sum())
    return float((frames[1:] * frames[:-1]).sum()) / power if power > 0 else 1.0


def _are_floats(data: NDArray[np.uint8]) -> bool:
    """Nearly all words are floats of a usual size; of pcm16 nearly none are, as its second sample is the exponent."""
    with np.errstate(invalid="ignore"):  # not all of them are numbers
        sizes = np.abs(data.view("<f4"))
        sizes = sizes[sizes != 0]
        return len(sizes) > 0 and float(((sizes > 2.0**-40) & (sizes < 8)).mean()) > 0.9


def _are_swapped(data: NDArray[np.uint8], channels: int, smoothness: float) -> bool:
    """The second byte varies as a low byte does, and the first is as small as a high byte."""
    low, high = data[0::2].view(np.int8).astype(np.int16), data[1::2].view(np.int8).astype(np.int16)
    # Of faint audio the high byte is nothing but the sign, so that swapping it seems to make it loud, and no rougher.
    is_sign = float((low == np.where(high < 0, -1, 0)).mean()) > 0.99
    if is_sign and low.any() and len(np.unique(high)) >= 8:
        return True
    is_small = np.abs(low).mean() < 0.5 * np.abs(high).mean()
    return bool(is_small and _smoothness(data.view(">i2"), channels) > max(_SMOOTH / 2, smoothness + _SMOOTHER))


def _are_single_bytes(data: NDArray[np.uint8], channels: int, smoothness: float) -> bool:
    """First and second bytes are alike, and smoother one by one than in pairs."""
    first, second = (np.bincount(data[n::2] >> 4, minlength=16) / (len(data) // 2) for n in (0, 1))
    # Of the faintest audio both bytes are little more than signs, 0x00 or 0xff.
    are_signs = min(first[1:15].sum(), second[1:15].sum()) < 0.1
    if are_signs or np.abs(first - second).sum() > 0.2:
        return False
    readings = (data, _MU_LAW[data])
    return max(_smoothness(reading, channels) for reading in readings) > max(_SMOOTH, smoothness + _SMOOTHER)


def _mu_law() -> NDArray[np.int32]:
    """(256,) value of each byte of mu-law (ITU-T G.711)."""
    code = ~np.arange(256, dtype=np.uint8)
    size = ((((code & 15).astype(np.int32) << 3) + 132) << ((code >> 4) & 7)) - 132
    return np.where(code & 128, -size, size)


_MU_LAW: Final = _mu_law()


# ------------------------------------------------------------------------------------------------ voice


def is_too_deep(samples: Samples) -> bool:
    """Whether a voice is so deep, and so dull, that it is played too slowly.

    Args:
        samples: (n,) 16 kHz, at least a frame of 100 ms.
    """
    frames = np.lib.stride_tricks.sliding_window_view(samples, _FRAME_SAMPLES)[:: _FRAME_SAMPLES // 2]
    frames = frames.astype(np.float64) - frames.mean(axis=1, keepdims=True)  # (frames, _FRAME_SAMPLES)
    power = (frames * frames).sum(axis=1)
    taper = np.hanning(_FRAME_SAMPLES)
    spectra = _spectra(frames[power > 0.05 * np.percentile(power, 90)] * taper)  # (frames, frequencies)
    if not len(spectra) or not spectra.sum(axis=1).all():
        return False
    frequencies = np.fft.rfftfreq(_N_FOURIER, 1 / SAMPLE_RATE)
    total = spectra.sum(axis=0)
    is_dull = total[frequencies > 3000].sum() < 10**-3.5 * total.sum()
    shares = np.cumsum((spectra / spectra.sum(axis=1, keepdims=True)).mean(axis=0))
    middle_hz = frequencies[np.searchsorted(shares, 0.5)]
    if not is_dull or middle_hz > 200:
        return False
    pitches = _pitches(spectra, _spectra(taper[None]))
    return len(pitches) > 0.3 * len(spectra) and float(np.median(pitches)) < 90


def _spectra(frames: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, samples) to power by frequency, (n, _N_FOURIER // 2 + 1)."""
    spectra: NDArray[np.float64] = np.abs(np.fft.rfft(frames, _N_FOURIER)) ** 2
    return spectra


def _pitches(spectra: NDArray[np.float64], spectrum_of_taper: NDArray[np.float64]) -> list[float]:
    """Hz of each frame that has a pitch: the first peak of its autocorrelation that is nearly the highest.

    The taper's own autocorrelation is divided out (Boersma 1993).
    """
    of_frames, of_taper = np.fft.irfft(spectra), np.fft.irfft(spectrum_of_taper)  # (frames, lags), (1, lags)
    likeness = (of_frames / of_frames[:, :1])[:, _LAGS] / (of_taper / of_taper[:, :1])[:, _LAGS]
    pitches = []
    for frame in likeness:
        inner = frame[1:-1]
        is_peak = (inner >= frame[:-2]) & (inner >= frame[2:]) & (inner > 0.85 * frame.max())
        if frame.max() >= 0.6 and is_peak.any():
            pitches.append(SAMPLE_RATE / (_LAGS.start + 1 + int(np.argmax(is_peak))))
    return pitches


# ------------------------------------------------------------------------------------------------ what is collected


class _Beginning(Generic[Value]):
    """The first values of a stream from its first sound on.

    Args:
        length: how many are wanted.
        grain: what is left out before the first sound is a multiple of it.
    """

    def __init__(self, length: int, *, grain: int) -> None:
        self._length = length
        self._grain = grain
        self._n_skipped = 0
        self._pieces: list[NDArray[Value]] = []
        self._n_taken = 0

    @property
    def is_full(self) -> bool:
        """All that is wanted is there."""
        return self._n_taken >= self._length

    @property
    def taken(self) -> NDArray[Value]:
        """(length,) once it is full."""
        return np.concatenate(self._pieces)[: self._length]

    def add(self, values: NDArray[Value], is_sound: NDArray[np.bool_]) -> bool:
        """Take the next values; whether it became full by them."""
        if self.is_full or not len(values):
            return False
        if not self._pieces:
            if not is_sound.any():
                self._n_skipped += len(values)
                return False
            first = int(np.argmax(is_sound))
            self._put(np.zeros((self._n_skipped + first) % self._grain, values.dtype))
            values = values[first:]
        self._put(values)
        return self.is_full

    def _put(self, values: NDArray[Value]) -> None:
        self._pieces.append(values)
        self._n_taken += len(values)


class _Pace:
    """How fast audio comes, over JUDGED_S of time."""

    def __init__(self) -> None:
        self.is_over = False
        self._marks: list[tuple[float, float]] = []  # time, and the seconds of audio that came after the first message

    def add(self, audio_s: float, now: float) -> float | None:
        """Take the next message; once the time is over, return seconds of audio per second if they came steadily."""
        if self.is_over:
            return None
        self._marks.append((now, self._marks[-1][1] + audio_s if self._marks else 0.0))
        (begin, _), (end, heard_s) = self._marks[0], self._marks[-1]
        if end - begin < JUDGED_S:
            return None
        self.is_over = True
        speed = heard_s / (end - begin)
        times, heard = np.array(self._marks).T
        at_quarters = np.interp(np.linspace(begin, end, 5), times, heard)
        quarters = np.diff(at_quarters) / ((end - begin) / 4)
        is_steady = len(self._marks) > 8 and bool((np.abs(quarters - speed) <= 0.25 * speed).all())
        return speed if is_steady else None
