"""Transcripts as files: plain text, SubRip (srt), WebVTT (vtt) and JSON.

Pure functions from the finals of a session to the text of a file; the way out for `tickscribe file`. Knows no files and
no sockets. Laws: a cue has one or two lines of at most 42 characters, ends after it starts, and does not start before
the cue ahead of it has ended.
Source: the limits are those that broadcasters and streaming services commonly give to their subtitlers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from tickscribe.messages import FinalMessage

LINE_CHARS = 42
LINES_PER_CUE = 2


class Format(StrEnum):
    """What a transcript can be written as; the value is also the file's suffix."""

    TXT = "txt"
    SRT = "srt"
    VTT = "vtt"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Cue:
    """Text shown from `start_ms` to `end_ms`."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


def render(finals: Sequence[FinalMessage], form: Format) -> str:
    """Write the finals of one recording in the given format, newline at the end included."""
    writers: dict[Format, Callable[[Sequence[FinalMessage]], str]] = {
        Format.TXT: to_txt,
        Format.SRT: to_srt,
        Format.VTT: to_vtt,
        Format.JSON: to_json,
    }
    return writers[form](finals)


def to_txt(finals: Sequence[FinalMessage]) -> str:
    """One line per utterance; utterances without words are left out."""
    return "".join(f"{text}\n" for final in finals if (text := _one_line(final.text)))


def to_srt(finals: Sequence[FinalMessage]) -> str:
    """Numbered cues with a comma in the times."""
    return "\n".join(
        f"{number}\n{_time(cue.start_ms, ',')} --> {_time(cue.end_ms, ',')}\n{_joined(cue)}\n"
        for number, cue in enumerate(cues(finals), start=1)
    )


def to_vtt(finals: Sequence[FinalMessage]) -> str:
    """Cues with a point in the times; `&`, `<` and `>` are escaped, as WebVTT demands."""
    escape = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
    blocks = (
        f"\n{_time(cue.start_ms, '.')} --> {_time(cue.end_ms, '.')}\n{_joined(cue).translate(escape)}\n"
        for cue in cues(finals)
    )
    return "WEBVTT\n" + "".join(blocks)


def to_json(finals: Sequence[FinalMessage]) -> str:
    """All that the server said: the whole text, and the utterances with segments and words."""
    document = {
        "text": " ".join(text for final in finals if (text := _one_line(final.text))),
        "utterances": finals,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def cues(finals: Iterable[FinalMessage]) -> list[Cue]:
    """Cut the segments of finals into cues; one too long is shared out over several by its characters.

    A final without segments counts as one.
    """
    found: list[Cue] = []
    clock_ms = 0  # where the cue before ended
    for final in finals:
        for segment in final.segments or (final,):
            lines = textwrap.wrap(_one_line(segment.text), LINE_CHARS)
            groups = [tuple(lines[i : i + LINES_PER_CUE]) for i in range(0, len(lines), LINES_PER_CUE)]
            start_ms = max(clock_ms, round(segment.start * 1000))
            end_ms = max(start_ms + len(groups), round(segment.end * 1000))  # at least 1 ms each
            for (cue_start_ms, cue_end_ms), group in zip(_shares(start_ms, end_ms, groups), groups, strict=True):
                found.append(Cue(cue_start_ms, cue_end_ms, group))
                clock_ms = cue_end_ms
    return found


def _shares(start_ms: int, end_ms: int, groups: Sequence[tuple[str, ...]]) -> list[tuple[int, int]]:
    """Divide [start_ms, end_ms) among the groups in proportion to their characters, at least 1 ms each."""
    n_chars = [sum(map(len, group)) for group in groups]
    total = sum(n_chars)
    spare_ms = end_ms - start_ms - len(groups)
    edges = [start_ms + i + spare_ms * sum(n_chars[:i]) // max(total, 1) for i in range(len(groups) + 1)]
    return list(zip(edges, edges[1:], strict=False))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _joined(cue: Cue) -> str:
    return "\n".join(cue.lines)


def _time(ms: int, mark: str) -> str:
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{mark}{ms:03}"
