"""Windows of audio become keys and values in the cache: whole, from a position on, with the silence tail behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.compute.cache import AudioKeys, KVCache
from engine.compute.encoder import WindowEncoder, WindowInput
from engine.compute.silence import TailKeys, n_tail_keys, thin_out
from engine.config import Context
from engine.models.whisper.checkpoint import Checkpoint
from engine.models.whisper.modules import Whisper
from engine.types import MAX_WINDOW_SAMPLES, POSITION_SAMPLES, SAMPLE_RATE, Samples
from tests.engine.real_models import make_cache, make_whisper, random_checkpoint

N_ALL = 1500


@pytest.fixture(scope="module")
def whisper(tiny_en: Checkpoint) -> Whisper:
    return make_whisper(random_checkpoint(tiny_en, seed=3))


@pytest.fixture
def cache(whisper: Whisper) -> KVCache:
    return make_cache(whisper, 3)


def noise(seconds: float, seed: int = 0) -> Samples:
    """A longer one begins with the shorter ones."""
    return np.random.default_rng(seed).standard_normal(int(seconds * SAMPLE_RATE)).astype(np.float32) / 10


def window(row: int, audio: Samples, *, first: int = 0, full: bool = False) -> WindowInput:
    return WindowInput(row, audio, first_position=first, full_context=full)


def written(cache: KVCache, row: int) -> list[Tensor]:
    """(2, H, n, D) keys and values of every layer, encoder and cross-attention."""
    return [keys.own(layer, row).clone() for keys in (cache.encoder, cache.cross) for layer in range(2)]


@pytest.mark.parametrize("context", list(Context))
@torch.inference_mode()
def test_a_window_encoded_from_a_position_on_equals_the_window_encoded_at_once(
    whisper: Whisper, cache: KVCache, context: Context
) -> None:
    encoder = WindowEncoder(whisper, cache, context)
    audio, first = noise(2), 40
    n_whole = encoder.encode([window(0, audio)])
    expected = written(cache, 0)
    for layer in range(2):
        for keys in (cache.encoder, cache.cross):
            keys.own(layer, 0)[:, :, first:] = 0
    n_rest = encoder.encode([window(0, audio, first=first)])
    assert n_rest == n_whole - first
    for found, before in zip(written(cache, 0), expected, strict=True):
        torch.testing.assert_close(found, before, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_growing_window_leaves_what_is_frozen_as_it_is(whisper: Whisper, cache: KVCache) -> None:
    encoder = WindowEncoder(whisper, cache, Context.TAIL)
    encoder.encode([window(1, noise(2))])
    before = written(cache, 1)
    encoder.encode([window(1, noise(3), first=60)])
    for found, kept in zip(written(cache, 1), before, strict=True):
        assert torch.equal(found[:, :, :60], kept[:, :, :60])
        assert not torch.equal(found[:, :, 60:150], kept[:, :, 60:150])


@torch.inference_mode()
def test_windows_of_unlike_length_and_context_share_a_run(whisper: Whisper, cache: KVCache) -> None:
    windows = [window(0, noise(1, 1)), window(1, noise(4, 2)), window(2, noise(2, 3), full=True)]
    encoder = WindowEncoder(whisper, cache, Context.TAIL)
    n_together = encoder.encode(windows)
    together = [written(cache, row) for row in range(3)]
    assert n_together == sum(encoder.encode([alone]) for alone in windows)
    for row in range(3):
        for found, expected in zip(together[row], written(cache, row), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("seconds", [0.1, 1, 7.31, 29, 30])
@torch.inference_mode()
def test_only_the_audio_and_a_short_margin_is_computed(whisper: Whisper, cache: KVCache, seconds: float) -> None:
    n_audio = -(-int(seconds * SAMPLE_RATE) // POSITION_SAMPLES)
    n_computed = WindowEncoder(whisper, cache, Context.TAIL).encode([window(0, noise(seconds))])
    assert min(N_ALL, n_audio) <= n_computed <= min(N_ALL, n_audio + 40)
    assert WindowEncoder(whisper, cache, Context.FULL).encode([window(0, noise(seconds))]) == N_ALL


@torch.inference_mode()
def test_a_full_window_has_no_tail(whisper: Whisper, cache: KVCache) -> None:
    audio = noise(MAX_WINDOW_SAMPLES / SAMPLE_RATE)
    found = []
    for context in Context:
        WindowEncoder(whisper, cache, context).encode([window(0, audio)])
        found.append(written(cache, 0))
    assert all(torch.equal(tail, full) for tail, full in zip(*found, strict=True))


# ------------------------------------------------------------------------------------------------ silence


@given(n_before=st.integers(0, N_ALL - 1), stride=st.sampled_from([1, 8, 64, 1500]))
def test_the_tail_stands_for_as_many_positions_as_it_replaces(n_before: int, stride: int) -> None:
    weights = torch.tensor(TailKeys([], stride, N_ALL).log_weights(n_before))
    assert len(weights) == n_tail_keys(N_ALL, stride)
    assert weights.exp().sum().item() == pytest.approx(N_ALL - n_before, rel=1e-4)
    assert weights[: n_before // stride].exp().sum() == 0


def test_a_tail_key_is_the_mean_of_its_stretch() -> None:
    keys_values = torch.randn(2, 3, 20, 4)
    thin = thin_out(keys_values, 8)
    assert thin.shape == (2, 3, 3, 4)
    torch.testing.assert_close(thin[:, :, 0], keys_values[:, :, :8].mean(dim=2))
    torch.testing.assert_close(thin[:, :, -1], keys_values[:, :, 16:].mean(dim=2))


@given(n_own=st.integers(1, 40), stride=st.sampled_from([1, 8, 64]), padded=st.booleans())
def test_attention_to_equal_positions_is_the_same_through_their_tail(n_own: int, stride: int, padded: bool) -> None:
    """Where silence is all alike, one key with the weight of many is exact."""
    n_all = 40
    n_tail = n_tail_keys(n_all, stride)
    query, real = torch.randn(5, 2, 4), torch.randn(2, n_own, 2, 4)
    silent = torch.randn(2, 2, 1, 4).expand(-1, -1, n_all, -1)
    everything = torch.cat([real.transpose(1, 2), silent[:, :, n_own:]], dim=2)
    exact = torch.nn.functional.scaled_dot_product_attention(query.transpose(0, 1), everything[0], everything[1])
    keys = AudioKeys((2, n_all, 4), 1, 3, n_tail, torch.empty(0))
    tail = TailKeys([thin_out(silent, stride)], stride, n_all)
    keys.lay_out([1], [n_all], [tail])  # a longer window before it
    keys.lay_out([1], [n_own], [tail if n_own < n_all else None])
    keys.write(0, 1, slice(0, n_own), real[0], real[1])
    if padded:
        (found,) = keys.attend_padded(0, torch.tensor([1]), query[None], keys.extent([1]))
    else:
        found = keys.attend(0, 1, query)
    torch.testing.assert_close(found.transpose(0, 1), exact, atol=1e-5, rtol=1e-5)
