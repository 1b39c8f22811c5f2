"""Audio of one session, addressed by absolute sample index.

Stands at the start of the route: the session appends what arrives and later cuts windows out by position on its own
clock. Knows no wire format (see app/audio/decoder.py), no speech detection. Called on the engine thread only.
"""

from __future__ import annotations

import numpy as np

from engine.types import SAMPLE_RATE, Samples

_INITIAL_CAPACITY = 4 * SAMPLE_RATE


class AudioBuffer:
    """A growing recording whose beginning may be forgotten.

    Samples keep their index for ever: `end` counts everything ever appended, `start` is the oldest one still held.
    Appending costs amortised O(n); a view is valid until the next `append` or `forget_before`.
    """

    def __init__(self) -> None:
        self._store: Samples = np.empty(_INITIAL_CAPACITY, dtype=np.float32)
        self._first = 0  # where `start` lies in the store
        self._length = 0
        self._start = 0

    @property
    def start(self) -> int:
        """Index of the oldest sample held."""
        return self._start

    @property
    def end(self) -> int:
        """Number of samples ever appended."""
        return self._start + self._length

    def append(self, samples: Samples) -> None:
        """Add (n,) float32 samples at the end."""
        needed = self._first + self._length + len(samples)
        if needed > len(self._store):
            self._make_room(self._length + len(samples))
        tail = self._first + self._length
        self._store[tail : tail + len(samples)] = samples
        self._length += len(samples)

    def view(self, start: int, end: int) -> Samples:
        """Return samples [start, end) without copying."""
        assert self.start <= start <= end <= self.end, f"[{start}, {end}) outside [{self.start}, {self.end})"
        offset = self._first - self._start
        return self._store[start + offset : end + offset]

    def forget_before(self, index: int) -> None:
        """Release the samples before `index`; a smaller index than `start` does nothing."""
        index = min(index, self.end)
        if index > self._start:
            self._first += index - self._start
            self._length -= index - self._start
            self._start = index

    def _make_room(self, length: int) -> None:
        capacity = max(_INITIAL_CAPACITY, 2 * length)
        store = np.empty(capacity, dtype=np.float32)
        store[: self._length] = self._store[self._first : self._first + self._length]
        self._store, self._first = store, 0
