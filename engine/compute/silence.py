"""The silence tail: what Whisper makes of the rest of its 30 seconds, computed once instead of per window.

Whisper was trained on 30-second windows; a cut window loops and invents words. The pad need not be computed each time:
run the encoder on pure silence, keep per layer the keys and values of self-attention and, behind the encoder, those of
cross-attention. A window of T positions is then encoded as T rows that also see the kept keys of position T and later,
and the decoder sees the T outputs and the kept ones. The tail is shared by all rows and sessions.

Neighbouring silent positions are nearly alike, so the mean of a stretch of them stands for all; the logarithm of their
number, added to its score, makes the softmax weigh it as the many it stands for. (One of them in place of their mean
costs most of a point of word error rate with tiny.en.) The encoder hardly minds how long the stretches are, the decoder
does: see the strides.

The log-mel value of silence depends on the loudest frame of the window, (max - 8 + 4) / 4, so there is one tail per
value, rounded. Shapes as in models/whisper/modules.py; G tail keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Positions that one tail key stands for, chosen by word error rate over 78 clips with tiny.en, full padding 12.73.
ENCODER_STRIDE = 64  # 8: 12.73; 16, 32, 64: 12.80; one key for all: 12.87
CROSS_STRIDE = 8  # 8: 12.73; 16, 32, 64: 13.15


@dataclass(frozen=True, slots=True, eq=False)
class TailKeys:
    """Keys and values that one kind of attention sees in place of silence.

    Attributes:
        keys_values: per layer (2, H, G, D): [0] keys, [1] values.
        stride: positions that each stands for; the last may stand for fewer.
        n_positions: that all of them stand for.
    """

    keys_values: list[Tensor]
    stride: int
    n_positions: int

    def log_weights(self, n_before: int) -> list[float]:
        """Return, for each of the G keys, the log of how many positions from `n_before` on it stands for, or -inf."""
        weights = []
        for start in range(0, self.n_positions, self.stride):
            n = min(start + self.stride, self.n_positions) - max(start, n_before)
            weights.append(math.log(n) if n > 0 else -math.inf)
        return weights


@dataclass(frozen=True, slots=True, eq=False)
class SilenceTail:
    """The tail for one log-mel value, for the encoder's self-attention and the decoder's cross-attention."""

    encoder: TailKeys
    cross: TailKeys


def n_tail_keys(n_positions: int, stride: int) -> int:
    """Return G."""
    return -(-n_positions // stride)


def thin_out(keys_values: Tensor, stride: int) -> Tensor:
    """(2, H, S, D) -> (2, H, G, D): the mean of each stretch; the last may be shorter."""
    return torch.stack([stretch.mean(dim=2) for stretch in torch.split(keys_values, stride, dim=2)], dim=2)
