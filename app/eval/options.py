"""What `tickscribe eval` is asked for; imports nothing heavy, so that the command line can name its choices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.config import EngineConfig
from engine.types import FILE_PAUSE_MS, Stability

START_STEP_MS = 20  # a position of the encoder, so that no window is cut in the same places


class Arm(StrEnum):
    """Ways to transcribe."""

    STREAMED = "streamed"  # live, through a server
    STEPPED = "stepped"  # live as well, but without a clock: the same every time, delays are those of the rules alone
    OFFLINE = "offline"  # as a file: the same settings, cut at longer pauses
    FULL_PAD = "full-pad"  # as a file, fp32, greedy, every window padded to 30 s as in training


class Peer(StrEnum):
    """Other programs to set beside."""

    FASTER_WHISPER = "faster-whisper"


@dataclass(frozen=True, slots=True)
class Options:
    """What to evaluate.

    Attributes:
        engine: settings of all arms but where these say otherwise.
        arms: what to run.
        peer: somebody else's program to run, too; installed in `peers_dir`.
        kinds, languages: take only these clips; empty takes all.
        pace: seconds of audio per second of streaming.
        n_streams: speakers at once.
        stabilities: what partials show where a recording is live, one after the other.
        n_starts: how often each recording is heard, each time later by `START_STEP_MS`.
        file_pause_ms: silence that ends an utterance where a recording is a file; live it is that of `engine`.
    """

    engine: EngineConfig
    manifest: Path
    arms: tuple[Arm, ...] = tuple(Arm)
    peer: Peer | None = None
    peers_dir: Path = Path(".peers")
    kinds: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    pace: float = 1.0
    n_streams: int = 4
    n_starts: int = 1
    stabilities: tuple[Stability, ...] = (Stability.BALANCED,)
    file_pause_ms: int = FILE_PAUSE_MS
