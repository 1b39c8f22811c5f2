"""`tickscribe bench memory`: whether a server that people come to and leave all day keeps its memory.

Speakers connect to a server of its own, say a few seconds, and leave: most of them in order, every third by vanishing
in the middle. Resident memory is read after the first cycles, when everything has been used once, and at the end.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from app.bench.clips import load_clips
from app.bench.machine import describe_machine
from app.bench.process import ServerFailed, free_port, resident_memory_mb, running
from app.bench.report import Report
from engine.types import SAMPLE_RATE
from tickscribe.client import open_session, pcm16
from tickscribe.command import console_script
from tickscribe.messages import FinalMessage, Start

_AT_ONCE = 8
_SAID_S = 3
_PACKET_BYTES = SAMPLE_RATE // 10 * 2


@dataclass(frozen=True, slots=True)
class Point:
    """Memory after so many cycles; `texts` of the cycles so far ended with words."""

    n_cycles: int
    resident_mb: float
    texts: int


def run(
    model: str, *, manifest: Path, n_cycles: Sequence[int], flags: Sequence[str] = (), output: Path | None = None
) -> list[Point]:
    """Measure, print the table and, if asked, write it as JSON.

    Args:
        n_cycles: when to read the memory, growing.

    Raises:
        ServerFailed: it did not come up, or its memory cannot be read.
    """
    speech = [pcm16(clip.audio[: _SAID_S * SAMPLE_RATE]) for clip in load_clips(manifest)]
    port = free_port()
    serve = [console_script(), "serve", "--host", "127.0.0.1", "--port", str(port), "--model", model]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        ready_url = f"http://127.0.0.1:{port}/readyz"
        with running([*serve, "--log-level", "warning", *flags], log=log, ready_url=ready_url) as process:
            points = asyncio.run(measure(f"ws://127.0.0.1:{port}/v1/stream", process.pid, speech, n_cycles))
    first = points[0]
    Report(
        title="Memory of a server that speakers come to and leave",
        command="tickscribe bench memory",
        machine=describe_machine(),
        setting=f"{model}, {_SAID_S} s of speech each, {_AT_ONCE} at once, every third vanishes",
        headings=("cycles", "resident MB", "against the first %", "with text"),
        cells=tuple(
            (
                str(p.n_cycles),
                f"{p.resident_mb:.0f}",
                f"{100 * (p.resident_mb / first.resident_mb - 1):+.1f}",
                str(p.texts),
            )
            for p in points
        ),
        rows=tuple(asdict(point) for point in points),
    ).publish(output)
    return points


async def measure(url: str, pid: int, speech: Sequence[bytes], n_cycles: Sequence[int]) -> list[Point]:
    """Let speakers say the PCM16 of `speech` in turns, and read the memory of `pid` after each number of cycles."""
    points: list[Point] = []
    done = texts = 0
    for most in sorted(n_cycles):
        for begin in range(done, most, _AT_ONCE):
            numbers = range(begin, min(begin + _AT_ONCE, most))
            said = await asyncio.gather(*(_speak(url, n, speech[n % len(speech)]) for n in numbers))
            texts += sum(said)
        done = most
        await asyncio.sleep(1)  # whoever vanished is missed by then
        resident = resident_memory_mb(pid)
        if resident is None:
            raise ServerFailed("The memory of the server cannot be read: there is no /proc here.")
        points.append(Point(done, resident, texts))
    return points


async def _speak(url: str, number: int, audio: bytes) -> bool:
    """Connect, say something and leave; tell whether words came back."""
    async with open_session(url, Start(language="en")) as session:
        for at in range(0, len(audio), _PACKET_BYTES):
            await session.send(audio[at : at + _PACKET_BYTES])
        if number % 3 == 2:
            return False
        await session.finish()
        return any([isinstance(event, FinalMessage) and event.text != "" async for event in session.events()])
