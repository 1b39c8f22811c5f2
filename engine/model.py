"""Whisper as nn.Modules with an explicit cache (Radford et al. 2022, arXiv:2212.04356).

Knows tensors only: no sessions, no text, no scheduling. Called by engine/runner.py on the engine thread. Weights come
from engine/checkpoint.py by the names of Hugging Face's WhisperForConditionalGeneration; query, key and value
projections of self-attention are fused into one matrix.

Shapes: N windows, B rows, T text positions, S encoder positions, F mel frames, M mel bins, H heads, D head width,
C model width, V vocabulary, P = sum of encoder positions over the windows of a call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.cache import KVCache, Rows
from engine.checkpoint import Checkpoint, Dimensions
from engine.quantisation import QuantisedLinear, quantise_linears


@dataclass(frozen=True, slots=True, eq=False)
class EncoderInput:
    """The part of one window that is to be encoded.

    Attributes:
        row: where keys and values go in the cache; the row is laid out for the whole window.
        span: positions of the window to encode; those before it are in the cache already.
        mel: (M, F) frames from `first_frame(span)` up to `2 * span.stop` inclusive: two frames of context on the left
            (none at the start of the window) and one on the right, so that the convolutions see what they would see
            in the whole window.
    """

    row: int
    span: slice
    mel: Tensor

    @staticmethod
    def first_frame(span: slice) -> int:
        """Return the first mel frame that the positions of `span` depend on."""
        return max(0, 2 * int(span.start) - 2)


class Encoder(nn.Module):
    """Log-mel spectrogram -> audio features, all windows of a tick in one call.

    Windows of unlike length are packed, not padded: convolutions and attention see each window by itself, everything
    else sees one (P, C) matrix.
    """

    def __init__(self, dimensions: Dimensions) -> None:
        super().__init__()
        width = dimensions.n_state
        self.conv1 = nn.Conv1d(dimensions.n_mels, width, kernel_size=3)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2)
        self.positions = nn.Parameter(torch.empty(dimensions.n_audio_positions, width))
        self.layers = nn.ModuleList(
            EncoderLayer(width, dimensions.n_heads, dimensions.ffn) for _ in range(dimensions.n_encoder_layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, inputs: Sequence[EncoderInput], cache: KVCache) -> Tensor:
        """Encode windows; their self-attention keys and values are written to the cache.

        Returns:
            (P, C): the outputs one after another, ready for cross-attention.
        """
        x = torch.cat([self._embed(window) for window in inputs])  # (P, C)
        for index, layer in enumerate(self.layers):
            x = layer(x, index, inputs, cache)
        return self.norm(x)  # type: ignore[no-any-return]

    def _embed(self, window: EncoderInput) -> Tensor:
        """Return (n, C) inputs of the first layer for one window."""
        mel = window.mel.to(self.positions).unsqueeze(0)  # device and dtype of the weights
        # Whisper pads both convolutions with zeros at the ends of the 30 seconds; elsewhere the context is real.
        at_start = window.span.start == 0
        x = F.gelu(self.conv1(F.pad(mel, (1, 0)) if at_start else mel))
        x = F.gelu(self.conv2(F.pad(x, (1, 0)) if at_start else x))  # (1, C, n)
        return x[0].T + self.positions[window.span]


class EncoderLayer(nn.Module):
    """Self-attention within each window, then the feed-forward network; both pre-norm."""

    def __init__(self, width: int, n_heads: int, n_ffn: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.ffn = FeedForward(width, n_ffn)
        self.n_heads = n_heads

    def forward(self, x: Tensor, index: int, inputs: Sequence[EncoderInput], cache: KVCache) -> Tensor:
        """Take and return (P, C)."""
        qkv = self.qkv(self.attention_norm(x)).view(len(x), 3, self.n_heads, -1)
        attended = []
        lengths = [w.span.stop - w.span.start for w in inputs]
        for window, part in zip(inputs, torch.split(qkv, lengths), strict=True):
            query, key, value = part.unbind(1)  # each (n, H, D)
            cache.encoder.write(index, window.row, window.span, key, value)
            heads = cache.encoder.attend(index, window.row, query.transpose(0, 1).unsqueeze(0))  # (1, H, n, D)
            attended.append(heads[0].transpose(0, 1).flatten(1))  # (n, C)
        x = x + self.attention_out(torch.cat(attended))
        return x + self.ffn(x)  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Norm, two linear layers with GELU between."""

    def __init__(self, width: int, n_ffn: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, n_ffn)
        self.down = nn.Linear(n_ffn, width)

    def forward(self, x: Tensor) -> Tensor:
        """Take and return (..., C), without the residual."""
        return self.down(F.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


@dataclass(slots=True)
class AttentionTap:
    """Collects cross-attention scores of chosen heads during one decoder pass.

    Attributes:
        heads: (layer, head) pairs.
        scores: after the pass, per row one (T, n) tensor of scores before the softmax per pair, in the order of layers;
            n own positions of the row's window, without the silence tail.
    """

    heads: tuple[tuple[int, int], ...]
    scores: list[list[Tensor]] = field(default_factory=list)

    def record(self, layer: int, query: Tensor, cache: KVCache, rows: Rows) -> None:
        """Called by each decoder layer with (B, H, T, D) queries."""
        if not self.scores:
            self.scores = [[] for _ in rows.indices]
        scale = 1 / math.sqrt(query.shape[-1])
        for head in [head for wanted, head in self.heads if wanted == layer]:
            for scores, q, row in zip(self.scores, query[:, head], rows.indices, strict=True):
                scores.append(q @ cache.cross.own(layer, row)[0, head].T * scale)


class Decoder(nn.Module):
    """Tokens -> hidden states over a cache of rows; `logits` turns chosen states into scores."""

    def __init__(self, dimensions: Dimensions) -> None:
        super().__init__()
        width = dimensions.n_state
        # Given its weights, it draws no random ones: on the meta device that alone would import PyTorch's compiler.
        self.embedding = nn.Embedding(dimensions.n_vocab, width, _weight=torch.empty(dimensions.n_vocab, width))
        self.positions = nn.Parameter(torch.empty(dimensions.n_text_positions, width))
        self._typed_layers = [
            DecoderLayer(width, dimensions.n_heads, dimensions.ffn) for _ in range(dimensions.n_decoder_layers)
        ]
        self.layers = nn.ModuleList(self._typed_layers)
        self.norm = nn.LayerNorm(width)
        self._quantised_head: QuantisedLinear | None = None

    def forward(
        self, tokens: Tensor, offsets: Tensor, cache: KVCache, rows: Rows, *, tap: AttentionTap | None = None
    ) -> Tensor:
        """Run new tokens of some rows against what the cache holds of them, and write their keys and values to it.

        Args:
            tokens: (B, T) int64; shorter rows padded at the right with any token. A padded position writes keys and
                values that no real position sees and that later tokens overwrite.
            offsets: (B,) int64: how many tokens of each row the cache holds already.
            rows: which B rows of the cache.
            tap: where to record cross-attention scores.

        Returns:
            (B, T, C) normalised hidden states.
        """
        n_rows, n_tokens = tokens.shape
        positions = offsets[:, None] + torch.arange(n_tokens, device=tokens.device)  # (B, T)
        positions = positions.clamp_(max=len(self.positions) - 1)
        n_keys = cache.text_extent(rows, n_tokens)
        keys = torch.arange(n_keys, device=tokens.device)
        mask = (keys <= positions[..., None]).unsqueeze(1)  # (B, 1, T, n_keys): causal, and no further than written
        x = self.embedding(tokens) + self.positions[positions]  # (B, T, C)
        for index, layer in enumerate(self.layers):
            x = layer(x, index, positions, mask, cache, rows, tap)
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, C) hidden states -> (n, V) float32 scores; the output matrix is the embedding."""
        if self._quantised_head is not None:
            return self._quantised_head(hidden)  # type: ignore[no-any-return]
        return F.linear(hidden, self.embedding.weight).float()

    def quantise(self) -> None:
        """Switch all products, the output head included, to int8."""
        quantise_linears(self)
        self._quantised_head = QuantisedLinear(self.embedding.weight, None)

    def cross_keys_values(self, encoded: Tensor) -> list[tuple[Tensor, Tensor]]:
        """(P, C) encoder output -> per layer the keys and values, each (P, H, D): one product for all windows."""
        return [layer.cross_keys_values(encoded) for layer in self._typed_layers]


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention to the window, feed-forward; all pre-norm."""

    def __init__(self, width: int, n_heads: int, n_ffn: int) -> None:
        super().__init__()
        self.self_norm = nn.LayerNorm(width)
        self.self_qkv = nn.Linear(width, 3 * width)
        self.self_out = nn.Linear(width, width)
        self.cross_norm = nn.LayerNorm(width)
        self.cross_query = nn.Linear(width, width)
        self.cross_kv = nn.Linear(width, 2 * width)
        self.cross_out = nn.Linear(width, width)
        self.ffn = FeedForward(width, n_ffn)
        self.n_heads = n_heads

    def forward(
        self,
        x: Tensor,
        index: int,
        positions: Tensor,
        mask: Tensor,
        cache: KVCache,
        rows: Rows,
        tap: AttentionTap | None,
    ) -> Tensor:
        """Take and return (B, T, C)."""
        n_rows, n_tokens, width = x.shape
        qkv = self.self_qkv(self.self_norm(x)).view(n_rows, n_tokens, 3, self.n_heads, -1)
        query, new_key, new_value = qkv.unbind(2)  # each (B, T, H, D)
        key, value = cache.extend_text(index, rows, positions, new_key, new_value, mask.shape[-1])
        attended = F.scaled_dot_product_attention(query.transpose(1, 2), key, value, attn_mask=mask)
        x = x + self.self_out(attended.transpose(1, 2).reshape(n_rows, n_tokens, width))

        query = self.cross_query(self.cross_norm(x)).view(n_rows, n_tokens, self.n_heads, -1).transpose(1, 2)
        if tap is not None:
            tap.record(index, query, cache, rows)
        attended = cache.cross.attend_rows(index, rows, query)
        x = x + self.cross_out(attended.transpose(1, 2).reshape(n_rows, n_tokens, width))
        return x + self.ffn(x)  # type: ignore[no-any-return]

    def cross_keys_values(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """(P, C) encoder output -> keys and values, each (P, H, D)."""
        key, value = self.cross_kv(encoded).view(len(encoded), 2, self.n_heads, -1).unbind(1)
        return key, value


class Whisper(nn.Module):
    """Encoder and decoder of one checkpoint, ready for inference."""

    def __init__(self, checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.dimensions = checkpoint.dimensions
        with torch.device("meta"):
            self.encoder = Encoder(self.dimensions)
            self.decoder = Decoder(self.dimensions)
        weights = {name: w.to(device=device, dtype=dtype) for name, w in fuse(checkpoint.weights, self.dimensions)}
        self.load_state_dict(weights, assign=True)
        self.requires_grad_(requires_grad=False)
        self.eval()

    def quantise(self) -> None:
        """Switch the products of encoder and decoder to int8; everything else stays as it is."""
        quantise_linears(self.encoder)
        self.decoder.quantise()


_PLAIN_NAMES: dict[str, dict[str, str]] = {
    "encoder": {
        "self_attn_layer_norm": "attention_norm",
        "self_attn.out_proj": "attention_out",
        "final_layer_norm": "ffn.norm",
        "fc1": "ffn.up",
        "fc2": "ffn.down",
    },
    "decoder": {
        "self_attn_layer_norm": "self_norm",
        "self_attn.out_proj": "self_out",
        "encoder_attn_layer_norm": "cross_norm",
        "encoder_attn.q_proj": "cross_query",
        "encoder_attn.out_proj": "cross_out",
        "final_layer_norm": "ffn.norm",
        "fc1": "ffn.up",
        "fc2": "ffn.down",
    },
}
_FUSED_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "encoder": {"qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    "decoder": {
        "self_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "cross_kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    },
}


def fuse(weights: dict[str, Tensor], dimensions: Dimensions) -> list[tuple[str, Tensor]]:
    """Rename a checkpoint's weights to this file's names and fuse the projections that share an input.

    Whisper's key projections have no bias; a zero takes its place in the fused one.
    """
    named = [
        ("encoder.positions", weights["encoder.embed_positions.weight"]),
        ("decoder.embedding.weight", weights["decoder.embed_tokens.weight"]),
        ("decoder.positions", weights["decoder.embed_positions.weight"]),
    ]
    for kind in ("weight", "bias"):
        named += [(f"encoder.{conv}.{kind}", weights[f"encoder.{conv}.{kind}"]) for conv in ("conv1", "conv2")]
        for side, n_layers in (("encoder", dimensions.n_encoder_layers), ("decoder", dimensions.n_decoder_layers)):
            named.append((f"{side}.norm.{kind}", weights[f"{side}.layer_norm.{kind}"]))
            for prefix in (f"{side}.layers.{i}" for i in range(n_layers)):
                named += [
                    (f"{prefix}.{ours}.{kind}", weights[f"{prefix}.{theirs}.{kind}"])
                    for theirs, ours in _PLAIN_NAMES[side].items()
                ]
                for ours, parts in _FUSED_NAMES[side].items():
                    named.append((f"{prefix}.{ours}.{kind}", _fused(weights, prefix, parts, kind)))
    return named


def _fused(weights: dict[str, Tensor], prefix: str, parts: tuple[str, ...], kind: str) -> Tensor:
    pieces = []
    for part in parts:
        weight = weights[f"{prefix}.{part}.weight"]
        missing_bias = torch.zeros(weight.shape[0], dtype=weight.dtype)
        pieces.append(weight if kind == "weight" else weights.get(f"{prefix}.{part}.bias", missing_bias))
    return torch.cat(pieces)
