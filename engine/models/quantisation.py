"""Linear layers and convolutions in int8 on a CPU: the one file that knows PyTorch's quantisation operators.

Weights are quantised once, per output channel. Activations are quantised on the fly, per row: each row is brought to
-1..1 by its own largest value before the product, and back behind it, so that no row's rounding depends on what its
neighbours in the batch say. The product itself is exact integer arithmetic. (Bringing each row's middle to zero as well
changes as many words and costs two more passes over every product.)

A processor without VNNI adds two 16-bit products before it widens them, which overflows with eight bits on both sides.
There weights get seven: measured with tiny.en, that changes fewer words than seven bits for the activations.

Next to these products attention weighs as much; where the processor multiplies bf16, the encoder's goes through that
(compute/cache.py).
"""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor, nn

_LEVELS = 255  # of activations: 0..255
_ZERO_POINT = 128
_SCALE = 2.0 / (_LEVELS - 1)  # -1 falls on 1, +1 on 255
_LEAST_PEAK = 1e-8  # of a row of zeros
_EIGHT_BITS, _SEVEN_BITS = 127, 63  # levels of weights on either side

_linear = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default


class QuantisedLinear(nn.Module):
    """Stands for an nn.Linear; int8 weights, float32 in and out."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """`weight` is (N, K), `bias` (N,)."""
        super().__init__()
        self._packed = _pack(weight, _most_levels())
        self._bias = None if bias is None else bias.float()

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) float32 -> (..., N) float32."""
        # abs and amax: aminmax takes 20 times as long, a norm 5 times.
        peak = x.abs().amax(-1, keepdim=True).clamp_(min=_LEAST_PEAK)
        product: Tensor = _multiply(x / peak, self._packed)
        return product.mul_(peak) if self._bias is None else torch.addcmul(self._bias, product, peak)


class QuantisedConv1d(nn.Module):
    """Stands for an nn.Conv1d without padding: one product, each row all that the kernel sees at one place."""

    def __init__(self, conv: nn.Conv1d) -> None:
        super().__init__()
        weight = conv.weight.transpose(1, 2)  # (out, kernel, in), as the frames lie in memory
        self._product = QuantisedLinear(weight.flatten(1), conv.bias)
        self._width = conv.kernel_size[0] * conv.in_channels
        self._step = conv.stride[0] * conv.in_channels

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, n) float32 -> (N, out, n')."""
        seen = x.transpose(1, 2).flatten(1).unfold(1, self._width, self._step)  # (N, n', kernel * in)
        return self._product(seen).transpose(1, 2)  # type: ignore[no-any-return]


def _pack(weight: Tensor, n_levels: int) -> torch.ScriptObject:
    """Quantise (N, K) weights to -n_levels..n_levels, per output channel, and lay them out for `_multiply`."""
    weight = weight.float()
    scales = (weight.abs().amax(dim=1) / n_levels).clamp(min=torch.finfo(torch.float32).tiny).double()
    zero_points = torch.zeros(len(weight), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch means to replace these operators; this file is where to follow
        quantised = torch.quantize_per_channel(weight, scales, zero_points, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(quantised, None)  # type: ignore[no-any-return]


def _multiply(x: Tensor, packed: torch.ScriptObject) -> Tensor:
    """(..., K) float32 in -1..1, weights of `_pack` -> (..., N) float32."""
    return _linear(x, _SCALE, _ZERO_POINT, packed)  # type: ignore[no-any-return]


@functools.cache
def _most_levels() -> int:
    """Return how many levels weights may have on either side, so that no product overflows on this processor."""
    # The largest weights, of either sign, by the largest activations: what overflows anywhere does so here.
    extreme = torch.ones(64, 256)
    extreme[::2] = -1
    n_rows = 8
    found = _multiply(torch.ones(n_rows, 256), _pack(extreme, _EIGHT_BITS))
    is_exact = torch.allclose(found, extreme.sum(1).expand(n_rows, -1), rtol=1e-3)
    return _EIGHT_BITS if is_exact else _SEVEN_BITS


def is_available() -> bool:
    """Whether this build of PyTorch has the operators for this processor."""
    return torch.backends.quantized.engine in ("x86", "fbgemm")


def multiplies_bf16() -> bool:
    """Whether this processor has instructions for products in bf16; without them they are slower than in float32."""
    if not hasattr(torch.cpu, "get_capabilities"):  # older PyTorch does not tell
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def quantise_products(module: nn.Module) -> None:
    """Replace every nn.Linear and nn.Conv1d below `module`."""
    for name, child in module.named_children():
        match child:
            case nn.Linear():
                setattr(module, name, QuantisedLinear(child.weight, child.bias))
            case nn.Conv1d():
                setattr(module, name, QuantisedConv1d(child))
            case _:
                quantise_products(child)
