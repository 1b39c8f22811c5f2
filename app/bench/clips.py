"""Recorded speech with references, and how well a transcript agrees with them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.media import open_media
from engine.types import MAX_WINDOW_SAMPLES, Samples


class ClipError(Exception):
    """The recordings of a benchmark cannot be read; the message says what to do."""


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """One recording: (n,) float32 mono 16 kHz, and what is said in it."""

    name: str
    audio: Samples
    reference: str


def load_clips(manifest: Path, *, language: str = "en", kind: str = "utterance") -> list[Clip]:
    """Read the clips of a manifest (tab-separated: file, language, kind, reference, ...) that fit into one window.

    Raises:
        ClipError: no manifest, or no such clips in it.
    """
    if not manifest.is_file():
        raise ClipError(f"There is no manifest at {manifest}. Run in a checkout, or name one with --manifest.")
    with manifest.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    clips = []
    for row in rows:
        if row["language"] == language and row["kind"] == kind:
            with open_media(manifest.parent / row["file"]) as media:
                audio = np.concatenate(list(media.chunks()))
            if len(audio) <= MAX_WINDOW_SAMPLES:
                clips.append(Clip(row["file"], audio, row["reference"]))
    if not clips:
        raise ClipError(f"{manifest} has no clip of kind {kind} in language {language} of at most 30 s.")
    return clips


def word_error_rate(references: Sequence[str], texts: Sequence[str]) -> float:
    """Pooled word error rate after Whisper's English normaliser (spelling, numbers, punctuation, case).

    Raises:
        ClipError: the packages that count errors are not installed.
    """
    try:
        import jiwer
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError as missing:
        raise ClipError(f"{missing.name} is not installed. Run: pip install 'tickscribe[bench]'") from missing
    normalise = EnglishTextNormalizer()
    return float(jiwer.wer([normalise(text) for text in references], [normalise(text) for text in texts]))
