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
    return np.partition(windows, half, axis=-1)[..., half]  # np.median takes twice as long


def warp(cost: NDArray[np.float32]) -> NDArray[np.int64]:
    """Find the cheapest monotonic path from the first to the last corner.

    Each cell adds its own cost to the least of its neighbours above, at the left, and above at the left. The table is
    filled row by row without a loop over columns: a path that enters a row at column k and leaves it at j pays the
    difference of the row's running sums on the way, so what it pays is least where the entry less the running sum
    before it is.

    Args:
        cost: (n_rows, n_columns).

    Returns:
        (n_rows,) the first column of each row on the path.
    """
    n_rows, n_columns = cost.shape
    total = np.full((n_rows + 1, n_columns + 1), np.inf)
    total[0, 0] = 0.0
    running = np.zeros((n_rows, n_columns + 1))
    np.cumsum(cost, axis=1, out=running[:, 1:], dtype=np.float64)
    for row in range(n_rows):
        entry = np.minimum(total[row, :-1], total[row, 1:])  # from above at the left, and from above
        total[row + 1, 1:] = running[row, 1:] + np.minimum.accumulate(entry - running[row, :-1])
    first_column = np.zeros(n_rows, dtype=np.int64)
    row, column = n_rows, n_columns
    while row > 0 and column > 0:
        first_column[row - 1] = column - 1
        diagonal, above, left = total[row - 1, column - 1], total[row - 1, column], total[row, column - 1]
        row, column = row - (min(diagonal, above) <= left), column - (diagonal <= above or left < above)
    return first_column
