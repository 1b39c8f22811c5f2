"""Endpoint rules: speech probabilities in, starts and ends of utterances out.

Stands between the speech detector (compute/vad.py) and the session. Pure: the only clock is the sample index, so any
chunking of the same audio gives the same endpoints. One `Endpointer` belongs to one session.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.types import SAMPLE_RATE, SessionSettings

BLOCK_SAMPLES = 512  # 32 ms: the block length that Silero VAD was trained on

_HYSTERESIS = 0.15  # between threshold and release, and the least release: as in silero-vad's own VADIterator
_LEAST_RELEASE = 0.01


def _ms(milliseconds: int) -> int:
    return milliseconds * SAMPLE_RATE // 1000


@dataclass(frozen=True, slots=True)
class EndpointRules:
    """When speech starts and ends.

    Attributes:
        threshold: probability at which a block counts as speech.
        release: probability below which a block counts as silence; between the two nothing changes (hysteresis).
        onset_blocks: speech blocks in a row that open an utterance; a single click does not.
        pause_samples: silence that closes an utterance.
        pre_roll_samples: audio before the first speech block that belongs to the utterance, so that a soft first
            consonant is not clipped.
        hangover_samples: audio after the last speech block that is shown to the encoder.
    """

    threshold: float = 0.5
    release: float = 0.35
    onset_blocks: int = 2
    pause_samples: int = _ms(700)
    pre_roll_samples: int = _ms(400)
    hangover_samples: int = _ms(320)

    @classmethod
    def of(cls, settings: SessionSettings, *, pause_ms: int) -> EndpointRules:
        """The rules that a session wants.

        Args:
            settings: of the session.
            pause_ms: the pause of sessions that want none of their own.
        """
        pause = _ms(pause_ms if settings.pause_ms is None else settings.pause_ms)
        # The block that completes the pause may hold the first sound of the next word.
        before_last = (-(-pause // BLOCK_SAMPLES) - 1) * BLOCK_SAMPLES
        return cls(
            threshold=settings.threshold,
            release=max(settings.threshold - _HYSTERESIS, _LEAST_RELEASE),
            onset_blocks=max(1, -(-_ms(settings.min_speech_ms) // BLOCK_SAMPLES)),
            pause_samples=pause,
            hangover_samples=min(_ms(320), before_last),
        )


@dataclass(frozen=True, slots=True)
class Onset:
    """An utterance opens; `start` includes the pre-roll."""

    start: int


@dataclass(frozen=True, slots=True)
class Pause:
    """The open utterance is over; `end` is the end of its last speech block."""

    end: int


class Endpointer:
    """Follows one stream of speech probabilities.

    Call `observe` once per block, in order. While `speaking`, `speech_end` is the end of the newest speech block.
    """

    def __init__(self, rules: EndpointRules) -> None:
        self.rules = rules
        self.heard = 0  # samples observed
        self.speaking = False
        self.speech_end = 0
        self._run = 0  # speech blocks in a row while not speaking
        self._floor = 0  # an utterance never starts before the end of the one before

    def observe(self, probability: float) -> Onset | Pause | None:
        """Take the speech probability of the next block."""
        self.heard += BLOCK_SAMPLES
        if self.speaking:
            return self._while_speaking(probability)
        self._run = self._run + 1 if probability >= self.rules.threshold else 0
        if self._run < self.rules.onset_blocks:
            return None
        self.speaking = True
        self.speech_end = self.heard
        start = self.heard - self._run * BLOCK_SAMPLES - self.rules.pre_roll_samples
        return Onset(max(start, self._floor))

    def flush(self) -> Pause | None:
        """The stream is over: close the open utterance, if any."""
        return self._close() if self.speaking else None

    def _while_speaking(self, probability: float) -> Pause | None:
        if probability >= self.rules.release:
            self.speech_end = self.heard
            return None
        if self.heard - self.speech_end < self.rules.pause_samples:
            return None
        return self._close()

    def _close(self) -> Pause:
        self.speaking = False
        self._run = 0
        self._floor = self.speech_end
        return Pause(self.speech_end)
