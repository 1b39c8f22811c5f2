"""Speakers for a benchmark: recordings strung together with pauses, another string for each speaker.

Pure: the same clips and the same seed give the same speakers. The deck of recordings is shuffled and dealt to all
speakers in turn, so that none is heard much more often than another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.bench.reference import KnownClip, TimedWord
from engine.types import SAMPLE_RATE, Samples

SPEECH_SHARE = 0.57  # of a dialogue's side that talks a little more than the other
_LEAST_PAUSE_S = 1.2  # longer than the pauses that end an utterance
_LEAST_TAIL_S = 2.0  # quiet at the end, so that the last utterance ends by its pause like the others
_MOST_OFFSET_S = 3.0
ROOM_NOISE = 3e-4  # standard deviation, about -70 dBFS: no microphone is silent


@dataclass(frozen=True, slots=True)
class Phrase:
    """One recording within a stream, in seconds of the stream.

    Attributes:
        speech_end_s: end of its last speech.
        reference, offline: what was said, and what the padded offline decoding makes of it.
    """

    name: str
    start_s: float
    speech_end_s: float
    reference: str
    offline: str
    words: tuple[TimedWord, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One speaker.

    Attributes:
        offset_s: when it begins to speak, after the first of all.
        audio: (n,) float32 mono 16 kHz.
    """

    offset_s: float
    audio: Samples
    phrases: tuple[Phrase, ...]

    @property
    def reference(self) -> str:
        """All that is said."""
        return " ".join(phrase.reference for phrase in self.phrases)

    @property
    def offline(self) -> str:
        """What the offline decoding makes of it."""
        return " ".join(phrase.offline for phrase in self.phrases)

    @property
    def words(self) -> tuple[TimedWord, ...]:
        """All timed words, in order."""
        return tuple(word for phrase in self.phrases for word in phrase.words)


class _Deck:
    """Deals recordings; those dealt are shuffled in again once no more than half are left and none of them fits."""

    def __init__(self, clips: Sequence[KnownClip], rng: np.random.Generator) -> None:
        self._clips, self._rng = clips, rng
        self._left: list[KnownClip] = []

    def deal(self, longest_s: float) -> KnownClip | None:
        """The next recording that is no longer than this, or None."""
        if (known := self._next(longest_s)) is None and 2 * len(self._left) <= len(self._clips):
            fresh = [self._clips[i] for i in self._rng.permutation(len(self._clips))]
            self._left += [known for known in fresh if known not in self._left]
            known = self._next(longest_s)
        return known

    def _next(self, longest_s: float) -> KnownClip | None:
        for index, known in enumerate(self._left):
            if len(known.clip.audio) <= longest_s * SAMPLE_RATE:
                return self._left.pop(index)
        return None


def compose(clips: Sequence[KnownClip], *, n_streams: int, duration_s: float, seed: int) -> list[Stream]:
    """Make the speakers.

    Args:
        clips: what may be said.
        n_streams: how many speakers.
        duration_s: how long each of them goes on, pauses included.
        seed: of all that is random.
    """
    rng = np.random.default_rng(seed)
    deck = _Deck(clips, rng)
    return [_speaker(deck, rng, duration_s) for _ in range(n_streams)]


def _speaker(deck: _Deck, rng: np.random.Generator, duration_s: float) -> Stream:
    audio = rng.normal(0, ROOM_NOISE, int(duration_s * SAMPLE_RATE)).astype(np.float32)
    phrases: list[Phrase] = []
    at_s = float(rng.uniform(0.3, 1.5))
    while known := deck.deal(duration_s - _LEAST_TAIL_S - at_s):
        start = int(at_s * SAMPLE_RATE)
        clip = known.clip
        audio[start : start + len(clip.audio)] += clip.audio
        phrases.append(_phrase(known, start / SAMPLE_RATE))
        length_s = len(clip.audio) / SAMPLE_RATE
        pause_s = length_s * (1 / SPEECH_SHARE - 1) * rng.uniform(0.5, 1.5)
        at_s += length_s + max(_LEAST_PAUSE_S, float(pause_s))
    return Stream(float(rng.uniform(0, _MOST_OFFSET_S)), audio, tuple(phrases))


def _phrase(known: KnownClip, start_s: float) -> Phrase:
    words = tuple(TimedWord(word.word, start_s + word.end_s) for word in known.words)
    return Phrase(known.clip.name, start_s, start_s + known.speech_end_s, known.clip.reference, known.offline, words)


def speech_share(streams: Sequence[Stream], clips: Sequence[KnownClip]) -> float:
    """How much of the audio is recordings rather than pauses."""
    length = {known.clip.name: len(known.clip.audio) for known in clips}
    spoken = sum(length[phrase.name] for stream in streams for phrase in stream.phrases)
    return spoken / max(1, sum(len(stream.audio) for stream in streams))


def most_heard(streams: Sequence[Stream]) -> int:
    """How often the recording that is heard most is heard."""
    return max(Counter(phrase.name for stream in streams for phrase in stream.phrases).values(), default=0)
