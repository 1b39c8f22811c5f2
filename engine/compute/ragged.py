"""Batches whose layout the host knows: windows and texts of unlike length one behind another, nothing padded.

For a CPU: products run over all of them at once, convolutions and attention row by row, so that nothing is copied and
no row pays for a longer neighbour. (On a GPU so many launches would cost more than the work; see compute/padded.py.)
Shapes as in models/whisper/modules.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from engine.compute.cache import KVCache
from engine.models.whisper.modules import Stretches


class RaggedWindows:
    """What one run of the encoder computes: a `WindowBatch`."""

    def __init__(self, frames: Tensor, rows: Sequence[int], spans: Sequence[slice], cache: KVCache) -> None:
        """Take parts of N windows.

        Args:
            frames: (N, M, n) mel frames of the windows, two zero frames before each and one frame behind the last.
            rows: where keys and values go; the rows are laid out for the whole windows.
            spans: positions to encode; those before them are in the cache already.
        """
        self.parts = [_stretch(window, span) for window, span in zip(frames, spans, strict=True)]
        self._rows = rows
        self._spans = spans
        self._cache = cache
        self._lengths = [span.stop - span.start for span in spans]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `WindowBatch`."""
        attended = []
        for row, span, q, k, v in zip(self._rows, self._spans, *self._split(query, key, value), strict=True):
            self._cache.encoder.write(layer, row, span, k, v)
            attended.append(self._cache.encoder.attend(layer, row, q))
        return torch.cat(attended)

    def keep_cross(self, layer: int, key: Tensor, value: Tensor) -> None:
        """See `WindowBatch`."""
        for row, span, k, v in zip(self._rows, self._spans, *self._split(key, value), strict=True):
            self._cache.cross.write(layer, row, span, k, v)

    def _split(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        return [torch.split(tensor, self._lengths) for tensor in tensors]


def _stretch(frames: Tensor, span: slice) -> Stretches:
    """Cut out of (M, n) frames of a window what the convolutions see of a span."""
    return Stretches(
        mel=frames[None, :, 2 * span.start : 2 * span.stop + 3],
        is_inside=torch.tensor([float(span.start > 0)], device=frames.device),
        positions=torch.arange(span.start, span.stop, device=frames.device)[None],
    )


class RaggedTexts:
    """What one pass of the decoder computes: a `TextBatch`."""

    def __init__(self, rows: Sequence[int], tokens: Sequence[Sequence[int]], cache: KVCache) -> None:
        """Append tokens to the texts of some rows."""
        lengths = [len(row) for row in tokens]
        self.tokens = torch.tensor([token for row in tokens for token in row])
        self._rows = rows
        self._cache = cache
        self._n_before = [cache.lengths[row] for row in rows]
        self.spans = [slice(begin, end) for begin, end in pairwise(accumulate(lengths, initial=0))]
        self.positions = torch.cat(
            [torch.arange(n, n + length) for n, length in zip(self._n_before, lengths, strict=True)]
        )
        self._row_of = torch.repeat_interleave(torch.tensor(rows), torch.tensor(lengths))  # (P,)
        # One token each is the case that comes most often: all texts are read at once then, the few keys they have.
        is_step = len(self.positions) == len(rows)
        self._bias = cache.text.bias(self.positions[:, None], max(self._n_before) + 1) if is_step else None

    def attend_text(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `TextBatch`."""
        keys = self._cache.text
        keys.write_at(layer, self._row_of, self.positions, key, value)
        if self._bias is not None:
            return keys.attend_padded(layer, self._row_of, query[:, None], self._bias)[:, 0]
        parts = zip(self._rows, self.spans, self._n_before, strict=True)
        return torch.cat([keys.attend(layer, row, query[span], n_before) for row, span, n_before in parts])

    def attend_audio(self, layer: int, query: Tensor) -> Tensor:
        """See `TextBatch`."""
        parts = zip(self._rows, self.spans, strict=True)
        return torch.cat([self._cache.cross.attend(layer, row, query[span]) for row, span in parts])

    def audio_keys(self, layer: int, index: int) -> Tensor:
        """See `TextBatch`."""
        return self._cache.cross.own(layer, self._rows[index])[0]
