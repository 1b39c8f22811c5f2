"""`tickscribe file`: recordings through the public WebSocket, in real time or faster, into words and subtitle files.

All files stream at once, each through a session of its own; the failure of one touches no other. Pacing follows an
absolute schedule, so a late chunk does not delay the ones after it. Runs on the client's event loop; files are decoded
in threads.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from app.audio.media import MediaError, MediaFile, open_media
from app.cli.display import Display, open_display
from app.cli.subtitles import Format, render
from engine.types import SAMPLE_RATE
from tickscribe.client import ClientError, StreamEvent, pcm16, transcribe
from tickscribe.messages import FinalMessage, Start

EXIT_OK, EXIT_BAD_INPUT = 0, 2


class OutputError(Exception):
    """The transcripts cannot be written as asked; the message says what to change."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What to do with the files.

    Attributes:
        url: the server's `/v1/stream`.
        start: settings of every session; the audio sent is PCM16, 16 kHz, mono, partials come where `pace` is not 0.
        pace: seconds of audio sent per second; 0 sends as fast as the server takes it.
        output: file or folder for the transcripts; None writes none, unless `formats` asks for one on stdout.
        formats: what to write; empty takes the suffix of `output`, or plain text.
    """

    url: str
    start: Start = Start()
    pace: float = 1.0
    output: Path | None = None
    formats: tuple[Format, ...] = ()


@dataclass(slots=True)
class _Job:
    """One file on its way."""

    path: Path
    label: str
    outputs: Sequence[tuple[Format, Path | None]]  # None: stdout
    finals: list[FinalMessage] = field(default_factory=list)
    fault: str | None = None
    n_damaged: int = 0


def transcribe_files(paths: Sequence[Path], options: FileOptions) -> int:
    """Transcribe all files, show the words live and write the transcripts.

    Returns:
        The exit code: 0, or 2 if any file failed.

    Raises:
        OutputError: the wanted outputs make no sense; nothing was sent.
    """
    jobs = [_Job(path, path.name, outputs) for path, outputs in zip(paths, plan_outputs(paths, options), strict=True)]
    document_on_stdout = any(target is None for job in jobs for _, target in job.outputs)
    console = Console(stderr=document_on_stdout, highlight=False)
    label_width = max(len(job.label) for job in jobs) if len(jobs) > 1 else 0
    with open_display(console, label_width=label_width) as display:
        asyncio.run(_run_all(jobs, options, display))
    for job in jobs:
        if job.n_damaged:
            print(f"{job.path}: {job.n_damaged} damaged packets were skipped.", file=sys.stderr)  # noqa: T201
        if job.fault:
            print(job.fault, file=sys.stderr)  # noqa: T201
    return EXIT_BAD_INPUT if any(job.fault for job in jobs) else EXIT_OK


def plan_outputs(paths: Sequence[Path], options: FileOptions) -> list[list[tuple[Format, Path | None]]]:
    """Decide for each file what is written where; None stands for stdout.

    A name with a known suffix is a file, every other name a folder.

    Raises:
        OutputError: two transcripts would share one place, or a name fits no format.
    """
    output, formats = options.output, options.formats
    if output is None:
        if formats and (len(paths) > 1 or len(formats) > 1):
            raise OutputError("Only one transcript fits on standard output; name a folder with -o for several.")
        return [[(form, None) for form in formats] for _ in paths]
    suffix = output.suffix.removeprefix(".").lower()
    if suffix in tuple(Format) and not output.is_dir():
        if len(paths) > 1:
            raise OutputError(f"{len(paths)} files cannot share the one transcript {output}; name a folder with -o.")
        if formats and formats != (Format(suffix),):
            raise OutputError(f"The suffix of {output} and --format disagree; leave one of them out.")
        return [[(Format(suffix), output)]]
    if suffix and not output.is_dir():
        raise OutputError(f"No transcript can be written as {output}; the suffixes are {', '.join(Format)}.")
    return _in_folder(paths, output, formats or (Format.TXT,))


def _in_folder(
    paths: Sequence[Path], folder: Path, formats: Sequence[Format]
) -> list[list[tuple[Format, Path | None]]]:
    """Name each transcript after its recording; recordings that differ by suffix only keep theirs in the name."""
    n_stems = Counter(path.stem for path in paths)
    names = [path.stem if n_stems[path.stem] == 1 else path.name for path in paths]
    for name, count in Counter(names).items():
        if count > 1:
            raise OutputError(f"{count} of the files are called {name}, their transcripts would overwrite each other.")
    return [[(form, folder / f"{name}.{form}") for form in formats] for name in names]


async def _run_all(jobs: Sequence[_Job], options: FileOptions, display: Display) -> None:
    async with asyncio.TaskGroup() as tasks:
        for job in jobs:
            tasks.create_task(_run(job, options, display))


async def _run(job: _Job, options: FileOptions, display: Display) -> None:
    """Stream one file and write its transcript; a fault is kept with the job."""
    try:
        with open_media(job.path) as media:
            try:
                await _stream(job, media, options, display)
            finally:
                job.n_damaged = media.n_damaged
    except MediaError as error:
        job.fault = str(error)
    except ClientError as error:
        job.fault = f"{job.path}: {error}"
    if job.finals or not job.fault:
        try:
            await asyncio.to_thread(_write, job)
        except OSError as error:
            job.fault = f"{job.path}: The transcript could not be written: {error}."


async def _stream(job: _Job, media: MediaFile, options: FileOptions, display: Display) -> None:
    track = display.add(job.label, media.duration_s)

    def on_event(event: StreamEvent) -> None:
        if isinstance(event, FinalMessage):
            job.finals.append(event)
        track.show(event)

    failed = True
    try:
        audio = paced(media, options.pace, on_sent=track.advance)
        # At full speed nobody reads along; without partials every window is encoded and decoded once.
        start = msgspec.structs.replace(options.start, interim=options.pace > 0)
        await transcribe(options.url, start, audio, on_event=on_event)
        failed = False
    finally:
        track.end(failed=failed)


async def paced(media: MediaFile, pace: float, *, on_sent: Callable[[float], None]) -> AsyncIterator[bytes]:
    """Yield a file as PCM16 when a microphone would have had it: each chunk at the moment of its last sample.

    Args:
        media: the file.
        pace: seconds of audio per second; 0 does not wait at all.
        on_sent: called with the seconds of audio that the consumer has taken.
    """
    loop = asyncio.get_running_loop()
    chunks = media.chunks()
    begin, n_sent = loop.time(), 0
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        n_sent += len(chunk)
        if pace > 0:
            await asyncio.sleep(begin + n_sent / SAMPLE_RATE / pace - loop.time())
        yield pcm16(chunk)
        on_sent(n_sent / SAMPLE_RATE)


def _write(job: _Job) -> None:
    for form, target in job.outputs:
        text = render(job.finals, form)
        if target is None:
            sys.stdout.write(text)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
