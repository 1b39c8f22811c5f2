"""Keys and values of every row, preallocated: text, encoder and cross-attention.

One row per slot (decode/slots.py decides who holds which). A decode step writes one position per layer; nothing grows.
Owned by compute/runner.py; used by the batches of compute/ragged.py, which know on the host where everything lies and
read slices, and of compute/padded.py, which know it by tensors on the device and gather the rows that they read.

Shapes: as in models/whisper/modules.py; R rows, S = 1500 encoder positions, G tail keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.compute.silence import CROSS_STRIDE, ENCODER_STRIDE, SilenceTail, TailKeys, n_tail_keys
from engine.models.whisper.checkpoint import Dimensions

_KEYS_MULTIPLE = 64
# Attention in bf16. Code is generated for every shape of a product, which takes a millisecond and half a megabyte, so
# shapes are rounded up to few.
_MANY_QUERIES = 64  # of fewer, the change of format costs more than it saves
_QUERIES_AT_ONCE = 256  # the scores of more leave the cache
_QUERIES_STEP, _KEYS_STEP = 32, 128


class TextKeys:
    """Keys and values of the text of all rows and layers, at their positions."""

    def __init__(self, shape: tuple[int, int, int], n_layers: int, n_rows: int, like: Tensor) -> None:
        """Allocate.

        Args:
            shape: H, T, D.
            like: gives device and dtype.
        """
        self.n_keys = shape[1]
        self._stores = [_zeros((2, n_rows, *shape), like) for _ in range(n_layers)]  # [0] keys, [1] values

    def write_at(self, layer: int, rows: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write (P, H, D) keys and values, each at its own (P,) row and position."""
        _write_at(self._stores[layer], rows, positions, keys, values)

    def attend(self, layer: int, row: int, query: Tensor, n_before: int) -> Tensor:
        """Attend from (n, H, D) queries behind `n_before` positions of one row, each to itself and what is before."""
        n_new = len(query)
        keys, values = self._stores[layer][:, row : row + 1, :, : n_before + n_new]
        # The usual case needs no mask; PyTorch's own causal one is for as many queries as keys.
        mask = torch.ones(n_new, n_before + n_new, dtype=torch.bool).tril(n_before) if n_before else None
        query = query.transpose(0, 1)[None]  # (1, H, n, D)
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=mask is None)
        return attended[0].transpose(0, 1)

    def attend_padded(self, layer: int, rows: Tensor, query: Tensor, bias: Tensor) -> Tensor:
        """Attend from (B, T, H, D) queries to (B,) rows, with (B, T, n) `bias`; returns (B, T, H, D)."""
        keys, values = (store[rows, :, : bias.shape[-1]] for store in self._stores[layer])
        return _attend(query, keys, values, bias[:, None])

    def bias(self, positions: Tensor, n_keys: int) -> Tensor:
        """Return (..., n_keys): 0 for keys up to each position, -inf behind."""
        behind = torch.arange(n_keys, device=positions.device) > positions[..., None]
        return self._stores[0].new_zeros(behind.shape).masked_fill_(behind, -torch.inf)


