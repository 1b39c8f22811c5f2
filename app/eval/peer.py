"""The same recordings through somebody else's program: faster-whisper, offline, with the same weights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from app.bench.clips import Entry
from app.bench.peer_environment import FASTER_WHISPER, ctranslate2_folder
from app.bench.peer_files import faster_whisper_transcriber, write_wav
from app.eval.offline import Transcript
from engine.models.registry import resolve

SETTINGS = f"{FASTER_WHISPER.package}, int8, beam 1, no temperature fallback, VAD on"


def transcribe_all(
    model: str, entries: Sequence[Entry], *, peers_dir: Path, on_done: Callable[[], None]
) -> list[Transcript]:
    """Let faster-whisper transcribe recordings one after the other, language by language.

    Raises:
        PeerUnavailable: it cannot be installed or does not run.
    """
    folder = ctranslate2_folder(resolve(model), peers_dir)
    texts: dict[str, str] = {}
    for language in dict.fromkeys(entry.language for entry in entries):
        transcribe = faster_whisper_transcriber(
            peers_dir, folder, batch_size=0, n_threads=os.cpu_count() or 1, language=language
        )
        spoken = [entry for entry in entries if entry.language == language]
        with tempfile.TemporaryDirectory() as waves:
            paths = [write_wav(e.load(), Path(waves) / f"{number:05}.wav") for number, e in enumerate(spoken)]
            _, heard = transcribe(paths)
        for entry, text in zip(spoken, heard, strict=True):
            texts[entry.name] = text.strip()
            on_done()
    return [Transcript(texts[entry.name]) for entry in entries]
