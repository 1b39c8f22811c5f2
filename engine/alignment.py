"""When each word was said: dynamic time warping over cross-attention.

Some heads of Whisper's decoder look at the audio of the token that they are about to predict; the checkpoint names
them. The cheapest monotonic path through their weights gives each token its time (openai/whisper, timing.py; Giorgino
2009 for the warping). Pure numpy; engine/runner.py supplies the weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MEDIAN_WIDTH = 7  # positions; as in openai/whisper


def token_positions(weights: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return at which encoder position each row of the attention matrix begins.

    Args:
        weights: (n_heads, n_rows, n_positions) softmax weights of the alignment heads; row i attends to the audio of
            text token i, the last row to what follows the text.

    Returns:
        (n_rows,) non-decreasing positions of 20 ms; token i lasts from entry i to entry i + 1.
    """
    mean = weights.mean(axis=1, keepdims=True)
    deviation = weights.std(axis=1, keepdims=True)
    normalised = (weights - mean) / np.maximum(deviation, 1e-6)
    score = median_filter(normalised).mean(axis=0)  # (n_rows, n_positions)
    return warp(-score)


def median_filter(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Median over a window of 7 along the last axis; edges reflected."""
    half = _MEDIAN_WIDTH // 2
    if values.shape[-1] <= half:
        return values
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(half, half)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN_WIDTH, axis=-1)
    filtered: NDArray[np.float32] = np.median(windows, axis=-1).astype(np.float32)
    return filtered


def warp(cost: NDArray[np.float32]) -> NDArray[np.int64]:
    """Find the cheapest monotonic path from the first to the last corner.

    The table is filled one anti-diagonal at a time: its cells depend only on the two diagonals before.

    Args:
        cost: (n_rows, n_columns).

    Returns:
        (n_rows,) the first column of each row on the path.
    """
    n_rows, n_columns = cost.shape
    total = np.full((n_rows + 1, n_columns + 1), np.inf)
    total[0, 0] = 0.0
    step = np.zeros((n_rows + 1, n_columns + 1), dtype=np.int8)  # 0 diagonal, 1 from above, 2 from the left
    for diagonal in range(2, n_rows + n_columns + 1):
        i = np.arange(max(1, diagonal - n_columns), min(n_rows, diagonal - 1) + 1)
        j = diagonal - i
        before = np.stack((total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]))
        best = before.argmin(axis=0)
        total[i, j] = cost[i - 1, j - 1] + before[best, np.arange(len(i))]
        step[i, j] = best
    first_column = np.zeros(n_rows, dtype=np.int64)
    row, column = n_rows, n_columns
    while row > 0 and column > 0:
        first_column[row - 1] = column - 1
        move = step[row, column]
        row -= move != 2
        column -= move != 1
    return first_column
