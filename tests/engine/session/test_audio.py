"""Laws of the audio buffer."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.session.audio import AudioBuffer
from engine.types import SAMPLE_RATE


@given(data=st.data(), lengths=st.lists(st.integers(0, 3 * SAMPLE_RATE), max_size=12))
def test_samples_keep_their_index_whatever_the_chunks(data: st.DataObject, lengths: list[int]) -> None:
    everything = np.arange(sum(lengths), dtype=np.float32)
    buffer = AudioBuffer()
    for length in lengths:
        buffer.append(everything[buffer.end : buffer.end + length])
        oldest = buffer.start
        forget = data.draw(st.integers(0, buffer.end + 10))
        buffer.forget_before(forget)
        assert buffer.start == max(oldest, min(forget, buffer.end))
        start = data.draw(st.integers(buffer.start, buffer.end))
        end = data.draw(st.integers(start, buffer.end))
        np.testing.assert_array_equal(buffer.view(start, end), everything[start:end])
    assert buffer.end == len(everything)
    np.testing.assert_array_equal(buffer.view(buffer.start, buffer.end), everything[buffer.start :])


def test_a_view_copies_nothing() -> None:
    buffer = AudioBuffer()
    buffer.append(np.ones(100, dtype=np.float32))
    assert np.shares_memory(buffer.view(10, 20), buffer.view(0, 100))


def test_an_appended_chunk_may_be_changed_afterwards() -> None:
    buffer = AudioBuffer()
    chunk = np.ones(100, dtype=np.float32)
    buffer.append(chunk)
    chunk[:] = 0
    assert buffer.view(0, 100).min() == 1


def test_forgetting_bounds_the_memory_of_an_endless_stream() -> None:
    buffer = AudioBuffer()
    second = np.zeros(SAMPLE_RATE, dtype=np.float32)
    for _ in range(600):
        buffer.append(second)
        buffer.forget_before(buffer.end - 2 * SAMPLE_RATE)
    held = buffer.view(buffer.start, buffer.end).base
    assert held is not None and held.nbytes < 20 * second.nbytes
    assert (buffer.start, buffer.end) == (598 * SAMPLE_RATE, 600 * SAMPLE_RATE)
