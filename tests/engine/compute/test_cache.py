"""Memory of the cache; what is in it is tested with those who use it (test_model.py, test_encoding.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.compute.cache import KVCache
from engine.models.whisper.checkpoint import Checkpoint
from tests.engine.real_models import CPU

STATM = Path("/proc/self/statm")


def resident_pages() -> int:
    return int(STATM.read_text().split()[1])


@pytest.mark.skipif(not STATM.exists(), reason="needs Linux")
def test_rows_that_nobody_used_take_no_memory(tiny_en: Checkpoint) -> None:
    before = resident_pages()
    cache = KVCache(tiny_en.dimensions, 100, device=CPU, dtype=torch.float32)
    size = sum(store.nbytes for keys in (cache.text, cache.encoder, cache.cross) for store in keys._stores)
    assert size == 100 * KVCache.row_bytes(tiny_en.dimensions, torch.float32) > 4e9
    assert (resident_pages() - before) * 4096 < size / 20
    assert not cache.cross.own(0, 99).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_zero_at_first(tiny_en: Checkpoint, dtype: torch.dtype) -> None:
    cache = KVCache(tiny_en.dimensions, 1, device=CPU, dtype=dtype)
    for store in (*cache.text._stores, *cache.encoder._stores, *cache.cross._stores):
        assert store.dtype == dtype and not store.any()


@torch.inference_mode()
@given(n_queries=st.integers(60, 300), n_own=st.integers(1, 600), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_attention_in_bf16_comes_close_and_no_query_hangs_on_its_neighbours(
    tiny_en: Checkpoint, n_queries: int, n_own: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    width = (tiny_en.dimensions.n_heads, tiny_en.dimensions.n_state // tiny_en.dimensions.n_heads)
    query = torch.randn(n_queries, *width, generator=random)
    keys, values = torch.randn(2, n_own, *width, generator=random)
    attended = []
    for in_bf16 in (False, True):
        cache = KVCache(tiny_en.dimensions, 1, device=CPU, dtype=torch.float32, attends_in_bf16=in_bf16)
        cache.lay_out([0], [n_own], [None])
        cache.encoder.write(0, 0, slice(0, n_own), keys, values)
        attended.append(cache.encoder.attend(0, 0, query))
    exact, found = attended
    assert found.dtype == exact.dtype and found.shape == exact.shape
    assert (exact - found).norm() < 0.02 * exact.norm()
    if n_queries >= 128:
        torch.testing.assert_close(cache.encoder.attend(0, 0, query[-64:]), found[-64:], rtol=1e-2, atol=1e-2)
