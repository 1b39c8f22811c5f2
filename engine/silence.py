"""The silence tail: what Whisper makes of the rest of its 30 seconds, computed once instead of per window.

Whisper was trained on 30-second windows; a cut window loops and invents words. The pad need not be computed each time:
run the encoder on pure silence, keep per layer the keys and values of self-attention and, behind the encoder, those of
cross-attention. A window of T positions is then encoded as T rows that also see the kept keys from position T on, and
the decoder sees the T outputs followed by the kept ones. The tail is shared by all rows and sessions.

Neighbouring silent positions are nearly alike, so the mean of `STRIDE` of them stands for all; adding log(STRIDE) to
its score makes the softmax weigh it as the many it stands for. (One of the eight in place of their mean costs most
of a point of word error rate with tiny.en.)

The log-mel value of silence hangs on the loudest frame of the window, (max - 8 + 4) / 4, so there is one tail per
value, rounded. Shapes as in engine/model.py; G tail keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

STRIDE = 8  # positions that one tail key stands for


@dataclass(frozen=True, slots=True, eq=False)
class SilenceTail:
    """Keys and values of silence for one log-mel value.

    Attributes:
        encoder: per encoder layer (2, H, G, D): [0] keys, [1] values of self-attention.
        cross: per decoder layer (2, H, G, D): those of cross-attention.
        log_weights: (G,) log of the number of positions that each key stands for.
    """

    encoder: list[Tensor]
    cross: list[Tensor]
    log_weights: Tensor

    def log_weights_from(self, n_positions: int) -> Tensor:
        """Return the weights of the keys from a position on, which must be a multiple of STRIDE."""
        assert n_positions % STRIDE == 0, f"{n_positions} positions do not end where a tail key begins"
        return self.log_weights[n_positions // STRIDE :]


def thin_out(keys_values: Tensor) -> Tensor:
    """(2, H, S, D) -> (2, H, G, D): the mean of each stretch of STRIDE positions; the last may be shorter."""
    return torch.stack([stretch.mean(dim=2) for stretch in torch.split(keys_values, STRIDE, dim=2)], dim=2)


def log_weights(n_positions: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return (G,) log weights for `thin_out`; the last stretch may be shorter."""
    counts = [min(STRIDE, n_positions - start) for start in range(0, n_positions, STRIDE)]
    return torch.tensor([math.log(n) for n in counts], device=device, dtype=dtype)
