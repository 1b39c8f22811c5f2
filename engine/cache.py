"""Keys and values of every row, preallocated: text, encoder and cross-attention.

One row per slot (engine/slots.py decides who holds which). Nothing is concatenated or allocated per step: a decode step
writes one position per layer and reads a slice. Owned by engine/runner.py.

Shapes: as in engine/model.py; R rows, S = 1500 encoder positions, G tail keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.checkpoint import Dimensions
from engine.silence import CROSS_STRIDE, ENCODER_STRIDE, SilenceTail, TailKeys, n_tail_keys


class Rows:
    """Which rows of the cache a pass works on.

    A dense range is read as a view; any other choice is gathered.
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


class AudioKeys:
    """What one kind of attention sees of the audio: keys and values of all rows and layers.

    A row holds the G keys of the silence tail, then the window's own S positions. What is attended to is one run: the
    tail keys that stand for what lies behind the window, and the window. (Softmax minds no order. With the tail in
    front nothing is moved when a window grows; the run only begins later.) `bias` is added to the scores: 0 for the
    window's own positions, the log of how many positions a tail key stands for, -inf outside the run.
    """

    def __init__(self, shape: tuple[int, int, int], n_layers: int, n_rows: int, n_tail: int, like: Tensor) -> None:
        """Allocate.

        Args:
            shape: H, S, D.
            n_tail: G.
            like: gives device and dtype.
        """
        n_heads, n_positions, head_width = shape
        size = (2, n_rows, n_heads, n_tail + n_positions, head_width)
        self._stores = [like.new_zeros(size) for _ in range(n_layers)]  # [0] keys, [1] values
        self._bias = like.new_full((n_rows, n_tail + n_positions), -torch.inf)
        self._bias[:, n_tail] = 0  # a row never used has one key, so that attention to it is defined
        self._runs = [slice(n_tail, n_tail + 1)] * n_rows
        self._tails: list[TailKeys | None] = [None] * n_rows
        self._n_tail = n_tail

    def lay_out(self, row: int, n_positions: int, tail: TailKeys | None) -> None:
        """Begin a window of so many positions of its own; the tail stands for the rest."""
        end = self._n_tail + n_positions
        begin = self._n_tail if tail is None else n_positions // tail.stride
        if tail is not None and self._tails[row] is not tail:
            for store, keys_values in zip(self._stores, tail.keys_values, strict=True):
                store[:, row, :, : self._n_tail] = keys_values
            self._tails[row] = tail
        weights = [-torch.inf] * self._n_tail if tail is None else tail.log_weights(n_positions)
        self._bias[row, : self._n_tail] = self._bias.new_tensor(weights)
        self._bias[row, self._n_tail : end] = 0
        self._bias[row, end:] = -torch.inf
        self._runs[row] = slice(begin, end)

    def write(self, layer: int, row: int, span: slice, keys: Tensor, values: Tensor) -> None:
        """Write (n, H, D) keys and values at the window's positions `span`."""
        at = slice(self._n_tail + span.start, self._n_tail + span.stop)
        self._stores[layer][0, row, :, at] = keys.transpose(0, 1)
        self._stores[layer][1, row, :, at] = values.transpose(0, 1)

    def attend(self, layer: int, row: int, query: Tensor) -> Tensor:
        """Attend from (1, H, n, D) queries to one row; returns (1, H, n, D)."""
        run = self._runs[row]
        keys, values = self._stores[layer][:, row : row + 1, :, run]
        return _attend(query, keys, values, self._bias[row, run])

    def attend_rows(self, layer: int, rows: Rows, query: Tensor) -> Tensor:
        """Attend from (B, H, T, D) queries to each its row; returns (B, H, T, D).

        On a CPU row by row: nothing is copied and no row pays for a longer neighbour. On a GPU the launches would cost
        more than the work.
        """
        if query.device.type != "cpu":
            return self.attend_padded(layer, rows, query)
        parts = zip(torch.split(query, 1), rows.indices, strict=True)
        return torch.cat([self.attend(layer, row, part) for part, row in parts])

    def attend_padded(self, layer: int, rows: Rows, query: Tensor) -> Tensor:
        """Do as `attend_rows` with all rows at once, padded to the longest."""
        n_keys = max(self._runs[row].stop for row in rows.indices)
        keys, values = (rows.pick(store)[:, :, :n_keys] for store in self._stores[layer])
        return _attend(query, keys, values, rows.pick(self._bias)[:, None, None, :n_keys])

    def own(self, layer: int, row: int) -> Tensor:
        """Return (2, H, n, D) keys and values of the window's own positions."""
        return self._stores[layer][:, row, :, self._n_tail : self._runs[row].stop]


class KVCache:
    """All rows of all layers.

    `lengths[row]` is the number of text positions that are valid; whoever runs the decoder keeps it true.

    Attributes:
        encoder: keys of the encoder's self-attention.
        cross: keys of the decoder's cross-attention.
    """

    def __init__(self, dimensions: Dimensions, n_rows: int, *, device: torch.device, dtype: torch.dtype) -> None:
        n_heads, n_positions = dimensions.n_heads, dimensions.n_audio_positions
        head_width = dimensions.n_state // n_heads
        like = torch.empty(0, device=device, dtype=dtype)
        self._n_text_positions = dimensions.n_text_positions
        text = (2, n_rows, n_heads, dimensions.n_text_positions, head_width)
        self._text = [like.new_zeros(text) for _ in range(dimensions.n_decoder_layers)]  # [0] keys, [1] values

        def audio(n_layers: int, stride: int) -> AudioKeys:
            n_tail = n_tail_keys(n_positions, stride)
            return AudioKeys((n_heads, n_positions, head_width), n_layers, n_rows, n_tail, like)

        self.encoder = audio(dimensions.n_encoder_layers, ENCODER_STRIDE)
        self.cross = audio(dimensions.n_decoder_layers, CROSS_STRIDE)
        self.lengths = [0] * n_rows

    def lay_out(self, row: int, n_positions: int, tail: SilenceTail | None) -> None:
        """Begin a window of so many positions of its own; the tail, or nothing, stands for the rest of 30 seconds."""
        self.encoder.lay_out(row, n_positions, tail.encoder if tail else None)
        self.cross.lay_out(row, n_positions, tail.cross if tail else None)

    def text_extent(self, rows: Rows, n_new: int) -> int:
        """Return how many key positions a pass with `n_new` tokens per row has to look at."""
        return min(max(self.lengths[row] for row in rows.indices) + n_new, self._n_text_positions)

    def extend_text(
        self, layer: int, rows: Rows, positions: Tensor, keys: Tensor, values: Tensor, n_keys: int
    ) -> tuple[Tensor, Tensor]:
        """Write (B, T, H, D) keys and values at (B, T) positions; return (B, H, n_keys, D) of each to attend to."""
        at = rows.tensor[:, None]
        key_store, value_store = self._text[layer]
        key_store[at, :, positions] = keys
        value_store[at, :, positions] = values
        return rows.pick(key_store[:, :, :n_keys]), rows.pick(value_store[:, :, :n_keys])


def _attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attend from (B, H, T, D) to (B, H, n, D); `bias`, (..., n), is added to the scores."""
    mask = bias.expand(query.shape[0], 1, query.shape[2], -1)
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
