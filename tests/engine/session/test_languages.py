"""How the language spoken so far is weighed with what a window sounds like."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.session.languages import choose_language, odds_for
from engine.types import SAMPLE_RATE

shares = st.lists(st.floats(0.001, 1), min_size=2, max_size=5)


@given(probabilities=shares, odds=st.floats(1, 100))
def test_without_a_likely_language_the_most_probable_one_is_chosen(probabilities: list[float], odds: float) -> None:
    assert probabilities[choose_language(probabilities, None, odds)] == max(probabilities)


@given(probabilities=shares, odds=st.floats(1, 100), data=st.data())
def test_the_likely_language_holds_until_another_is_many_times_as_probable(
    probabilities: list[float], odds: float, data: st.DataObject
) -> None:
    likely = data.draw(st.integers(0, len(probabilities) - 1))
    chosen = choose_language(probabilities, likely, odds)
    if max(probabilities) > odds * probabilities[likely]:
        assert probabilities[chosen] == max(probabilities)
    else:
        assert chosen == likely


def test_less_audio_needs_stronger_evidence() -> None:
    assert odds_for(SAMPLE_RATE) > odds_for(5 * SAMPLE_RATE) > 1
