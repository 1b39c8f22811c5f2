"""What a benchmark holds the servers against: the words of each recording, when they end, and the offline transcript.

Every recording is decoded once, whole, padded to 30 s, without a server: the error rate of this is the one to reach,
and its word times say when a word was over for all servers alike, whatever they claim themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.bench.clips import Clip
from engine.compute.runner import ModelRunner
from engine.compute.vad import SpeechDetector
from engine.config import Context, EngineConfig
from engine.decode.rounds import run_to_end
from engine.decode.scheduler import Scheduler
from engine.models.registry import load_model
from engine.models.whisper.tokenizer import Tokenizer
from engine.session.endpoint import BLOCK_SAMPLES, EndpointRules
from engine.session.requests import Request, Window
from engine.types import SAMPLE_RATE, Samples


@dataclass(frozen=True, slots=True)
class TimedWord:
    """One word, lower case and without punctuation, and the second at which it has been said."""

    word: str
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class KnownClip:
    """A recording and what is known of it.

    Attributes:
        offline: text of the padded offline decoding.
        words: of `offline`; times count from the start of the recording.
        speech_end_s: end of the last block that the speech detector takes for speech; of the recording if none is.
    """

    clip: Clip
    offline: str
    words: tuple[TimedWord, ...]
    speech_end_s: float


def plain_words(text: str) -> list[str]:
    """Split text into lower-case words without punctuation; apostrophes stay."""
    letters = "".join(c if c.isalnum() or c == "'" else " " for c in text.lower())
    return [word for part in letters.split() if (word := part.strip("'"))]


def know_clips(clips: Sequence[Clip], config: EngineConfig) -> list[KnownClip]:
    """Decode all recordings offline.

    Args:
        config: names model and device; every window is padded, whatever it says of the context.
    """
    checkpoint = load_model(config.model)
    tokenizer = Tokenizer(checkpoint)
    runner = ModelRunner(checkpoint, tokenizer, replace(config, context=Context.FULL, n_slots=1))
    detector = SpeechDetector()
    known = []
    for number, clip in enumerate(clips):
        text, words = _decode(runner, tokenizer, _to_request(number, clip))
        span = speech_span_s(detector, clip.audio)
        known.append(KnownClip(clip, text, tuple(words), span[1] if span else len(clip.audio) / SAMPLE_RATE))
    return known


def _decode(runner: ModelRunner, tokenizer: Tokenizer, request: Request) -> tuple[str, Iterable[TimedWord]]:
    scheduler = Scheduler(1)
    scheduler.submit(request)
    (sequence,) = run_to_end(scheduler, runner)
    said = [
        TimedWord(part, (word.end - request.window.start) / SAMPLE_RATE)
        for word in sequence.words
        for part in plain_words(word.text)
    ]
    return tokenizer.decode(sequence.tokens).strip(), said


def _to_request(number: int, clip: Clip) -> Request:
    return Request(
        session_id="reference",
        utterance_id=number,
        window=Window(number, number + len(clip.audio)),  # its own on the clock, so that no row is taken for held
        audio=clip.audio,
        prefix=(),
        draft=(),
        language="en",
        wants_words=True,
        is_final=True,
        ready_at=float(number),
    )


def speech_span_s(detector: SpeechDetector, audio: Samples) -> tuple[float, float] | None:
    """Beginning of the first and end of the last block of speech; None where none is heard."""
    blocks = audio[: len(audio) // BLOCK_SAMPLES * BLOCK_SAMPLES]
    (probabilities,) = detector.probabilities([detector.new_state()], [blocks])
    spoken = np.flatnonzero(probabilities >= EndpointRules().threshold)
    if not len(spoken):
        return None
    return float(spoken[0]) * BLOCK_SAMPLES / SAMPLE_RATE, float(spoken[-1] + 1) * BLOCK_SAMPLES / SAMPLE_RATE
