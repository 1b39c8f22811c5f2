"""Wire audio to 16 kHz mono: the same samples whatever the messages, and named errors for what is no audio."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.audio.decoder import AudioDecoder
from engine.types import SAMPLE_RATE, Samples
from tickscribe.messages import AudioFormat, ErrorCode, ProtocolError

RATES = (8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000)


def make_intake(
    audio_format: AudioFormat = AudioFormat.PCM16, *, sample_rate: int = SAMPLE_RATE, channels: int = 1
) -> AudioDecoder:
    return AudioDecoder(audio_format, sample_rate=sample_rate, channels=channels)


def tone(frequency: float, *, rate: int, seconds: float = 1.0) -> NDArray[np.float64]:
    """(n,) a sine of amplitude one half."""
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(round(rate * seconds)) / rate)


def pcm16(samples: NDArray[np.float64]) -> bytes:
    return np.round(samples * 32767).astype("<i2").tobytes()


def hear(intake: AudioDecoder, *messages: bytes) -> Samples:
    """All samples that come of `messages` and the flush."""
    return np.concatenate([*(intake.accept(message) for message in messages), intake.finish()])


@given(
    audio_format=st.sampled_from(AudioFormat),
    sample_rate=st.sampled_from(RATES),
    channels=st.integers(1, 8),
    cuts=st.lists(st.integers(0, 12_000), max_size=20),
    seed=st.integers(0, 2**32 - 1),
)
def test_however_the_audio_is_cut_into_messages_the_same_samples_come_out(
    audio_format: AudioFormat, sample_rate: int, channels: int, cuts: list[int], seed: int
) -> None:
    values = np.random.default_rng(seed).uniform(-1, 1, 1_500 * channels)
    data = pcm16(values) if audio_format is AudioFormat.PCM16 else values.astype("<f4").tobytes()
    width = 2 if audio_format is AudioFormat.PCM16 else 4
    edges = sorted({0, len(data), *(min(cut * width, len(data)) for cut in cuts)})
    messages = [data[start:end] for start, end in itertools.pairwise(edges)]

    whole = hear(make_intake(audio_format, sample_rate=sample_rate, channels=channels), data)
    in_parts = hear(make_intake(audio_format, sample_rate=sample_rate, channels=channels), *messages)

    np.testing.assert_array_equal(in_parts, whole)


@pytest.mark.parametrize("rate", RATES)
def test_a_tone_keeps_its_pitch_and_length_at_every_rate(rate: int) -> None:
    heard = hear(make_intake(sample_rate=rate), pcm16(tone(440, rate=rate)))
    assert abs(len(heard) - SAMPLE_RATE) <= 1
    assert heard.dtype == np.float32
    spectrum = np.abs(np.fft.rfft(heard[:SAMPLE_RATE], SAMPLE_RATE))
    assert int(np.argmax(spectrum)) == 440
    assert np.max(np.abs(heard)) == pytest.approx(0.5, abs=0.05)


def test_what_16_khz_cannot_hold_is_filtered_out() -> None:
    heard = hear(make_intake(sample_rate=48_000), pcm16(tone(12_000, rate=48_000)))
    assert np.max(np.abs(heard[1_000:-1_000])) < 0.001


def test_channels_are_averaged() -> None:
    left, right = np.array([0.5, -0.5]), np.array([0.25, 0.5])
    data = np.stack([left, right], axis=1).astype("<f4").tobytes()
    heard = hear(make_intake(AudioFormat.FLOAT32, channels=2), data)
    np.testing.assert_array_equal(heard, np.array([0.375, 0.0], np.float32))


def test_pcm16_spans_minus_one_to_one() -> None:
    heard = hear(make_intake(), np.array([-32768, 0, 16384, 32767], "<i2").tobytes())
    np.testing.assert_allclose(heard, [-1.0, 0.0, 0.5, 32767 / 32768], atol=0)


def test_a_little_overshoot_of_floats_is_clipped() -> None:
    heard = hear(make_intake(AudioFormat.FLOAT32), np.array([1.5, -1.5], "<f4").tobytes())
    np.testing.assert_array_equal(heard, np.array([1.0, -1.0], np.float32))


def test_an_empty_message_is_no_audio() -> None:
    for audio_format in AudioFormat:
        assert len(hear(make_intake(audio_format), b"")) == 0
        assert len(hear(make_intake(audio_format, sample_rate=48_000), b"")) == 0


@pytest.mark.parametrize(("audio_format", "n_bytes"), [("pcm16", 1), ("pcm16", 1601), ("float32", 2), ("float32", 7)])
def test_half_a_sample_is_refused(audio_format: str, n_bytes: int) -> None:
    with pytest.raises(ProtocolError, match=f"{n_bytes} bytes") as caught:
        make_intake(AudioFormat(audio_format)).accept(bytes(n_bytes))
    assert caught.value.code is ErrorCode.AUDIO_FORMAT


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 20_000.0])
def test_floats_that_are_no_audio_are_refused(value: float) -> None:
    with pytest.raises(ProtocolError, match="between -1 and 1") as caught:
        make_intake(AudioFormat.FLOAT32).accept(np.array([0.1, value, 0.1], "<f4").tobytes())
    assert caught.value.code is ErrorCode.AUDIO_FORMAT


def test_audio_that_ends_between_its_channels_is_refused_at_the_end() -> None:
    intake = make_intake(channels=2)
    intake.accept(bytes(2))
    with pytest.raises(ProtocolError, match="2 channels") as caught:
        intake.finish()
    assert caught.value.code is ErrorCode.AUDIO_FORMAT
