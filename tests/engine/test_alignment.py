"""Dynamic time warping over attention."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from engine.alignment import median_filter, token_positions, warp

costs = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 6)),
    elements=st.integers(-8, 8).map(float),
)


def paths(n_rows: int, n_columns: int) -> list[list[tuple[int, int]]]:
    """All monotonic paths from corner to corner."""
    if (n_rows, n_columns) == (1, 1):
        return [[(0, 0)]]
    before = []
    if n_rows > 1 and n_columns > 1:
        before += paths(n_rows - 1, n_columns - 1)
    if n_rows > 1:
        before += paths(n_rows - 1, n_columns)
    if n_columns > 1:
        before += paths(n_rows, n_columns - 1)
    return [[*path, (n_rows - 1, n_columns - 1)] for path in before]


def cheapest(cost: NDArray[np.float32], first_column: list[int]) -> float:
    """Least cost of the paths that enter each row at the given column."""
    return min(
        sum(float(cost[cell]) for cell in path)
        for path in paths(*cost.shape)
        if [next(c for r, c in path if r == row) for row in range(cost.shape[0])] == first_column
    )


@given(cost=costs)
def test_the_path_is_the_cheapest_of_all(cost: NDArray[np.float32]) -> None:
    found = warp(cost).tolist()
    best = min(sum(float(cost[cell]) for cell in path) for path in paths(*cost.shape))
    assert cheapest(cost, found) == best


@given(
    weights=arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(2, 12), st.integers(1, 40)),
        elements=st.floats(0, 1, width=32),
    )
)
def test_positions_never_go_back_and_stay_inside(weights: NDArray[np.float32]) -> None:
    positions = token_positions(weights)
    assert len(positions) == weights.shape[1]
    assert positions[0] == 0 and positions[-1] < weights.shape[2]
    assert (np.diff(positions) >= 0).all()


def test_tokens_are_found_where_their_attention_lies() -> None:
    spans = list(itertools.pairwise([0, 20, 45, 60, 100]))
    weights = np.full((2, len(spans), 100), 1e-3, dtype=np.float32)
    for row, (start, end) in enumerate(spans):
        weights[:, row, start:end] = 1 / (end - start)
    assert token_positions(weights).tolist() == [start for start, _ in spans]


@given(
    values=arrays.arrays(
        np.float32, st.tuples(st.integers(1, 3), st.integers(4, 30)), elements=st.floats(-9, 9, width=32)
    )
)
def test_the_median_is_taken_of_seven_neighbours(values: NDArray[np.float32]) -> None:
    filtered = median_filter(values)
    assert filtered.shape == values.shape
    for row, column in itertools.product(range(values.shape[0]), range(3, values.shape[1] - 3)):
        assert filtered[row, column] == np.median(values[row, column - 3 : column + 4])


def test_a_row_shorter_than_the_window_is_left_as_it_is() -> None:
    values = np.array([[3.0, 1.0, 2.0]], dtype=np.float32)
    np.testing.assert_array_equal(median_filter(values), values)
