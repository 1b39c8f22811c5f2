"""Dynamic time warping over attention."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from engine.decode.alignment import find_silences, median_filter, token_positions, warp, word_spans
from engine.types import POSITION_SAMPLES

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


def test_a_boundary_moves_to_the_silence_beside_it_which_belongs_to_no_word() -> None:
    silences = [(0, 20), (50, 60), (90, 120)]
    assert word_spans([0, 54, 95], silences) == [(20, 50), (60, 90)], "inside of silences"
    assert word_spans([12, 47, 63, 100], silences) == [(20, 50), (47 + 3, 63), (63, 90)], "a little beside"


def test_without_silence_words_keep_their_boundaries() -> None:
    assert word_spans([3, 10, 10, 25], []) == [(3, 10), (10, 10), (10, 25)]
    assert word_spans([30, 45, 50], [(0, 19), (80, 90)]) == [(30, 45), (45, 50)], "too far away"


def test_the_last_word_lasts_as_long_as_it_sounds() -> None:
    assert word_spans([30, 45, 60], [(80, 90)]) == [(30, 45), (45, 80)]


@given(
    bounds=st.lists(st.integers(0, 150), min_size=2, max_size=9).map(sorted),
    edges=st.lists(st.integers(0, 150), unique=True, max_size=10).map(sorted),
)
def test_no_word_begins_before_the_one_before_it_has_ended(bounds: list[int], edges: list[int]) -> None:
    spans = word_spans(bounds, list(zip(edges[::2], edges[1::2], strict=False)))
    assert len(spans) == len(bounds) - 1
    times = [position for span in spans for position in span]
    assert times == sorted(times)
    assert times[0] >= 0 and times[-1] <= 150


def noise(n_positions: int, level: float) -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(0, level, n_positions * POSITION_SAMPLES).astype(np.float32)


def test_silence_is_what_lies_far_below_the_loud_parts_for_long_enough() -> None:
    for background in (0.0, 0.003):
        audio = [noise(20, background), noise(30, 0.1), noise(4, background), noise(30, 0.1), noise(10, background)]
        assert find_silences(np.concatenate(audio)) == [(0, 20), (84, 94)]


def test_speech_without_a_pause_has_no_silence() -> None:
    assert find_silences(np.concatenate([noise(20, 0.1), noise(20, 0.03)])) == []
    assert find_silences(np.zeros(10, dtype=np.float32)) == []
