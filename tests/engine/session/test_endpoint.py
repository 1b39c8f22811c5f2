"""Laws of the endpoint rules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.session.endpoint import BLOCK_SAMPLES, Endpointer, EndpointRules, Onset, Pause
from engine.types import SessionSettings

RULES = EndpointRules()
PAUSE_BLOCKS = -(-RULES.pause_samples // BLOCK_SAMPLES)

probabilities = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.34, 0.35, 0.4, 0.5, 0.9, 1.0]), st.integers(1, 30)), max_size=30
).map(lambda runs: [p for p, n in runs for _ in range(n)])
rules = st.builds(
    EndpointRules,
    onset_blocks=st.integers(1, 4),
    pause_samples=st.integers(1600, 80_000),
    pre_roll_samples=st.integers(0, 16_000),
)


def observe(endpointer: Endpointer, heard: Sequence[float]) -> list[Onset | Pause]:
    return [change for p in heard if (change := endpointer.observe(p)) is not None]


@given(rules=rules, heard=probabilities)
def test_utterances_alternate_never_overlap_and_lie_in_what_was_heard(rules: EndpointRules, heard: list[float]) -> None:
    endpointer = Endpointer(rules)
    end_of_last, open_since = 0, None
    for n_blocks, probability in enumerate(heard, start=1):
        change = endpointer.observe(probability)
        assert endpointer.heard == n_blocks * BLOCK_SAMPLES
        match change:
            case Onset(start):
                assert open_since is None
                assert end_of_last <= start < endpointer.heard
                open_since = start
            case Pause(end):
                assert open_since is not None
                assert open_since < end <= endpointer.heard - rules.pause_samples
                end_of_last, open_since = end, None
        assert endpointer.speaking == (open_since is not None)
        assert endpointer.speech_end <= endpointer.heard
    last = endpointer.flush()
    assert (last is not None) == (open_since is not None)
    assert not endpointer.speaking and endpointer.flush() is None


@given(rules=rules, heard=probabilities)
def test_an_utterance_closes_as_soon_as_the_pause_is_long_enough(rules: EndpointRules, heard: list[float]) -> None:
    endpointer = Endpointer(rules)
    for probability in heard:
        change = endpointer.observe(probability)
        silence = endpointer.heard - endpointer.speech_end
        assert not (endpointer.speaking and silence >= rules.pause_samples)
        if isinstance(change, Pause):
            assert silence < rules.pause_samples + BLOCK_SAMPLES


@given(heard=st.lists(st.floats(0.0, 0.499)))
def test_nothing_below_the_threshold_opens_an_utterance(heard: list[float]) -> None:
    assert observe(Endpointer(RULES), heard) == []


def test_a_click_opens_nothing() -> None:
    assert observe(Endpointer(RULES), [0.0, 1.0, 0.0, 1.0, 0.0]) == []


def test_the_start_includes_the_pre_roll() -> None:
    (onset,) = observe(Endpointer(RULES), [0.0] * 40 + [1.0] * 2)
    assert onset == Onset(40 * BLOCK_SAMPLES - RULES.pre_roll_samples)


def test_the_pre_roll_stops_at_the_beginning_of_the_stream() -> None:
    assert observe(Endpointer(RULES), [1.0, 1.0]) == [Onset(0)]


def test_the_pre_roll_stops_at_the_end_of_the_utterance_before() -> None:
    rules = EndpointRules(pause_samples=10 * BLOCK_SAMPLES, pre_roll_samples=100 * BLOCK_SAMPLES)
    changes = observe(Endpointer(rules), [1.0] * 3 + [0.0] * 10 + [1.0] * 2)
    assert changes == [Onset(0), Pause(3 * BLOCK_SAMPLES), Onset(3 * BLOCK_SAMPLES)]


def test_between_release_and_threshold_an_open_utterance_stays_open() -> None:
    assert observe(Endpointer(RULES), [1.0] * 2 + [0.4] * 1000) == [Onset(0)]


def test_the_end_is_the_end_of_the_last_speech() -> None:
    changes = observe(Endpointer(RULES), [1.0] * 5 + [0.0] * PAUSE_BLOCKS)
    assert changes == [Onset(0), Pause(5 * BLOCK_SAMPLES)]


def test_flush_closes_at_the_end_of_the_last_speech() -> None:
    endpointer = Endpointer(RULES)
    observe(endpointer, [1.0] * 5 + [0.0] * 2)
    assert endpointer.flush() == Pause(5 * BLOCK_SAMPLES)


def test_the_rules_of_a_session_without_wishes_are_the_default_ones() -> None:
    assert EndpointRules.of(SessionSettings(), pause_ms=700) == RULES


def test_a_pause_of_the_session_comes_before_that_of_the_server() -> None:
    assert EndpointRules.of(SessionSettings(pause_ms=900), pause_ms=500).pause_samples == 900 * 16


@pytest.mark.parametrize(("min_speech_ms", "n_blocks"), [(0, 1), (32, 1), (33, 2), (64, 2), (250, 8), (2000, 63)])
def test_speech_shorter_than_the_least_opens_nothing(min_speech_ms: int, n_blocks: int) -> None:
    rules = EndpointRules.of(SessionSettings(min_speech_ms=min_speech_ms), pause_ms=500)
    assert observe(Endpointer(rules), [0.0] * 40 + [1.0] * (n_blocks - 1) + [0.0] * 40) == []
    (onset,) = observe(Endpointer(rules), [0.0] * 40 + [1.0] * n_blocks)
    assert onset == Onset(40 * BLOCK_SAMPLES - rules.pre_roll_samples), "nothing of the speech waited for is lost"


@pytest.mark.parametrize(("threshold", "release"), [(0.05, 0.01), (0.5, 0.35), (0.95, 0.8)])
def test_a_threshold_has_its_own_release(threshold: float, release: float) -> None:
    rules = EndpointRules.of(SessionSettings(threshold=threshold), pause_ms=500)
    assert (rules.threshold, rules.release) == (threshold, pytest.approx(release))


@pytest.mark.parametrize(("pause_ms", "hangover_blocks"), [(100, 3), (320, 9), (500, 10), (5000, 10)])
def test_the_hangover_ends_before_the_block_that_completes_the_pause(pause_ms: int, hangover_blocks: int) -> None:
    rules = EndpointRules.of(SessionSettings(), pause_ms=pause_ms)
    assert rules.pause_samples == pause_ms * 16
    assert rules.hangover_samples == hangover_blocks * BLOCK_SAMPLES
