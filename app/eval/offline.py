"""Recordings as files: decoded through the engine in this process, finals only, as `tickscribe file --pace 0` does."""

from __future__ import annotations

from dataclasses import dataclass

from app.eval.measures import SpokenWord
from engine.core import Engine
from engine.types import SAMPLE_RATE, CloseReason, Final, Samples, SessionClosed, SessionSettings


@dataclass(frozen=True, slots=True)
class Transcript:
    """All finals of one recording.

    Attributes:
        words: with times; empty where whoever wrote it gives none.
        fault: why it is not all of the recording; None if it is.
    """

    text: str
    words: tuple[SpokenWord, ...] = ()
    fault: str | None = None


def transcribe(engine: Engine, name: str, audio: Samples, language: str | None) -> Transcript:
    """Decode one recording of any length.

    Args:
        name: of the session; not open in the engine.
        audio: (n,) float32 mono 16 kHz.
        language: None detects it.
    """
    engine.open(name, SessionSettings(language=language, interim=False))
    engine.push(name, audio)
    engine.finish(name)
    finals: list[Final] = []
    fault: str | None = None
    for events, _ in engine.until_idle():
        for _, event in events:
            if isinstance(event, Final):
                finals.append(event)
            elif isinstance(event, SessionClosed) and event.reason is not CloseReason.FINISHED:
                fault = event.message
    words = tuple(
        SpokenWord(word.text.strip(), word.start / SAMPLE_RATE, word.end / SAMPLE_RATE)
        for final in finals
        for word in final.words
    )
    return Transcript(" ".join(final.text.strip() for final in finals if final.text.strip()), words, fault)
