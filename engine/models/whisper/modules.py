"""Whisper as nn.Modules with an explicit cache (Radford et al. 2022, arXiv:2212.04356).

Knows tensors only: no sessions, no text, no scheduling. Called by compute/runner.py. Weights come
from models/whisper/checkpoint.py by the names of Hugging Face's WhisperForConditionalGeneration; query, key and value
projections of self-attention are fused into one matrix.

Where positions and tokens of a pass lie, and what they attend to, is the business of the batch they come with:
windows and texts of unlike length are one matrix of P rows here.

Shapes: B rows, T text positions, S encoder positions, M mel bins, H heads, D head width, C model width, V vocabulary,
P all encoder positions, or all tokens, of a call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.quantisation import QuantisedLinear, quantise_products
from engine.models.whisper.checkpoint import Checkpoint, Dimensions


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """N stretches of n neighbouring encoder positions each, and what the convolutions see of them.

    Attributes:
        mel: (N, M, 2 * n + 3) frames from two before the first position's own up to one behind the last one's, so that
            the convolutions see what they would see in the whole window; before a window there are zeros.
        is_inside: (N,) float: 0 for a stretch that begins its window, else 1.
        positions: (N, n) int64 within the window.
    """

    mel: Tensor
    is_inside: Tensor
    positions: Tensor


class WindowBatch(Protocol):
    """The positions of one encoder run and where they lie; compute/ragged.py and compute/padded.py have one each."""

    @property
    def parts(self) -> Sequence[Stretches]:
        """All P positions, in order."""
        ...

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keep new keys and values and attend, each position to its own window; takes and returns (P, H, D)."""
        ...

    def keep_cross(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Keep (P, H, D) keys and values of the decoder's cross-attention."""
        ...


class TextBatch(Protocol):
    """The tokens of one decoder pass and where they lie; compute/ragged.py and compute/padded.py have one each."""

    @property
    def tokens(self) -> Tensor:
        """(P,) int64."""
        ...

    @property
    def positions(self) -> Tensor:
        """(P,) int64 of each token within its text."""
        ...

    @property
    def spans(self) -> Sequence[slice]:
        """Where each row's tokens lie among the P."""
        ...

    def attend_text(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keep new keys and values and attend, each token to its text so far; takes and returns (P, H, D)."""
        ...

    def attend_audio(self, layer: int, query: Tensor) -> Tensor:
        """Attend, each token to the window of its row; takes and returns (P, H, D)."""
        ...

    def audio_keys(self, layer: int, index: int) -> Tensor:
        """(H, n, D) keys of the n own positions of a row's window."""
        ...


class Encoder(nn.Module):
    """Log-mel spectrogram -> audio features, all windows of a tick in one call.

    Windows of unlike length are one (P, C) matrix; convolutions and attention see each window by itself.
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

    def forward(self, batch: WindowBatch) -> Tensor:
        """Encode windows; returns (P, C), ready for cross-attention."""
        x = torch.cat([self._embed(part) for part in batch.parts])  # (P, C)
        for index, layer in enumerate(self.layers):
            x = layer(x, index, batch)
        return self.norm(x)  # type: ignore[no-any-return]

    def _embed(self, part: Stretches) -> Tensor:
        """Return (N * n, C) inputs of the first layer."""
        x = F.gelu(self.conv1(part.mel.to(self.positions)))  # device and dtype of the weights; (N, C, 2 * n + 1)
        # Whisper pads the second convolution, too, with zeros at the beginning; elsewhere the context is real.
        x[:, :, 0].mul_(part.is_inside[:, None])
        x = F.gelu(self.conv2(x))  # (N, C, n)
        return (x.transpose(1, 2) + self.positions[part.positions]).flatten(0, 1)


class EncoderLayer(nn.Module):
    """Self-attention within each window, then the feed-forward network; both pre-norm."""

    def __init__(self, width: int, n_heads: int, n_ffn: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.ffn = FeedForward(width, n_ffn)
        self.n_heads = n_heads

    def forward(self, x: Tensor, index: int, batch: WindowBatch) -> Tensor:
        """Take and return (P, C)."""
        query, key, value = self.qkv(self.attention_norm(x)).view(len(x), 3, self.n_heads, -1).unbind(1)
        x = x + self.attention_out(batch.attend(index, query, key, value).flatten(1))
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

    def record(self, layer: int, query: Tensor, batch: TextBatch) -> None:
        """Called by each decoder layer with (P, H, D) queries."""
        if not self.scores:
            self.scores = [[] for _ in batch.spans]
        scale = 1 / math.sqrt(query.shape[-1])
        heads = [head for wanted, head in self.heads if wanted == layer]
        for index, span in enumerate(batch.spans if heads else ()):
            keys = batch.audio_keys(layer, index)
            self.scores[index] += [query[span, head] @ keys[head].T * scale for head in heads]


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

    def forward(self, batch: TextBatch, *, tap: AttentionTap | None = None) -> Tensor:
        """Run new tokens of some rows against what the cache holds of them, and keep their keys and values.

        Args:
            tap: where to record cross-attention scores.

        Returns:
            (P, C) normalised hidden states.
        """
        x = self.embedding(batch.tokens) + self.positions[batch.positions]  # (P, C)
        for index, layer in enumerate(self.layers):
            x = layer(x, index, batch, tap)
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, C) hidden states -> (n, V) float32 scores; the output matrix is the embedding."""
        if self._quantised_head is not None:
            return self._quantised_head(hidden)  # type: ignore[no-any-return]
        return F.linear(hidden, self.embedding.weight).float()

    def quantise(self) -> None:
        """Switch all products, the output head included, to int8."""
        quantise_products(self)
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

    def forward(self, x: Tensor, index: int, batch: TextBatch, tap: AttentionTap | None) -> Tensor:
        """Take and return (P, C)."""
        query, key, value = self.self_qkv(self.self_norm(x)).view(len(x), 3, self.n_heads, -1).unbind(1)
        x = x + self.self_out(batch.attend_text(index, query, key, value).flatten(1))
        query = self.cross_query(self.cross_norm(x)).view(len(x), self.n_heads, -1)
        if tap is not None:
            tap.record(index, query, batch)
        x = x + self.cross_out(batch.attend_audio(index, query).flatten(1))
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

    def encode(self, batch: WindowBatch) -> None:
        """Encode windows and keep what the decoder attends to of them."""
        encoded = self.encoder(batch)
        for layer, (key, value) in enumerate(self.decoder.cross_keys_values(encoded)):
            batch.keep_cross(layer, key, value)

    def quantise(self) -> None:
        """Switch the products of encoder and decoder to int8; everything else stays as it is."""
        quantise_products(self.encoder)
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
