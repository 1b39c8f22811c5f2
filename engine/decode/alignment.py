"""When each word was said: dynamic time warping over cross-attention, and silence between words.

Some heads of Whisper's decoder look at the audio of the token that they are about to predict; the checkpoint names
them. The cheapest monotonic path through their weights gives each token its time (openai/whisper, timing.py; Giorgino
2009 for the warping). The path leaves no gaps: silence belongs to one of its neighbours, and a boundary beside it may
lie a little inside a word. So a boundary moves to the silence near it, and silence belongs to no word. Pure numpy;
compute/runner.py supplies the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine.types import POSITION_SAMPLES, Samples

_MEDIAN_WIDTH = 7  # positions; as in openai/whisper
# Comparisons that bring the median of seven into the middle (after Devillard, "Fast median search", 1998; a test sorts
# as well). On whole arrays, two passes each, they take a sixth of the time of a partition.
_MEDIAN_NETWORK = (
    (0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4),
)  # fmt: skip
_SILENT_BELOW_LOUD_DB = 35.0
_SILENT_ABOVE_FLOOR_DB = 6.0
_NEVER_SILENT_BELOW_LOUD_DB = 20.0  # where there is no pause in the window, its quietest sounds are no silence
_LEAST_SILENCE = 5  # positions: the stop inside a word is shorter
_REACH = 10  # positions that a boundary may move to a silence
_REACH_OF_LAST = 25  # what sounds on behind the last word belongs to it


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


def word_spans(bounds: Sequence[int], silences: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Move the boundaries between words to the silences near them.

    Args:
        bounds: (n_words + 1,) non-decreasing positions; word i lasts from entry i to entry i + 1.
        silences: first position and one past the last of each, in order (`find_silences`).

    Returns:
        First position of each word and one past its last; no word begins before the one before it has ended.
    """
    ends, starts = list[int](), list[int]()  # of what lies before and behind each boundary
    for i, bound in enumerate(bounds):
        reach = _REACH if i < len(bounds) - 1 else _REACH_OF_LAST
        near = [silence for silence in silences if _distance(bound, silence) <= reach]
        first, last = min(near, key=partial(_distance, bound), default=(bound, bound))
        ends.append(first)
        starts.append(last)
    spans = list[tuple[int, int]]()
    floor = 0
    for i in range(len(bounds) - 1):
        start, end = starts[i], ends[i + 1]
        if start >= end:  # both boundaries lie at the same silence
            start, end = bounds[i], bounds[i + 1]
        start = max(start, floor)
        floor = max(start, end)
        spans.append((start, floor))
    return spans


def _distance(position: int, span: tuple[int, int]) -> int:
    return max(span[0] - position, position - span[1], 0)


def find_silences(audio: Samples) -> list[tuple[int, int]]:
    """Return where a window is silent for 100 ms or longer: first position and one past the last.

    Silent is what lies 35 dB below the loud parts, or little above the quietest ones.

    Args:
        audio: (n,) the window.
    """
    n_positions = len(audio) // POSITION_SAMPLES
    frames = audio[: n_positions * POSITION_SAMPLES].reshape(n_positions, POSITION_SAMPLES)
    levels = 10 * np.log10(np.square(frames).mean(axis=1) + 1e-10)  # dB
    if not n_positions:
        return []
    floor, loud = np.percentile(levels, [5, 95])
    quiet = max(loud - _SILENT_BELOW_LOUD_DB, min(floor + _SILENT_ABOVE_FLOOR_DB, loud - _NEVER_SILENT_BELOW_LOUD_DB))
    edges = np.flatnonzero(np.diff(np.pad(levels < quiet, 1).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2) if b - a >= _LEAST_SILENCE]


def median_filter(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Median over a window of 7 along the last axis; edges reflected."""
    half = _MEDIAN_WIDTH // 2
    if values.shape[-1] <= half:
        return values
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(half, half)], mode="reflect")
    shifted = [padded[..., i : i + values.shape[-1]] for i in range(_MEDIAN_WIDTH)]
    for i, j in _MEDIAN_NETWORK:
        shifted[i], shifted[j] = np.minimum(shifted[i], shifted[j]), np.maximum(shifted[i], shifted[j])
    return shifted[half]


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
