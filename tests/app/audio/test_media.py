"""Every container in `tests/audio` decodes to the same utterance; what is not audio is refused by name."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from app.audio.media import MediaError, open_media
from engine.types import SAMPLE_RATE, Samples
from tests.conftest import AUDIO, LoadClip

CLEAN = "utterance/ls-1089-134691-0001.flac"
CONTAINERS = sorted(path.name for path in (AUDIO / "format").iterdir())
# Of these only the shape of the wave is compared: made louder or softer, or mixed down from stereo without halving.
LOUDNESS_CHANGED = ("clipped", "quiet", "left-only", "mulaw", ".m4a", ".mp4")
LEAST_CORRELATION = {".m4a": 0.97, ".mp4": 0.97, "clipped": 0.75, "8k-mulaw": 0.6}  # a telephone has no lows and highs


def best_correlation(a: Samples, b: Samples) -> float:
    """Highest normalised cross-correlation over all shifts; codecs shift by some ms. 1.0 is the same wave."""
    n = 1 << (len(a) + len(b)).bit_length()
    product = np.fft.irfft(np.fft.rfft(a, n) * np.conj(np.fft.rfft(b, n)), n)
    return float(product.max() / (np.linalg.norm(a) * np.linalg.norm(b)))


def decoded(path: Path) -> Samples:
    with open_media(path) as media:
        return np.concatenate(list(media.chunks()))


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_container_gives_the_same_utterance(name: str, load_clip: LoadClip) -> None:
    clean, twin = load_clip(CLEAN), load_clip(f"format/{name}")
    assert twin.dtype == np.float32
    assert abs(len(twin) - len(clean)) <= 0.05 * SAMPLE_RATE
    least = [value for part, value in LEAST_CORRELATION.items() if part in name]
    assert best_correlation(twin, clean) > (least[0] if least else 0.99)
    if not any(word in name for word in LOUDNESS_CHANGED):
        assert np.linalg.norm(twin) == pytest.approx(np.linalg.norm(clean), rel=0.15)


def test_wav_and_flac_of_16_khz_are_exact(load_clip: LoadClip) -> None:
    assert np.array_equal(load_clip(CLEAN), load_clip("format/ls-1089-134691-0001-16k-mono.wav"))


@pytest.mark.parametrize("n_samples", [1, 7, 800, 16_000, 1_000_000])
def test_chunk_size_never_changes_the_audio(n_samples: int) -> None:
    path = AUDIO / "format/ls-1089-134691-0001.ogg"
    with open_media(path) as media:
        chunks = list(media.chunks(n_samples))
    assert all(len(chunk) == n_samples for chunk in chunks[:-1])
    assert np.array_equal(np.concatenate(chunks), decoded(path))


def test_duration_is_known_where_the_container_says_it() -> None:
    with open_media(AUDIO / CLEAN) as media:
        assert media.duration_s == pytest.approx(5.415, abs=0.001)
    with open_media(AUDIO / "format/ls-1089-134691-0001.webm") as media:
        assert media.duration_s is None


def test_24_bit_stereo_of_a_sound_card_is_read(tmp_path: Path, load_clip: LoadClip) -> None:
    clean = load_clip(CLEAN)
    path = tmp_path / "card.wav"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s24le", rate=SAMPLE_RATE, layout="stereo")
        frame = av.AudioFrame.from_ndarray(
            np.repeat((clean * 2**31).astype(np.int32), 2).reshape(1, -1), format="s32", layout="stereo"
        )
        frame.sample_rate = SAMPLE_RATE
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert np.abs(decoded(path) - clean).max() < 1e-6


def test_a_file_cut_off_midway_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = (AUDIO / "format/ls-1089-134691-0001.ogg").read_bytes()
    path = tmp_path / "cut.ogg"
    path.write_bytes(whole[: len(whole) // 2])
    assert 1.0 < len(decoded(path)) / SAMPLE_RATE < 4.0


@pytest.mark.parametrize("damage", [0x00, 0xA5, 0xFF])
def test_damaged_packets_are_counted_and_skipped(damage: int, tmp_path: Path) -> None:
    content = bytearray((AUDIO / "format/ls-1089-134691-0001.m4a").read_bytes())
    content[20_000:23_000] = bytes([damage]) * 3_000
    path = tmp_path / "damaged.m4a"
    path.write_bytes(content)
    with open_media(path) as media:
        n_samples = sum(map(len, media.chunks()))
        assert media.n_damaged > 0
    assert n_samples > 4.5 * SAMPLE_RATE


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"Dear Sir or Madam, " * 50, "is not audio"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", "audio"),
    ],
)
def test_what_is_not_audio_is_refused_by_name(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "letter.wav"
    path.write_bytes(content)
    with pytest.raises(MediaError, match=sentence) as refused:
        decoded(path)
    assert str(path) in str(refused.value)


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="There is no file"):
        decoded(tmp_path / "missing.wav")
    with pytest.raises(MediaError, match="is a folder"):
        decoded(tmp_path)


def test_a_film_without_sound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "silent.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("rawvideo", rate=1)
        stream.width = stream.height = 16
        stream.pix_fmt = "yuv420p"
        container.mux(stream.encode(av.VideoFrame(16, 16, "yuv420p")))
        container.mux(stream.encode(None))
    with pytest.raises(MediaError, match="no audio, only video"):
        decoded(path)


def test_a_name_with_a_colon_is_a_file_not_a_protocol(tmp_path: Path) -> None:
    path = tmp_path / "concat:talk.flac"
    path.write_bytes((AUDIO / CLEAN).read_bytes())
    assert len(decoded(path)) > 5 * SAMPLE_RATE
