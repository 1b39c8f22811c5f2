"""Fixtures that every test shares: the recordings in `tests/audio` and their transcripts."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from app.audio.media import open_media
from engine.types import Samples

AUDIO = Path(__file__).parent / "audio"

LoadClip = Callable[[str], Samples]

# A property is true or false, however busy the machine is, and a change is judged by the same examples everywhere.
# `pytest --hypothesis-profile=random` looks for new ones.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("random"), derandomize=True)
settings.load_profile("same")


@dataclass(frozen=True, slots=True)
class Clip:
    """One row of `tests/audio/manifest.tsv`."""

    name: str  # such as "utterance/jfk-inaugural.flac"
    seconds: float
    language: str  # empty where nobody speaks
    kind: str  # utterance, noisy, nonspeech, words or format
    reference: str
    speaker: str

    @property
    def path(self) -> Path:
        return AUDIO / self.name


@pytest.fixture(scope="session")
def audio_manifest() -> tuple[Clip, ...]:
    """All recordings, in the order of the manifest."""
    with (AUDIO / "manifest.tsv").open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return tuple(
            Clip(
                name=row["file"],
                seconds=float(row["seconds"]),
                language=row["language"],
                kind=row["kind"],
                reference=row["reference"],
                speaker=row["speaker"],
            )
            for row in rows
        )


@pytest.fixture(scope="session")
def english_clips(audio_manifest: tuple[Clip, ...]) -> tuple[Clip, ...]:
    """Clean English sentences, each by another speaker."""
    clips = [clip for clip in audio_manifest if clip.kind == "utterance" and clip.language == "en"]
    return tuple({clip.speaker: clip for clip in clips}.values())


@pytest.fixture(scope="session")
def load_clip() -> LoadClip:
    """Give the samples of a recording by its name in the manifest: (n,) float32 mono 16 kHz."""

    def load(name: str) -> Samples:
        with open_media(AUDIO / name) as source:
            return np.concatenate(list(source.chunks()))

    return load
