"""How many positions go through the encoder at once.

More windows than fit are split into several runs, whole windows only. The cap comes from an estimate of the memory that
is free at start-up; if that was too much after all, it is halved and the work goes on. Used by compute/runner.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from engine.models.whisper.checkpoint import Dimensions

_SHARE = 0.25  # of the free memory that one encoder run may take


class EncoderCap:
    """The most positions of one encoder run."""

    def __init__(self, n_positions: int) -> None:
        assert n_positions > 0
        self.n_positions = n_positions

    def fitting(self, sizes: Sequence[int]) -> int:
        """Return how many windows, the first of them, fit into one run; at least one, however large.

        Args:
            sizes: positions of each window, not empty.
        """
        total = 0
        for n_windows, size in enumerate(sizes):
            total += size
            if total > self.n_positions and n_windows:
                return n_windows
        return len(sizes)

    def halve(self, n_positions: int) -> None:
        """A run of so many positions was too much."""
        self.n_positions = max(1, min(self.n_positions, n_positions) // 2)


def estimate_cap(
    dimensions: Dimensions, *, device: torch.device, dtype: torch.dtype, gathered_per_position: int = 0
) -> EncoderCap:
    """Return the cap for the memory that is free now.

    A layer's largest moment holds, per position, the residual, queries, keys and values, the feed-forward width before
    and after its activation, and what is gathered to attend to.

    Args:
        gathered_per_position: numbers that the layout of the batch copies (compute/padded.py); 0 where it copies none.
    """
    per_position = (5 * dimensions.n_state + 2 * dimensions.ffn + gathered_per_position) * dtype.itemsize
    return EncoderCap(max(dimensions.n_audio_positions, int(_SHARE * free_bytes(device)) // per_position))


def is_out_of_memory(fault: RuntimeError) -> bool:
    """Whether PyTorch could not allocate; on a CPU it says so in a plain RuntimeError."""
    return isinstance(fault, torch.OutOfMemoryError) or "can't allocate memory" in str(fault)


def physical_bytes() -> int:
    """Return all memory of the host."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_bytes(device: torch.device) -> int:
    """Return the memory that is free on a device now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
