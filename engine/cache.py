"""Keys and values of every row, preallocated: text, encoder and cross-attention.

One row per slot (engine/slots.py decides who holds which). Nothing is concatenated or allocated per step: a decode step
writes one position per layer and reads a slice. Owned by engine/runner.py.

The audio of a row is laid out as one run of keys: the window's own positions, then the silence tail that stands for the
rest of Whisper's 30 seconds (engine/silence.py). `bias` is added to the attention scores: 0 for the window's own
positions, the log of how many positions a tail key stands for, and -inf behind the run. Encoder self-attention and the
decoder's cross-attention share layout and bias.

Shapes: as in engine/model.py; R rows, S = 1500 encoder positions, G tail keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.checkpoint import Dimensions
from engine.silence import SilenceTail


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


class KVCache:
    """All rows of all layers.

    `lengths[row]` is the number of text positions that are valid; whoever runs the decoder keeps it true.
    """

    def __init__(self, dimensions: Dimensions, n_rows: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self._n_positions = dimensions.n_audio_positions
        self._n_text_positions = dimensions.n_text_positions
        head_width = dimensions.n_state // dimensions.n_heads
        text = (2, n_rows, dimensions.n_heads, dimensions.n_text_positions, head_width)
        audio = (2, n_rows, dimensions.n_heads, dimensions.n_audio_positions, head_width)

        def stores(shape: tuple[int, ...], n_layers: int) -> list[Tensor]:
            return [torch.zeros(shape, device=device, dtype=dtype) for _ in range(n_layers)]

        self._text = stores(text, dimensions.n_decoder_layers)  # [0] keys, [1] values
        self._cross = stores(audio, dimensions.n_decoder_layers)
        self._encoder = stores(audio, dimensions.n_encoder_layers)
        self._bias = torch.full((n_rows, self._n_positions), -torch.inf, device=device, dtype=dtype)
        self._tails: list[SilenceTail | None] = [None] * n_rows
        self._n_keys = [1] * n_rows  # of audio; a row never used has one, so that attention to it is defined
        self._bias[:, 0] = 0
        self.lengths = [0] * n_rows

    # ------------------------------------------------------------------------------------------------ text

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

    # ------------------------------------------------------------------------------------------------ audio

    def lay_out(self, row: int, n_positions: int, tail: SilenceTail | None) -> None:
        """Begin a window: so many positions of its own, then the tail from there on."""
        log_weights = tail.log_weights_from(n_positions) if tail else self._bias[row, :0]
        n_keys = n_positions + len(log_weights)
        self._bias[row, :n_positions] = 0
        self._bias[row, n_positions:n_keys] = log_weights
        self._bias[row, n_keys:] = -torch.inf
        self._n_keys[row] = n_keys
        self._tails[row] = tail

    def write_encoder(self, layer: int, row: int, span: slice, keys: Tensor, values: Tensor) -> None:
        """Write (n, H, D) self-attention keys and values of the encoder at positions `span`, and the tail behind."""
        tail = self._tails[row]
        self._write(self._encoder[layer], row, span, keys, values, tail.encoder[layer] if tail else None)

    def write_cross(self, layer: int, row: int, span: slice, keys: Tensor, values: Tensor) -> None:
        """Write (n, H, D) cross-attention keys and values at positions `span`, and the tail behind."""
        tail = self._tails[row]
        self._write(self._cross[layer], row, span, keys, values, tail.cross[layer] if tail else None)

    def _write(self, store: Tensor, row: int, span: slice, keys: Tensor, values: Tensor, tail: Tensor | None) -> None:
        store[0, row, :, span] = keys.transpose(0, 1)
        store[1, row, :, span] = values.transpose(0, 1)
        if tail is not None:
            n_tail = self._n_keys[row] - span.stop
            store[:, row, :, span.stop : self._n_keys[row]] = tail[:, :, tail.shape[2] - n_tail :]

    def attend_encoder(self, layer: int, row: int, query: Tensor) -> Tensor:
        """Attend from (1, H, n, D) queries to one row's window; returns (1, H, n, D)."""
        n_keys = self._n_keys[row]
        keys, values = self._encoder[layer][:, row : row + 1, :, :n_keys]
        return attend(query, keys, values, self._bias[row, :n_keys])

    def attend_cross(self, layer: int, rows: Rows, query: Tensor) -> Tensor:
        """Attend from (B, H, T, D) queries to the rows' windows; returns (B, H, T, D).

        On a CPU row by row: nothing is copied and no row pays for a longer neighbour. On a GPU, where the launches
        would cost more than the work, all rows at once, padded to the longest.
        """
        if query.device.type == "cpu":
            windows = [self._cross_of(layer, row) for row in rows.indices]
            return torch.cat([attend(q, *window) for q, window in zip(torch.split(query, 1), windows, strict=True)])
        n_keys = max(self._n_keys[row] for row in rows.indices)
        keys, values = (rows.pick(store)[:, :, :n_keys] for store in self._cross[layer])
        return attend(query, keys, values, rows.pick(self._bias)[:, None, None, :n_keys])

    def cross_keys(self, layer: int, row: int) -> Tensor:
        """Return (H, n_keys, D) cross-attention keys of one row's window."""
        return self._cross_of(layer, row)[0][0]

    def _cross_of(self, layer: int, row: int) -> tuple[Tensor, Tensor, Tensor]:
        n_keys = self._n_keys[row]
        keys, values = self._cross[layer][:, row : row + 1, :, :n_keys]
        return keys, values, self._bias[row, :n_keys]

    def encoder_store(self, layer: int) -> Tensor:
        """Return all (2, R, H, S, D) self-attention keys and values of an encoder layer."""
        return self._encoder[layer]

    def cross_store(self, layer: int) -> Tensor:
        """Return all (2, R, H, S, D) cross-attention keys and values of a decoder layer."""
        return self._cross[layer]


def attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attend from (B, H, T, D) to (B, H, n, D); `bias`, (..., n), is added to the scores."""
    mask = bias.expand(query.shape[0], 1, query.shape[2], -1)
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
