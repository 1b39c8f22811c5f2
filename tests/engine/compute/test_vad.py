"""The speech detector against the package's own network, on real recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import engine.compute.vad
from engine.compute.vad import BLOCK_SAMPLES, SpeechDetector
from engine.errors import ModelLoadError
from engine.types import Samples
from tests.conftest import LoadClip

CLIPS = (
    "utterance/jfk-inaugural.flac",
    "utterance/ls-1272-128104-0000.flac",
    "noisy/ls-1089-134691-0001-babble-10dB.flac",
    "nonspeech/keyboard-typing.flac",
    "nonspeech/silence-10s.flac",
)
TOLERANCE = 1e-4  # of a probability


@pytest.fixture(scope="module")
def detector() -> SpeechDetector:
    return SpeechDetector()


@pytest.fixture(scope="module")
def clips(load_clip: LoadClip) -> list[Samples]:
    """Recordings of unlike length, whole blocks of each."""
    loaded = [load_clip(name)[: 6 * 16_000] for name in CLIPS]
    return [clip[: len(clip) // BLOCK_SAMPLES * BLOCK_SAMPLES] for clip in loaded]


@pytest.fixture(scope="module")
def package_probabilities(clips: list[Samples]) -> list[NDArray[np.float32]]:
    """What silero-vad's own network says, one block at a time."""
    with pytest.warns(DeprecationWarning, match="torch.jit.load"):
        network = torch.jit.load(str(engine.compute.vad._packaged_weights()))
    answers = []
    for clip in clips:
        network.reset_states()
        with torch.inference_mode():
            blocks = torch.from_numpy(clip).split(BLOCK_SAMPLES)
            answers.append(np.array([network(block, 16_000).item() for block in blocks], dtype=np.float32))
    return answers


def test_probabilities_equal_those_of_the_package(
    detector: SpeechDetector, clips: list[Samples], package_probabilities: list[NDArray[np.float32]]
) -> None:
    got = detector.probabilities([detector.new_state() for _ in clips], clips)
    for name, answer, expected in zip(CLIPS, got, package_probabilities, strict=True):
        assert answer.dtype == np.float32
        np.testing.assert_allclose(answer, expected, atol=TOLERANCE, err_msg=name)


def test_speech_is_likelier_than_noise(detector: SpeechDetector, clips: list[Samples]) -> None:
    _, speech, _, typing, silence = detector.probabilities([detector.new_state() for _ in clips], clips)
    assert (speech > 0.5).mean() > 0.7
    assert typing.mean() < 0.2
    assert silence.max() < 0.1


@pytest.mark.parametrize("seed", range(4))
def test_spreading_blocks_over_calls_and_sessions_changes_nothing(
    detector: SpeechDetector, clips: list[Samples], package_probabilities: list[NDArray[np.float32]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    states = [detector.new_state() for _ in clips]
    heard = [0] * len(clips)
    answers: list[list[NDArray[np.float32]]] = [[] for _ in clips]
    while any(position < len(clip) for position, clip in zip(heard, clips, strict=True)):
        present = rng.permutation(len(clips))[: rng.integers(1, len(clips) + 1)]
        audio = [clips[i][heard[i] : heard[i] + rng.integers(0, 9) * BLOCK_SAMPLES] for i in present]
        for i, samples, answer in zip(
            present, audio, detector.probabilities([states[i] for i in present], audio), strict=True
        ):
            assert len(answer) == len(samples) // BLOCK_SAMPLES
            answers[i].append(answer)
            heard[i] += len(samples)
    for answer, expected in zip(answers, package_probabilities, strict=True):
        np.testing.assert_allclose(np.concatenate(answer), expected, atol=TOLERANCE)


def test_digital_silence_is_heard_without_computing_it(
    detector: SpeechDetector, clips: list[Samples], monkeypatch: pytest.MonkeyPatch
) -> None:
    muted = np.concatenate([clips[0], np.zeros(100 * BLOCK_SAMPLES, dtype=np.float32), clips[1]])
    whole = torch.from_numpy(engine.compute.vad._with_context([detector.new_state()], [muted]))
    with torch.inference_mode():
        features = detector._features(whole)
        np.testing.assert_allclose(detector._features_where_sound(whole.numpy()), features, atol=TOLERANCE)

    n_computed = []
    compute = detector._features
    monkeypatch.setattr(detector, "_features", lambda blocks: n_computed.append(len(blocks)) or compute(blocks))
    detector.probabilities([detector.new_state()], [muted])
    assert sum(n_computed) <= len(whole) - 99, "the first silent block still shows the end of the one before"


def test_a_session_without_new_audio_keeps_its_state(detector: SpeechDetector) -> None:
    state, other = detector.new_state(), detector.new_state()
    context, memory = state.context, state.memory
    nothing = np.zeros(0, dtype=np.float32)
    answers = detector.probabilities([state, other], [nothing, np.ones(BLOCK_SAMPLES, dtype=np.float32)])
    assert [len(answer) for answer in answers] == [0, 1]
    assert state.context is context
    assert state.memory is memory
    assert [len(answer) for answer in detector.probabilities([state], [nothing])] == [0]
    assert detector.probabilities([], []) == []


def test_audio_that_is_overwritten_later_does_not_change_the_state(detector: SpeechDetector) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, BLOCK_SAMPLES)).astype(np.float32)
    expected = detector.new_state()
    detector.probabilities([expected], [first])

    state = detector.new_state()
    reused = first.copy()
    detector.probabilities([state], [reused])
    reused[:] = 0
    got = detector.probabilities([state, expected], [second, second])
    np.testing.assert_allclose(got[0], got[1], atol=1e-6)


def test_damaged_weights_say_what_to_do(tmp_path: Path) -> None:
    damaged = tmp_path / "silero_vad.jit"
    damaged.write_bytes(b"not a network")
    for path in (damaged, tmp_path / "missing.jit"):
        with pytest.raises(ModelLoadError, match="pip install"):
            SpeechDetector(path)
