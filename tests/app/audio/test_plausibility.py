"""What is doubted of the first seconds of a session: each mistake on real voices, and no recording without one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import soxr

from app.audio.decoder import AudioDecoder
from app.audio.plausibility import Plausibility
from engine.types import SAMPLE_RATE, Samples
from tests.conftest import Clip, LoadClip
from tickscribe.messages import AudioFormat

Encode = Callable[[Samples], bytes]


def pcm16(samples: Samples, *, byte_order: str = "<") -> bytes:
    return np.round(np.clip(samples, -1, 1) * 32767).astype(f"{byte_order}i2").tobytes()


def float32(samples: Samples) -> bytes:
    return samples.astype("<f4").tobytes()


def unsigned8(samples: Samples) -> bytes:
    return np.round(np.clip(samples, -1, 1) * 127 + 128).astype(np.uint8).tobytes()


def mu_law(samples: Samples) -> bytes:
    """ITU-T G.711."""
    values = np.clip(np.round(samples * 32767), -32635, 32635).astype(np.int32)
    size = np.abs(values) + 132
    exponent = np.floor(np.log2(size)).astype(np.int32) - 7
    code = np.where(values < 0, 128, 0) | exponent << 4 | (size >> (exponent + 3)) & 15
    return (~code).astype(np.uint8).tobytes()


def doubt_of(
    data: bytes,
    audio_format: AudioFormat = AudioFormat.PCM16,
    *,
    sample_rate: int = SAMPLE_RATE,
    channels: int = 1,
    message_bytes: int = 3200,
) -> str | None:
    """What is said of audio that comes all at once."""
    intake = AudioDecoder(audio_format, sample_rate=sample_rate, channels=channels)
    plausibility = Plausibility(audio_format, sample_rate=sample_rate, channels=channels)
    doubts = []
    for begin in range(0, len(data) // 4 * 4, message_bytes):
        message = data[begin : min(begin + message_bytes, len(data) // 4 * 4)]
        doubts.append(plausibility.listen(message, intake.accept(message), now=0.0))
    said = [doubt for doubt in doubts if doubt is not None]
    assert len(said) <= 1, "once is enough"
    return said[0] if said else None


@pytest.fixture(scope="module")
def voices(english_clips: tuple[Clip, ...], load_clip: LoadClip) -> list[Samples]:
    """Clean English voices, each another speaker, at least three seconds."""
    return [voice for clip in english_clips if len(voice := load_clip(clip.name)) > 3 * SAMPLE_RATE]


# ------------------------------------------------------------------------------------------------ no false alarm


@pytest.mark.parametrize("gain_db", [-40, -20, 0, 12])
def test_no_recording_is_doubted_however_loud_or_quiet(
    audio_manifest: tuple[Clip, ...], load_clip: LoadClip, gain_db: int
) -> None:
    gain = np.float32(10 ** (gain_db / 20))
    for clip in audio_manifest:
        samples = np.clip(load_clip(clip.name) * gain, -1, 1)
        assert doubt_of(pcm16(samples)) is None, clip.name
        assert doubt_of(pcm16(np.repeat(samples, 2)), channels=2) is None, clip.name
        assert doubt_of(float32(samples), AudioFormat.FLOAT32) is None, clip.name


def test_what_is_hardly_audio_is_not_doubted_either() -> None:
    rng = np.random.default_rng(0)
    n = 5 * SAMPLE_RATE
    for integers in (
        np.zeros(n),
        np.full(n, 16_384),
        rng.integers(-1, 1, n),
        rng.integers(-1, 2, n),
        rng.integers(-32_768, 32_768, n),
        32_767 * np.sign(np.sin(np.arange(n) / 20)),
    ):
        assert doubt_of(integers.astype("<i2").tobytes()) is None


# ------------------------------------------------------------------------------------------------ each mistake


@pytest.mark.parametrize(
    ("encode", "words", "least_share"),
    [
        (lambda samples: pcm16(samples, byte_order=">"), "bytes swapped", 0.9),
        (lambda samples: pcm16(samples / 100, byte_order=">"), "bytes swapped", 0.9),
        (float32, "format float32", 1.0),
        (lambda samples: float32(np.round(samples * 300) / 32768), "format float32", 1.0),
        (unsigned8, "one byte per sample", 0.6),
        (mu_law, "one byte per sample", 0.6),
    ],
    ids=["swapped", "swapped-quiet", "float32", "float32-of-few-bits", "8-bit", "mu-law"],
)
def test_bytes_that_are_no_pcm16_are_named(
    voices: list[Samples], encode: Encode, words: str, least_share: float
) -> None:
    # Twice as many single bytes make two seconds of 16-bit samples.
    doubts = [doubt_of(encode(np.concatenate([voice] * 2))) for voice in voices]
    assert sum(words in (doubt or "") for doubt in doubts) >= least_share * len(voices)
    assert all(doubt is None or words in doubt for doubt in doubts), "nothing else is suspected"


@pytest.mark.parametrize("message_bytes", [4, 320, 1 << 20])
@pytest.mark.parametrize("silence_s", [0, 1.5, 1.50006])
def test_the_doubt_does_not_hang_on_messages_or_on_silence_before(
    voices: list[Samples], message_bytes: int, silence_s: float
) -> None:
    silence = bytes(4 * round(silence_s * SAMPLE_RATE))
    doubt = doubt_of(silence + float32(voices[0]), message_bytes=message_bytes)
    assert doubt is not None and "float32" in doubt


def test_a_voice_three_times_too_slow_is_too_deep(voices: list[Samples]) -> None:
    doubts = [doubt_of(pcm16(soxr.resample(voice, SAMPLE_RATE, 48_000))) for voice in voices]
    named = [doubt for doubt in doubts if doubt is not None]
    assert all("perhaps 48000; send the sample_rate of the source" in doubt for doubt in named)
    assert len(named) >= 0.3 * len(voices), "not every voice is deep enough to be sure"


def test_it_is_over_after_two_seconds() -> None:
    plausibility = Plausibility(AudioFormat.PCM16, sample_rate=SAMPLE_RATE, channels=1)
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, SAMPLE_RATE // 10).astype(np.float32)
    for n in range(22):
        assert not plausibility.is_done
        assert plausibility.listen(pcm16(noise), noise, now=0.1 * n) is None
        if n == 20:
            break
    assert plausibility.is_done


# ------------------------------------------------------------------------------------------------ pace


def paced(sample_rate: int, *, samples_per_s: int, pauses: bool = False) -> str | None:
    """What is said of noise that comes in 20 messages a second, perhaps with a pause in the middle."""
    plausibility = Plausibility(AudioFormat.PCM16, sample_rate=sample_rate, channels=1)
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, samples_per_s // 20).astype(np.float32)
    for n in range(60):
        now = n / 20 + (1.5 if pauses and n > 15 else 0)
        doubt = plausibility.listen(pcm16(noise), np.empty(0, np.float32), now=now)
        if doubt is not None:
            assert now <= 2.05
            return doubt
    return None


@pytest.mark.parametrize(
    ("sample_rate", "samples_per_s"), [(48_000, 16_000), (44_100, 16_000), (16_000, 8_000), (96_000, 44_100)]
)
def test_live_audio_that_comes_too_slowly_names_the_rate_at_which_it_comes(
    sample_rate: int, samples_per_s: int
) -> None:
    doubt = paced(sample_rate, samples_per_s=samples_per_s)
    assert doubt is not None
    assert doubt.endswith(
        f"where sample_rate says {sample_rate}; if this is live audio, send sample_rate {samples_per_s}."
    )


@pytest.mark.parametrize(
    ("samples_per_s", "pauses"),
    [(16_000, False), (48_000, False), (14_000, False), (10_000, False), (16_000, True)],
    ids=["live", "fast", "a-little-slow", "slow-network", "with-a-pause"],
)
def test_audio_at_its_own_pace_is_not_doubted(samples_per_s: int, pauses: bool) -> None:
    assert paced(16_000, samples_per_s=samples_per_s, pauses=pauses) is None
