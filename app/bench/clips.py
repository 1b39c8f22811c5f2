"""Recorded speech with references: what a manifest lists."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.audio.media import open_media
from engine.types import MAX_WINDOW_SAMPLES, SAMPLE_RATE, Samples


class ClipError(Exception):
    """The recordings of a benchmark cannot be read or judged; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a manifest.

    Attributes:
        name: the file as the manifest has it.
        language: None where nobody speaks.
        kind: such as utterance, longform, noisy, nonspeech.
        reference: what is said; empty where nobody speaks.
        words: a table of the words with their times, where there is one.
        silence_ms: silence that is put before the recording.
    """

    name: str
    path: Path
    language: str | None
    kind: str
    reference: str
    words: Path | None = None
    silence_ms: int = 0

    def load(self) -> Samples:
        """Decode the recording, the silence before it included: (n,) float32 mono 16 kHz.

        Raises:
            MediaError: it cannot be read.
        """
        silence = np.zeros(self.silence_ms * SAMPLE_RATE // 1000, dtype=np.float32)
        return np.concatenate([silence, load_audio(self.path)])


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """One recording: (n,) float32 mono 16 kHz, and what is said in it."""

    name: str
    audio: Samples
    reference: str


def read_manifest(manifest: Path) -> list[Entry]:
    """Read a manifest: tab-separated with a heading; file, language, kind and reference are needed, words may be.

    Raises:
        ClipError: no manifest, or one without these columns.
    """
    if not manifest.is_file():
        raise ClipError(f"There is no manifest at {manifest}. Run in a checkout, or name one with --manifest.")
    with manifest.open(encoding="utf-8", newline="") as lines:
        table = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        missing = {"file", "language", "kind", "reference"} - set(table.fieldnames or ())
        if missing:
            raise ClipError(f"{manifest} has no column {', '.join(sorted(missing))}; they are separated by tabs.")
        return [_to_entry(row, manifest.parent) for row in table]


def _to_entry(row: dict[str, str | None], folder: Path) -> Entry:
    name, words = row["file"] or "", row.get("words")
    return Entry(
        name=name,
        path=folder / name,
        language=row["language"] or None,
        kind=row["kind"] or "",
        reference=row["reference"] or "",
        words=folder / words if words else None,
    )


def load_audio(path: Path) -> Samples:
    """Decode a recording: (n,) float32 mono 16 kHz.

    Raises:
        MediaError: it cannot be read.
    """
    with open_media(path) as media:
        return np.concatenate(list(media.chunks()))


def load_clips(manifest: Path, *, language: str = "en", kind: str = "utterance") -> list[Clip]:
    """Read the clips of a manifest that fit into one window.

    Raises:
        ClipError: no manifest, or no such clips in it.
    """
    clips = []
    for entry in read_manifest(manifest):
        if entry.language == language and entry.kind == kind:
            audio = load_audio(entry.path)
            if len(audio) <= MAX_WINDOW_SAMPLES:
                clips.append(Clip(entry.name, audio, entry.reference))
    if not clips:
        raise ClipError(f"{manifest} has no clip of kind {kind} in language {language} of at most 30 s.")
    return clips
