"""Memory of the cache; what is in it is tested with those who use it (test_model.py, test_encoding.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.cache import KVCache
from engine.checkpoint import Checkpoint
from tests.engine.models import CPU

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
