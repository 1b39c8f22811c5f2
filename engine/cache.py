"""Keys and values of every row that is being decoded, preallocated.

One row per slot (engine/slots.py decides who holds which). Nothing is concatenated or allocated per step: a decode step
writes one position per layer and reads a slice. Owned by engine/runner.py.

Shapes: as in engine/model.py; R rows, L layers, T_max = 448 text positions, S_max = 1500 encoder positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.checkpoint import Dimensions


class Rows:
    """Which rows of the cache a pass works on.

    A dense range is read as a view; any other choice is gathered. Slots are handed out lowest first, so decode steps
    always and prefills mostly are dense.
    """

    def __init__(self, indices: list[int], device: torch.device) -> None:
        self.indices = indices
        self.is_dense = indices == list(range(indices[0], indices[0] + len(indices)))
        self.tensor = torch.tensor(indices, device=device)  # (B,) int64

    def pick(self, store: Tensor) -> Tensor:
        """(R, ...) -> (B, ...)."""
        if self.is_dense:
            return store[self.indices[0] : self.indices[0] + len(self.indices)]
        return store[self.tensor]


class KVCache:
    """Self-attention (text) and cross-attention (audio) keys and values of all rows.

    `lengths[row]` is the number of text positions that are valid; whoever runs the decoder keeps it true.
    """

    def __init__(self, dimensions: Dimensions, n_rows: int, *, device: torch.device, dtype: torch.dtype) -> None:
        head_width = dimensions.n_state // dimensions.n_heads
        text = (n_rows, dimensions.n_heads, dimensions.n_text_positions, head_width)
        audio = (n_rows, dimensions.n_heads, dimensions.n_audio_positions, head_width)
        layers = range(dimensions.n_decoder_layers)
        self._text_keys = [torch.zeros(text, device=device, dtype=dtype) for _ in layers]
        self._text_values = [torch.zeros(text, device=device, dtype=dtype) for _ in layers]
        self._audio_keys = [torch.zeros(audio, device=device, dtype=dtype) for _ in layers]
        self._audio_values = [torch.zeros(audio, device=device, dtype=dtype) for _ in layers]
        self._n_text_positions = dimensions.n_text_positions
        self.lengths = [0] * n_rows

    def text_extent(self, rows: Rows, n_new: int) -> int:
        """Return how many key positions a pass with `n_new` tokens per row has to look at."""
        return min(max(self.lengths[row] for row in rows.indices) + n_new, self._n_text_positions)

    def extend_text(
        self, layer: int, rows: Rows, positions: Tensor, keys: Tensor, values: Tensor, n_keys: int
    ) -> tuple[Tensor, Tensor]:
        """Write (B, T, H, D) keys and values at (B, T) positions; return (B, H, n_keys, D) of each to attend to."""
        at = rows.tensor[:, None]
        self._text_keys[layer][at, :, positions] = keys
        self._text_values[layer][at, :, positions] = values
        return (
            rows.pick(self._text_keys[layer])[:, :, :n_keys],
            rows.pick(self._text_values[layer])[:, :, :n_keys],
        )

    def write_audio(self, layer: int, rows: Rows, keys: Tensor, values: Tensor) -> None:
        """Fill rows from (P, C) keys and values, P = B * S."""
        for store, flat in ((self._audio_keys[layer], keys), (self._audio_values[layer], values)):
            n_heads, n_positions, head_width = store.shape[1:]
            split = flat.view(-1, n_positions, n_heads, head_width).transpose(1, 2)  # (B, H, S, D)
            for row, window in zip(rows.indices, split, strict=True):
                store[row] = window

    def audio(self, layer: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return (B, H, S, D) keys and values of the rows' windows."""
        return rows.pick(self._audio_keys[layer]), rows.pick(self._audio_values[layer])
