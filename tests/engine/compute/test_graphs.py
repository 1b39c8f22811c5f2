"""Batches laid out for a GPU say what those for a CPU say, and what is recorded never asks the host.

Everything but the recording itself runs here: on a CPU the same passes over the same static tensors are run again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.compute.cache import KVCache
from engine.compute.encoder import WindowEncoder, WindowInput
from engine.compute.graphs import EncoderGraphs, Recorder, StepGraphs
from engine.compute.runner import ModelRunner
from engine.config import Context, Device, EngineConfig, Precision
from engine.decode.sampling import Sampler
from engine.models.whisper.checkpoint import Checkpoint
from engine.models.whisper.modules import Whisper
from engine.models.whisper.tokenizer import Tokenizer
from engine.session.hotwords import hotwords_of
from engine.types import SAMPLE_RATE, Samples
from tests.engine.conftest import Spoken
from tests.engine.real_models import (
    CPU,
    Transcriber,
    make_cache,
    make_request,
    make_runner,
    make_whisper,
    random_checkpoint,
)

SPARE = 3  # the last of the random model's rows

Written = list[torch.Tensor]


@pytest.fixture(scope="module")
def padded_runner(tiny_en: Checkpoint, tokenizer: Tokenizer) -> ModelRunner:
    return make_runner(tiny_en, tokenizer, context=Context.TAIL, padded=True)


@pytest.fixture(scope="module")
def ragged_runner(tiny_en: Checkpoint, tokenizer: Tokenizer) -> ModelRunner:
    return make_runner(tiny_en, tokenizer, context=Context.TAIL)


@pytest.mark.parametrize("together", [1, None])
def test_padded_batches_say_what_ragged_ones_say(
    padded_runner: ModelRunner, ragged_runner: ModelRunner, spoken: Spoken, together: int | None
) -> None:
    """Words, times and numbers, with windows that come one by one or all at once."""
    requests = [make_request(audio, wants_words=True) for audio in spoken.audio]
    found = Transcriber(padded_runner)(requests, together=together)
    for padded, ragged in zip(found, Transcriber(ragged_runner)(requests), strict=True):
        assert padded.tokens == ragged.tokens
        assert padded.avg_logprob == pytest.approx(ragged.avg_logprob, abs=1e-3)
        assert padded.no_speech_prob == pytest.approx(ragged.no_speech_prob, abs=1e-3)
        assert [(w.text, w.start, w.end) for w in padded.words] == [(w.text, w.start, w.end) for w in ragged.words]


def test_padded_batches_take_prefix_draft_and_hotwords(
    padded_runner: ModelRunner, ragged_runner: ModelRunner, spoken: Spoken, tokenizer: Tokenizer
) -> None:
    """A row with hotwords keeps the others of its step from their recording, not from their words."""
    tokens = spoken.tokens[0]
    hotwords = hotwords_of(("Harvard",), tokenizer.encode)
    requests = [
        make_request(spoken.audio[0], prefix=tokens[:3], draft=(*tokens[3:6], 1000, *tokens[7:])),
        replace(make_request(spoken.audio[1]), hotwords=hotwords),
        make_request(spoken.audio[2]),
    ]
    found, expected = (Transcriber(runner)(requests) for runner in (padded_runner, ragged_runner))
    assert [h.tokens for h in found] == [h.tokens for h in expected]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recorded_passes_say_what_the_cpu_says(
    tiny_en: Checkpoint, tokenizer: Tokenizer, ragged_runner: ModelRunner, spoken: Spoken
) -> None:
    """Twice in one process, windows of later ticks encoded beside the steps of those before."""
    requests = [make_request(audio, wants_words=True) for audio in spoken.audio * 4]
    expected = [h.tokens for h in Transcriber(ragged_runner)(requests)]
    for _ in range(2):
        config = EngineConfig(device=Device.CUDA, dtype=Precision.FP32, n_slots=8)
        runner = ModelRunner(tiny_en, tokenizer, config)
        runner.warm_up()
        assert [h.tokens for h in Transcriber(runner)(requests, together=3)] == expected


# ------------------------------------------------------------------------------------------------ encoder


@pytest.fixture(scope="module")
def whisper(tiny_en: Checkpoint) -> Whisper:
    return make_whisper(random_checkpoint(tiny_en, seed=3))


def noise(seconds: float, seed: int) -> Samples:
    return np.random.default_rng(seed).standard_normal(int(seconds * SAMPLE_RATE)).astype(np.float32) / 10


def encode(whisper: Whisper, context: Context, runs: list[list[WindowInput]], *, padded: bool) -> list[Written]:
    """Keys and values of every layer of rows 0 to 2 behind all runs."""
    cache = make_cache(whisper, SPARE + 1)
    graphs = EncoderGraphs(whisper, cache, spare_row=SPARE) if padded else None
    encoder = WindowEncoder(whisper, cache, context, graphs)
    for windows in runs:
        encoder.encode(windows)
    return [[keys.own(layer, row) for keys in (cache.encoder, cache.cross) for layer in range(2)] for row in range(3)]


@pytest.mark.parametrize("context", list(Context))
@torch.inference_mode()
def test_chunks_write_what_whole_windows_write(whisper: Whisper, context: Context) -> None:
    """One window, some of unlike length, one that grows behind what is frozen, and more chunks than are recorded."""
    runs = [
        [WindowInput(0, noise(0.3, 0), 0, False)],
        [WindowInput(0, noise(1.28, 1), 0, False), WindowInput(1, noise(5, 2), 0, False)],
        [WindowInput(1, noise(6, 2), 200, False), WindowInput(2, noise(30, 3), 0, False)],
        [WindowInput(row, noise(28 + row, row), 0, True) for row in range(3)],
        [WindowInput(2, noise(29.5, 2), 1400, False)],
    ]
    found, expected = (encode(whisper, context, runs, padded=padded) for padded in (True, False))
    for padded, ragged in zip(found, expected, strict=True):
        for ours, theirs in zip(padded, ragged, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------------------ recording


class Recording(TorchDispatchMode):
    """Fails where a CUDA graph could not be recorded: at whatever waits for the host or comes from it."""

    asks_host = frozenset(
        {
            torch.ops.aten._local_scalar_dense.default,  # item(), bool(); tolist() where the host has it not
            torch.ops.aten.nonzero.default,  # a shape that depends on values
            torch.ops.aten.masked_select.default,
            torch.ops.aten.lift_fresh.default,  # torch.tensor(...)
            torch.ops.aten.repeat_interleave.Tensor,
        }
    )
    by_index = frozenset(
        {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default}
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in self.asks_host, f"{func} cannot be recorded"
        if func in self.by_index:
            indices = [index for index in args[1] if index is not None]
            assert all(index.dtype == torch.int64 for index in indices), "a mask as an index cannot be recorded"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def recordable(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Does all that is recorded under the eyes of `Recording`; the sizes that were run."""
    sizes = []

    def run(self: Recorder, size: tuple[int, ...], work: Callable[[], None]) -> None:
        sizes.append(size)
        with Recording():
            work()

    monkeypatch.setattr(Recorder, "run", run)
    monkeypatch.setattr("engine.decode.sampling._argmax", lambda scores: scores.argmax(dim=-1))  # as on a GPU
    return sizes


