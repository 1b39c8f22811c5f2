"""The encoder never takes more positions at once than fit, and goes on with fewer when memory runs out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.compute.encoder import WindowEncoder, WindowInput
from engine.compute.encoder_cap import EncoderCap, estimate_cap
from engine.compute.runner import ModelRunner
from engine.models.whisper.checkpoint import Checkpoint
from engine.models.whisper.tokenizer import Tokenizer
from tests.conftest import LoadClip
from tests.engine.conftest import SPOKEN_CLIPS
from tests.engine.real_models import Transcriber, make_request, make_runner


@given(cap=st.integers(1, 100), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_runs_are_whole_windows_within_the_cap_and_none_is_left_out(cap: int, sizes: list[int]) -> None:
    rest, runs = list(sizes), []
    while rest:
        n_windows = EncoderCap(cap).fitting(rest)
        runs.append(rest[:n_windows])
        del rest[:n_windows]
    assert [size for run in runs for size in run] == sizes
    assert all(len(run) == 1 or sum(run) <= cap for run in runs)
    assert all(sum(run) + following[0] > cap for run, following in zip(runs, runs[1:], strict=False)), "as few as fit"


def test_the_estimate_takes_at_least_one_padded_window(tiny_en: Checkpoint) -> None:
    cap = estimate_cap(tiny_en.dimensions, device=torch.device("cpu"), dtype=torch.float32)
    assert cap.n_positions >= tiny_en.dimensions.n_audio_positions


class Cramped(WindowEncoder):
    """An encoder on a device that has room for one padded window only."""

    def encode(self, windows: Sequence[WindowInput]) -> int:
        if sum(self.size(window) for window in windows) > 1_500:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().encode(windows)


@pytest.fixture
def cramped(tiny_en: Checkpoint, tokenizer: Tokenizer) -> ModelRunner:
    runner = make_runner(tiny_en, tokenizer, n_slots=3)
    runner._encoder.__class__ = Cramped
    return runner


def test_out_of_memory_splits_the_batch_and_changes_no_word(
    cramped: ModelRunner, runner: ModelRunner, load_clip: LoadClip
) -> None:
    audio = [load_clip(name) for name in SPOKEN_CLIPS[:3]]
    expected = Transcriber(runner)([make_request(samples) for samples in audio])
    found = Transcriber(cramped, n_slots=3)([make_request(samples) for samples in audio])
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    assert cramped._cap.n_positions <= 2_250