class AudioKeys:
    """What one kind of attention sees of the audio: keys and values of all rows and layers.

    A row holds the G keys of the silence tail, then the window's own S positions. What is attended to is one run: the
    tail keys that stand for what lies behind the window, and the window. (Softmax minds no order. With the tail in
    front nothing is moved when a window grows; the run only begins later.) `bias` is added to the scores: 0 for the
    window's own positions, the log of how many positions a tail key stands for, -inf outside the run.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        n_layers: int,
        n_rows: int,
        n_tail: int,
        like: Tensor,
        *,
        in_bf16: bool = False,
    ) -> None:
        """Allocate.

        Args:
            shape: H, S, D.
            n_tail: G.
            like: gives device and dtype.
            in_bf16: multiply in bf16 where there are many queries.
        """
        self._in_bf16 = in_bf16
        n_heads, n_positions, head_width = shape
        self.n_keys = whole_blocks(n_tail + n_positions)
        size = (2, n_rows, n_heads, self.n_keys, head_width)
        self._stores = [_zeros(size, like) for _ in range(n_layers)]  # [0] keys, [1] values
        self._bias = like.new_full((n_rows, self.n_keys), -torch.inf)
        self._bias[:, n_tail] = 0  # a row never used has one key, so that attention to it is defined
        self._runs = [slice(n_tail, n_tail + 1)] * n_rows
        self._tails: list[TailKeys | None] = [None] * n_rows
        self.n_tail = n_tail

    def lay_out(self, rows: Sequence[int], n_positions: Sequence[int], tails: Sequence[TailKeys | None]) -> None:
        """Begin windows of so many positions of their own; the tails stand for the rest."""
        bias = np.full((len(rows), self.n_keys), -np.inf, dtype=np.float32)
        for i, (row, n_own, tail) in enumerate(zip(rows, n_positions, tails, strict=True)):
            begin, end = self.n_tail, self.n_tail + n_own
            bias[i, begin:end] = 0
            if tail is not None:
                bias[i, : self.n_tail] = tail.log_weights(n_own)
                begin = n_own // tail.stride
                self._take_over(row, tail)
            self._runs[row] = slice(begin, end)
        self._bias[torch.tensor(rows, device=self._bias.device)] = torch.from_numpy(bias).to(self._bias)

    def _take_over(self, row: int, tail: TailKeys) -> None:
        if self._tails[row] is not tail:
            for store, keys_values in zip(self._stores, tail.keys_values, strict=True):
                store[:, row, :, : self.n_tail] = keys_values
            self._tails[row] = tail

    def extent(self, rows: Sequence[int]) -> int:
        """Return how many keys, the tail's included, hold all that the rows attend to."""
        return max(self._runs[row].stop for row in rows)

    def write(self, layer: int, row: int, span: slice, keys: Tensor, values: Tensor) -> None:
        """Write (n, H, D) keys and values at the window's positions `span`."""
        at = slice(self.n_tail + span.start, self.n_tail + span.stop)
        self._stores[layer][0, row, :, at] = keys.transpose(0, 1)
        self._stores[layer][1, row, :, at] = values.transpose(0, 1)

    def write_at(self, layer: int, rows: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write (P, H, D) keys and values, each at its own (P,) row and position."""
        _write_at(self._stores[layer], rows, self.n_tail + positions, keys, values)

    def attend(self, layer: int, row: int, query: Tensor) -> Tensor:
        """Attend from (n, H, D) queries to one row; returns (n, H, D)."""
        run = self._runs[row]
        if self._in_bf16 and len(query) >= _MANY_QUERIES:
            n_keys = min(round_up(run.stop - run.start, _KEYS_STEP), self.n_keys)
            begin = min(run.start, self.n_keys - n_keys)
            run = slice(begin, begin + n_keys)  # what is not in the run has a bias of -inf
            keys, values = self._stores[layer][:, row, :, run]
            return _attend_in_bf16(query, keys, values, self._bias[row, run])
        keys, values = self._stores[layer][:, row : row + 1, :, run]
        return _attend(query[None], keys, values, self._bias[row, run])[0]

    def attend_padded(self, layer: int, rows: Tensor, query: Tensor, n_keys: int) -> Tensor:
        """Attend from (B, T, H, D) queries to the first keys of (B,) rows; returns (B, T, H, D)."""
        keys, values = (store[rows, :, :n_keys] for store in self._stores[layer])
        return _attend(query, keys, values, self._bias[rows, None, None, :n_keys])

    def own(self, layer: int, row: int) -> Tensor:
        """Return (2, H, n, D) keys and values of the window's own positions."""
        return self._stores[layer][:, row, :, self.n_tail : self._runs[row].stop]


class KVCache:
    """All rows of all layers.

    Attributes:
        text: keys of the decoder's self-attention.
        encoder: keys of the encoder's self-attention.
        cross: keys of the decoder's cross-attention.
        lengths: of each row, how many text positions are valid; whoever runs the decoder keeps it true.
    """

    def __init__(
        self,
        dimensions: Dimensions,
        n_rows: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        attends_in_bf16: bool = False,
    ) -> None:
        """Allocate; `attends_in_bf16` is for an encoder in float32 on a CPU that multiplies bf16."""
        n_heads, n_positions = dimensions.n_heads, dimensions.n_audio_positions
        head_width = dimensions.n_state // n_heads
        like = torch.empty(0, device=device, dtype=dtype)
        text = (n_heads, dimensions.n_text_positions, head_width)

        def audio(n_layers: int, stride: int, *, in_bf16: bool = False) -> AudioKeys:
            n_tail = n_tail_keys(n_positions, stride)
            shape = (n_heads, n_positions, head_width)
            return AudioKeys(shape, n_layers, n_rows, n_tail, like, in_bf16=in_bf16)

        self.text = TextKeys(text, dimensions.n_decoder_layers, n_rows, like)
        self.encoder = audio(dimensions.n_encoder_layers, ENCODER_STRIDE, in_bf16=attends_in_bf16)
        self.cross = audio(dimensions.n_decoder_layers, CROSS_STRIDE)
        self.lengths = [0] * n_rows

    @staticmethod
    def row_bytes(dimensions: Dimensions, dtype: torch.dtype) -> int:
        """Return what one row takes."""
        n_positions = dimensions.n_audio_positions
        n_encoder_keys = whole_blocks(n_positions + n_tail_keys(n_positions, ENCODER_STRIDE))
        n_cross_keys = whole_blocks(n_positions + n_tail_keys(n_positions, CROSS_STRIDE))
        n_keys = dimensions.n_encoder_layers * n_encoder_keys
        n_keys += dimensions.n_decoder_layers * (n_cross_keys + dimensions.n_text_positions)
        return 2 * n_keys * dimensions.n_state * dtype.itemsize

    def lay_out(self, rows: Sequence[int], n_positions: Sequence[int], tails: Sequence[SilenceTail | None]) -> None:
        """Begin windows of so many positions of their own; the tails, or nothing, stand for the rest of 30 seconds."""
        self.encoder.lay_out(rows, n_positions, [tail.encoder if tail else None for tail in tails])
        self.cross.lay_out(rows, n_positions, [tail.cross if tail else None for tail in tails])


def _zeros(size: tuple[int, ...], like: Tensor) -> Tensor:
    """Return zeros that, on a CPU, take no memory before they are written to: most windows are shorter than 30 s."""
    if like.device.type != "cpu":
        return like.new_zeros(size)
    n_bytes = math.prod(size) * like.dtype.itemsize
    return torch.from_numpy(np.zeros(n_bytes, dtype=np.uint8)).view(like.dtype).view(size)


def whole_blocks(n_keys: int) -> int:
    """Round up to whole blocks, which attention with a bias wants on a GPU."""
    return round_up(n_keys, _KEYS_MULTIPLE)


def round_up(n: int, step: int) -> int:
    """Return the least multiple of `step` that is not less than `n`."""
    return -(-n // step) * step


def _write_at(store: Tensor, rows: Tensor, at: Tensor, keys: Tensor, values: Tensor) -> None:
    key_store, value_store = store
    key_store[rows, :, at] = keys
    value_store[rows, :, at] = values


def _attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attend from (B, T, H, D) to (B, H, n, D); `bias`, (n,) or (B, 1, T or 1, n), is added to the scores."""
    mask = bias.expand(len(query), 1, query.shape[1], -1)
    return F.scaled_dot_product_attention(query.transpose(1, 2), keys, values, attn_mask=mask).transpose(1, 2)


def _attend_in_bf16(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attend from (n, H, D) to (H, m, D); `bias` is (m,). The products take and give bf16; all else is float32."""
    keys, values = keys.bfloat16().transpose(1, 2), values.bfloat16()
    n_queries = len(query)
    missing = round_up(n_queries, _QUERIES_STEP) - n_queries
    scaled = F.pad(query / math.sqrt(query.shape[-1]), (0, 0, 0, 0, 0, missing)).bfloat16().transpose(0, 1)  # (H, n, D)
    attended = []
    for some in torch.split(scaled, _QUERIES_AT_ONCE, dim=1):
        weights = torch.bmm(some, keys).float().add_(bias).softmax(-1)
        attended.append(torch.bmm(weights.bfloat16(), values))
    return torch.cat(attended, dim=1)[:, :n_queries].transpose(0, 1).float()
