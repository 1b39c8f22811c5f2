"""Which language is spoken: what one window sounds like, weighed with what was spoken before.

A second of speech is easily taken for another language. So the language spoken so far holds until another one is many
times as probable; the less audio there is, the more often. Pure; compute/runner.py supplies the probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.types import SAMPLE_RATE

LANGUAGE_KNOWN_AFTER = 2 * SAMPLE_RATE  # what was detected in less is a guess; the next window is asked again

_ENOUGH = 3 * SAMPLE_RATE  # of audio to tell a language by
_ODDS, _ODDS_OF_LITTLE = 16.0, 40.0


def odds_for(n_samples: int) -> float:
    """Return how many times as probable another language must be, given so much audio, to be believed."""
    return _ODDS if n_samples >= _ENOUGH else _ODDS_OF_LITTLE


def choose_language(probabilities: Sequence[float], likely: int | None, odds: float) -> int:
    """Return the most probable language, or the likely one unless another is more than `odds` times as probable."""
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    if likely is not None and probabilities[best] <= odds * probabilities[likely]:
        return likely
    return best
