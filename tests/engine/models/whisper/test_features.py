"""Log-mel features against transformers' WhisperFeatureExtractor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from engine.models.whisper.features import HOP_SAMPLES, MAX_FRAMES, N_FREQUENCIES, LogMel, mel_filters, n_frames
from engine.types import MAX_WINDOW_SAMPLES, Samples
from tests.conftest import LoadClip

CLIPS = (
    "utterance/jfk-inaugural.flac",
    "utterance/leopard-test-ja.flac",
    "noisy/ls-1089-134691-0001-babble-10dB.flac",
    "noisy/ls-1089-134686-0001-in-30s-silence.flac",
    "nonspeech/silence-10s.flac",
)
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def clips(load_clip: LoadClip) -> list[Samples]:
    return [load_clip(name)[:MAX_WINDOW_SAMPLES] for name in CLIPS]


def transformers_features(rows: list[Samples], n_mels: int) -> NDArray[np.float32]:
    """(B, M, MAX_FRAMES) of rows padded to 30 s."""
    extractor = WhisperFeatureExtractor(feature_size=n_mels)
    return np.stack([extractor(row, sampling_rate=16_000).input_features[0] for row in rows])


@pytest.mark.parametrize("n_mels", [80, 128])
def test_filters_equal_those_of_transformers(n_mels: int) -> None:
    expected = mel_filter_bank(N_FREQUENCIES, n_mels, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(n_mels).numpy().T, expected, atol=1e-8)


@pytest.mark.parametrize("n_mels", [80, 128])
def test_padded_windows_equal_those_of_transformers(clips: list[Samples], n_mels: int) -> None:
    got = LogMel(n_mels).padded(clips)
    assert got.shape == (len(clips), n_mels, MAX_FRAMES)
    np.testing.assert_allclose(got.numpy(), transformers_features(clips, n_mels), atol=TOLERANCE)


@pytest.mark.parametrize("n_mels", [80, 128])
def test_rows_padded_by_the_caller_equal_those_of_transformers(clips: list[Samples], n_mels: int) -> None:
    audio = torch.stack([torch.from_numpy(np.pad(clip, (0, MAX_WINDOW_SAMPLES - len(clip)))) for clip in clips])
    np.testing.assert_allclose(LogMel(n_mels)(audio).numpy(), transformers_features(clips, n_mels), atol=TOLERANCE)


@pytest.mark.parametrize("n_samples", [1_600, 16_000, 16_001, 77_777])
def test_rows_of_other_lengths_equal_those_of_transformers(clips: list[Samples], n_samples: int) -> None:
    audio = torch.from_numpy(np.stack([clip[-n_samples:] for clip in clips]))
    extractor = WhisperFeatureExtractor()
    expected = [extractor(row.numpy(), sampling_rate=16_000, padding=False).input_features[0] for row in audio]
    got = LogMel(80)(audio)
    assert got.shape == (len(clips), 80, n_frames(n_samples))
    np.testing.assert_allclose(got.numpy(), np.stack(expected), atol=TOLERANCE)


@pytest.mark.parametrize(
    "length",
    [
        1,
        HOP_SAMPLES,
        401,
        MAX_WINDOW_SAMPLES - 401,
        MAX_WINDOW_SAMPLES - 400,
        MAX_WINDOW_SAMPLES - 1,
        MAX_WINDOW_SAMPLES,
    ],
)
def test_leaving_silence_out_changes_no_value(length: int) -> None:
    """The frames about the end of the audio, and the mirrored end of a full window, are the delicate ones."""
    row = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    log_mel = LogMel(80)
    whole = log_mel(torch.from_numpy(np.pad(row, (0, MAX_WINDOW_SAMPLES - length)))[None])
    np.testing.assert_allclose(log_mel.padded([row]).numpy(), whole.numpy(), atol=1e-6)


def test_a_row_does_not_depend_on_its_neighbours(clips: list[Samples]) -> None:
    log_mel = LogMel(80)
    together = log_mel.padded([clip[: 16_000 * (i + 1)] for i, clip in enumerate(clips)])
    for i, clip in enumerate(clips):
        alone = log_mel.padded([clip[: 16_000 * (i + 1)]])
        np.testing.assert_allclose(together[i].numpy(), alone[0].numpy(), atol=1e-5)


def test_digital_silence_has_one_value() -> None:
    features = LogMel(80).padded([np.zeros(16_000, dtype=np.float32)], n_samples=32_000)
    assert features.shape == (1, 80, 200)
    np.testing.assert_allclose(features.numpy(), (-10 + 4) / 4)
