"""Batches that are tensors only: rows, positions and tokens of fixed shape, padded, read and written by index.

For a GPU, where launches cost more than padding, and so that a pass can be recorded as a CUDA graph (graphs.py):
nothing here asks the host once a batch is made. What is padding writes to a spare row of the cache that nobody reads.

A window of the encoder is several chunks of the same length. All chunks' keys are written before any chunk attends, so
that each sees its whole window; how many windows there are does not matter to the shape.

Shapes as in models/whisper/modules.py; N chunks of L positions; T tokens of the longest row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.compute.cache import KVCache, whole_blocks
from engine.models.whisper.modules import Stretches

CHUNK = 64  # positions; the last chunk of a window is padded
_FRAMES = 2 * CHUNK + 3


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Where the chunks of some windows lie.

    Attributes:
        stretches: mel (N, M, 2 L + 3), is_inside (N,), positions (N, L).
        rows: (N,) int64 that each attends to.
        kept_in: (N, L) int64 rows that keys and values are written to: the same, or the spare one for padding.
    """

    stretches: Stretches
    rows: Tensor
    kept_in: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, along N."""
        stretches = self.stretches
        return stretches.mel, stretches.is_inside, stretches.positions, self.rows, self.kept_in

    def head(self, n: int) -> Chunks:
        """Return the first `n` chunks, as views."""
        mel, is_inside, positions, rows, kept_in = (tensor[:n] for tensor in self.tensors)
        return Chunks(Stretches(mel, is_inside, positions), rows, kept_in)

    @staticmethod
    def of(frames: Tensor, rows: Sequence[int], spans: Sequence[slice], spare_row: int, n_positions: int) -> Chunks:
        """Cut parts of W windows into chunks.

        Args:
            frames: (W, M, n) mel frames of the windows, two zero frames before each and one frame behind the last.
            rows: of the cache.
            spans: positions to encode.
            spare_row: takes what is padding.
            n_positions: S; the positions of padding are cut off there.
        """
        table = torch.tensor(  # one copy to the device
            [
                (number, row, at, min(CHUNK, span.stop - at))
                for number, (row, span) in enumerate(zip(rows, spans, strict=True))
                for at in range(span.start, span.stop, CHUNK)
            ]
        ).to(frames.device)
        number, row_of, begin, n_real = table.unbind(1)
        at = (2 * begin[:, None] + torch.arange(_FRAMES, device=frames.device)).clamp_(max=frames.shape[-1] - 1)
        offsets = torch.arange(CHUNK, device=frames.device)
        return Chunks(
            Stretches(
                mel=frames.transpose(1, 2)[number[:, None], at].transpose(1, 2),
                is_inside=(begin > 0).float(),
                positions=(begin[:, None] + offsets).clamp_(max=n_positions - 1),
            ),
            rows=row_of,
            kept_in=torch.where(offsets < n_real[:, None], row_of[:, None], spare_row),
        )

    @staticmethod
    def spare(n: int, n_mels: int, spare_row: int, device: torch.device) -> Chunks:
        """Return `n` chunks of padding."""
        return Chunks(
            Stretches(
                mel=torch.zeros(n, n_mels, _FRAMES, device=device),
                is_inside=torch.zeros(n, device=device),
                positions=torch.zeros(n, CHUNK, dtype=torch.int64, device=device),
            ),
            rows=torch.full((n,), spare_row, device=device),
            kept_in=torch.full((n, CHUNK), spare_row, device=device),
        )


class ChunkedWindows:
    """What one run of the encoder computes: a `WindowBatch`."""

    def __init__(self, chunks: Chunks, n_keys: int, cache: KVCache) -> None:
        """`n_keys` of the encoder's keys, the tail's included, hold all that is attended to."""
        self.parts = (chunks.stretches,)
        self._chunks = chunks
        self._n_keys = n_keys
        self._cache = cache
        self._at = chunks.kept_in.flatten(), chunks.stretches.positions.flatten()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `WindowBatch`."""
        keys = self._cache.encoder
        keys.write_at(layer, *self._at, key, value)
        return keys.attend_padded(
            layer, self._chunks.rows, query.view(-1, CHUNK, *query.shape[1:]), self._n_keys
        ).flatten(0, 1)

    def keep_cross(self, layer: int, key: Tensor, value: Tensor) -> None:
        """See `WindowBatch`."""
        self._cache.cross.write_at(layer, *self._at, key, value)


