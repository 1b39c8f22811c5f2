"""Words on a terminal as they come: a live view for people, plain lines for pipes and files.

The last step of the route on the client's side, shared by `tickscribe file` and `tickscribe mic`: events in, text out.
Knows no sockets and no audio. Text from a server is never trusted with the terminal: control characters are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from tickscribe.client import StreamEvent
from tickscribe.messages import FinalMessage, PartialMessage, WarningMessage

REFRESHES_PER_SECOND = 8


class Track(Protocol):
    """What is shown of one recording."""

    def show(self, event: StreamEvent) -> None:
        """Take the next event of its session."""
        ...

    def advance(self, sent_s: float) -> None:
        """Say how many seconds of it the server has been given."""
        ...

    def end(self, *, failed: bool) -> None:
        """Say that nothing more comes."""
        ...


class Display(Protocol):
    """Where recordings are shown side by side."""

    def add(self, label: str, duration_s: float | None) -> Track:
        """Show another recording; None where nobody knows how long it is."""
        ...


@contextmanager
def open_display(console: Console, *, label_width: int = 0) -> Iterator[Display]:
    """Open the display that suits the console: live on a terminal, plain lines elsewhere.

    Args:
        console: where to write.
        label_width: put the recording's label before each line of text, in a column of so many characters.
    """
    if not console.is_terminal:
        yield _PlainDisplay(console, label_width)
        return
    display = _LiveDisplay(console, label_width)
    with Live(console=console, get_renderable=display.render, refresh_per_second=REFRESHES_PER_SECOND, transient=True):
        yield display


class _PlainDisplay:
    """One line per final, nothing else; each recording is its own track."""

    def __init__(self, console: Console, label_width: int) -> None:
        self._console = console
        self._label_width = label_width

    def add(self, label: str, duration_s: float | None) -> Track:
        return _PlainTrack(self._console, _column(label, self._label_width))


class _PlainTrack:
    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label

    def show(self, event: StreamEvent) -> None:
        for line in _lines(event, self._label):
            self._console.print(line, soft_wrap=True)

    def advance(self, sent_s: float) -> None:
        pass

    def end(self, *, failed: bool) -> None:
        pass


class _LiveDisplay:
    """Finals scroll past; below them, for each recording, a bar and the words that are still open."""

    def __init__(self, console: Console, label_width: int) -> None:
        self._console = console
        self._label_width = label_width
        self._progress = Progress(
            TextColumn("{task.fields[label]}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[position]}"),
            console=console,
        )
        self._tracks: list[_LiveTrack] = []

    def add(self, label: str, duration_s: float | None) -> Track:
        task = self._progress.add_task("", total=duration_s, label=_printable(label), position="")
        column = _column(label, self._label_width)
        track = _LiveTrack(self._console, self._progress, task, column, duration_s)
        self._tracks.append(track)
        return track

    def render(self) -> RenderableType:
        """The part of the screen below the finals."""
        width = self._console.width
        open_text = [track.open_text(width) for track in self._tracks if track.has_open_text]
        return Group(*open_text, self._progress)


class _LiveTrack:
    def __init__(
        self, console: Console, progress: Progress, task: TaskID, label: str, duration_s: float | None
    ) -> None:
        self._console = console
        self._progress = progress
        self._task = task
        self._label = label
        self._duration_s = duration_s
        self._committed = self._tentative = ""

    @property
    def has_open_text(self) -> bool:
        return bool(self._committed or self._tentative)

    def open_text(self, width: int) -> Text:
        """As much of the open utterance's end as fits on a line of `width` cells, tentative words dim."""
        label = Text(self._label, style="cyan")
        text = Text(_printable(self._committed))
        text.append(_printable(self._tentative), style="dim")
        return label + text[max(0, label.cell_len + text.cell_len - width) :]

    def show(self, event: StreamEvent) -> None:
        match event:
            case PartialMessage():
                self._committed, self._tentative = event.committed, event.tentative
            case FinalMessage():
                self._committed = self._tentative = ""
        for line in _lines(event, self._label):
            self._console.print(line)

    def advance(self, sent_s: float) -> None:
        whole = f" of {clock(self._duration_s)}" if self._duration_s is not None else ""
        self._progress.update(self._task, completed=sent_s, position=clock(sent_s) + whole)

    def end(self, *, failed: bool) -> None:
        self._committed = self._tentative = ""
        self._progress.update(self._task, position="failed" if failed else "done")
        self._progress.stop_task(self._task)


def clock(seconds: float) -> str:
    """Minutes and seconds, such as 1:02.5."""
    minutes, tenths = divmod(int(seconds * 10), 600)
    return f"{minutes}:{tenths // 10:02}.{tenths % 10}"


def _lines(event: StreamEvent, label: str) -> Iterator[Text]:
    """What stays on the screen of an event: finals with words, and warnings."""
    match event:
        case FinalMessage() if event.text.strip():
            line = Text(label, style="cyan")
            line.append(f"{clock(event.start):>7}  ", style="dim")
            yield line.append(_printable(event.text.strip()), style="default")
        case WarningMessage():
            yield Text(f"{label}warning: {_printable(event.message)}", style="yellow")


def _column(label: str, width: int) -> str:
    """The label as the beginning of a line; nothing where there is no column for it."""
    return f"{_printable(label):{width}}  " if width else ""


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
