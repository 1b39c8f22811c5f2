"""Speakers that come and go in `tickscribe bench memory`; the memory is that of this process."""

from __future__ import annotations

import os

from app.bench.memory import measure
from tests.app.serving import serving
from tests.fakes import loud, pcm16, silence


async def test_who_stays_gets_text_and_memory_is_read_after_each_number_of_cycles() -> None:
    speech = pcm16(loud(1.0)) + pcm16(silence(1.0))
    async with serving() as served:
        points = await measure(served.url(), os.getpid(), [speech], [6, 3])
    assert [point.n_cycles for point in points] == [3, 6]
    assert [point.texts for point in points] == [2, 4], "every third vanishes"
    assert all(point.resident_mb > 1 for point in points)