def test_the_recording_of_what_asks_the_host_fails() -> None:
    with Recording(), pytest.raises(AssertionError, match="cannot be recorded"):
        bool(torch.arange(3).sum() > 1)
    with Recording(), pytest.raises(AssertionError, match="cannot be recorded"):
        torch.arange(3)[torch.arange(3) > 1]


@torch.inference_mode()
def test_all_sizes_can_be_recorded(whisper: Whisper, recordable: list[tuple[int, ...]]) -> None:
    cache = make_cache(whisper, SPARE + 1)
    other_case = [*range(whisper.dimensions.n_vocab)]
    other_case[7], other_case[8] = 8, 7
    steps = StepGraphs(whisper, cache, Sampler((5, 6), (), CPU, other_case), spare_row=SPARE)
    steps.warm_up()
    assert {size[0] for size in recordable} == {1, 2, 3}, "1, 2, and all rows"
    n_steps = len(recordable)
    EncoderGraphs(whisper, cache, spare_row=SPARE).warm_up()
    assert len(set(recordable)) == len(recordable) > n_steps


@torch.inference_mode()
def test_padding_writes_to_nobodys_row(whisper: Whisper, tiny_en: Checkpoint) -> None:
    """One row of three steps in a batch of two; the others stay as they are, to the bit."""
    cache = make_cache(whisper, SPARE + 1)
    encoder = WindowEncoder(whisper, cache, Context.TAIL, EncoderGraphs(whisper, cache, spare_row=SPARE))
    encoder.encode([WindowInput(row, noise(2, row), 0, False) for row in range(3)])
    before = rows_of(cache, (0, 2))
    steps = StepGraphs(whisper, cache, Sampler((), (), CPU), spare_row=SPARE)
    cache.lengths[1] = 4
    steps.step([1], [7])
    encoder.encode([WindowInput(1, noise(1, 9), 0, False)])
    assert all(torch.equal(found, kept) for found, kept in zip(rows_of(cache, (0, 2)), before, strict=True))


def rows_of(cache: KVCache, rows: tuple[int, ...]) -> list[torch.Tensor]:
    stores = (*cache.text._stores, *cache.encoder._stores, *cache.cross._stores)
    return [store[:, row].clone() for store in stores for row in rows]