class PaddedTexts:
    """What one pass of the decoder computes: a `TextBatch`."""

    def __init__(
        self,
        tokens: Tensor,
        positions: Tensor,
        rows: Tensor,
        kept_in: Tensor,
        n_text_keys: int,
        n_audio_keys: int,
        cache: KVCache,
        *,
        lengths: Sequence[int] = (),
        host_rows: Sequence[int] = (),
    ) -> None:
        """Append tokens to the texts of some rows.

        Args:
            tokens, positions: (B, T) int64.
            rows: (B,) int64 to attend to.
            kept_in: (B, T) int64 rows that keys and values are written to: the same, or the spare one for padding.
            n_text_keys, n_audio_keys: of the cache's keys hold all that is attended to.
            lengths, host_rows: real tokens of each row, and the rows, for a pass that is tapped; a recorded one has
                none.
        """
        self.tokens = tokens.flatten()
        self.positions = positions.flatten()
        self.spans = [slice(i * positions.shape[1], i * positions.shape[1] + n) for i, n in enumerate(lengths)]
        self._rows = rows
        self._kept_in = kept_in.flatten()
        self._bias = cache.text.bias(positions, n_text_keys)  # (B, T, n_text_keys)
        self._n_audio_keys = n_audio_keys
        self._host_rows = host_rows
        self._cache = cache

    @classmethod
    def of(
        cls,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        cache: KVCache,
        *,
        spare_row: int,
        device: torch.device,
    ) -> PaddedTexts:
        """Append tokens to the texts of some rows, padded to the longest."""
        lengths = [len(row) for row in tokens]
        longest = max(lengths)
        n_before = [cache.lengths[row] for row in rows]
        last = cache.text.n_keys - 1
        laid_out = torch.tensor(
            [
                [
                    [*row, *([0] * (longest - len(row)))],
                    [min(at, last) for at in range(begin, begin + longest)],
                    [index] * len(row) + [spare_row] * (longest - len(row)),
                ]
                for index, begin, row in zip(rows, n_before, tokens, strict=True)
            ]
        ).to(device)
        n_text_keys = max(begin + length for begin, length in zip(n_before, lengths, strict=True))
        row_tokens, positions, kept_in = laid_out.unbind(1)
        return cls(
            row_tokens,
            positions,
            torch.tensor(rows, device=device),
            kept_in,
            min(cache.text.n_keys, whole_blocks(n_text_keys)),
            whole_blocks(cache.cross.extent(rows)),
            cache,
            lengths=lengths,
            host_rows=rows,
        )

    def attend_text(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `TextBatch`."""
        keys = self._cache.text
        keys.write_at(layer, self._kept_in, self.positions, key, value)
        return keys.attend_padded(layer, self._rows, self._by_row(query), self._bias).flatten(0, 1)

    def attend_audio(self, layer: int, query: Tensor) -> Tensor:
        """See `TextBatch`."""
        return self._cache.cross.attend_padded(layer, self._rows, self._by_row(query), self._n_audio_keys).flatten(0, 1)

    def audio_keys(self, layer: int, index: int) -> Tensor:
        """See `TextBatch`."""
        return self._cache.cross.own(layer, self._host_rows[index])[0]

    def _by_row(self, query: Tensor) -> Tensor:
        return query.view(len(self._rows), -1, *query.shape[1:])
