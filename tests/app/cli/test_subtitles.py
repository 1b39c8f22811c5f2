"""Laws of the subtitle writers, over any finals a server might send."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.subtitles import LINE_CHARS, LINES_PER_CUE, Format, cues, render, to_json, to_srt, to_txt, to_vtt
from engine.types import EndReason
from tickscribe.messages import FinalMessage, WireSegment

seconds = st.floats(min_value=0, max_value=400_000, allow_nan=False)
texts = st.text(max_size=300)
segments = st.builds(WireSegment, text=texts, start=seconds, end=seconds)


def make_final(*spoken: WireSegment, text: str | None = None) -> FinalMessage:
    whole = " ".join(segment.text for segment in spoken) if text is None else text
    start = spoken[0].start if spoken else 0.0
    end = spoken[-1].end if spoken else 0.0
    return FinalMessage(
        utterance=0, text=whole, start=start, end=end, reason=EndReason.PAUSE, language="en", segments=spoken
    )


finals = st.lists(st.lists(segments, max_size=4).map(lambda spoken: make_final(*spoken)), max_size=4)


@given(finals)
def test_cues_never_overlap_and_end_after_they_start(said: list[FinalMessage]) -> None:
    clock_ms = 0
    for cue in cues(said):
        assert clock_ms <= cue.start_ms < cue.end_ms
        clock_ms = cue.end_ms


@given(finals)
def test_a_cue_has_at_most_two_lines_of_at_most_42_characters(said: list[FinalMessage]) -> None:
    for cue in cues(said):
        assert 1 <= len(cue.lines) <= LINES_PER_CUE
        assert all(0 < len(line) <= LINE_CHARS for line in cue.lines)


@given(finals)
def test_no_character_is_lost_or_added_but_space(said: list[FinalMessage]) -> None:
    spoken = "".join(segment.text for final in said for segment in final.segments)
    shown = "".join(line for cue in cues(said) for line in cue.lines)
    assert "".join(shown.split()) == "".join(spoken.split())


@given(finals)
def test_vtt_text_cannot_be_taken_for_markup_or_times(said: list[FinalMessage]) -> None:
    for line in to_vtt(said).splitlines():
        if not re.fullmatch(r"\d\d+:\d\d:\d\d\.\d\d\d --> \d\d+:\d\d:\d\d\.\d\d\d", line):
            assert "<" not in line
            assert "-->" not in line


@given(finals)
def test_json_gives_every_final_back(said: list[FinalMessage]) -> None:
    utterances = json.loads(to_json(said))["utterances"]
    assert [utterance["text"] for utterance in utterances] == [final.text for final in said]


def test_srt_is_numbered_and_has_a_comma_in_its_times() -> None:
    said = [make_final(WireSegment("Hello there.", 0.61, 3661.2)), make_final(WireSegment("Bye.", 3662.0, 3662.5))]
    assert to_srt(said) == (
        "1\n00:00:00,610 --> 01:01:01,200\nHello there.\n\n2\n01:01:02,000 --> 01:01:02,500\nBye.\n"
    )


def test_vtt_has_a_header_and_a_point_in_its_times() -> None:
    said = [make_final(WireSegment("R&D <3", 0.5, 2.0))]
    assert to_vtt(said) == "WEBVTT\n\n00:00:00.500 --> 00:00:02.000\nR&amp;D &lt;3\n"


def test_a_long_segment_is_shared_out_by_its_characters() -> None:
    words = " ".join(["abcdefghi"] * 16)  # four words a line, two lines a cue
    first, second = cues([make_final(WireSegment(words, 0.0, 8.0))])
    assert (first.start_ms, first.end_ms) == (0, 4000)
    assert (second.start_ms, second.end_ms) == (4000, 8000)


def test_a_final_without_segments_is_one() -> None:
    (cue,) = cues([make_final(text="Hello.")])
    assert cue.lines == ("Hello.",)


def test_text_has_one_line_per_utterance_with_words() -> None:
    said = [make_final(text=" One\ntwo. "), make_final(text=""), make_final(text="Three.")]
    assert to_txt(said) == "One two.\nThree.\n"


@pytest.mark.parametrize(
    ("form", "empty"),
    [(Format.TXT, ""), (Format.SRT, ""), (Format.VTT, "WEBVTT\n"), (Format.JSON, None)],
)
def test_silence_gives_a_valid_file(form: Format, empty: str | None) -> None:
    text = render([], form)
    assert text == empty or json.loads(text) == {"text": "", "utterances": []}
