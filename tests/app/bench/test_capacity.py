"""`tickscribe bench capacity` judged on hand-written traces: nothing here runs a server or looks at a clock."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from app.bench import capacity, native, scrape
from app.bench.capacity import Bounds, Point, search, verdict
from app.bench.clips import Clip
from app.bench.delays import Distribution, Update, drift_s_per_min, first_seen, phrase_delays, word_delays
from app.bench.load import Message, Trace
from app.bench.point import Heard, Quality, judge
from app.bench.process import CpuTimes
from app.bench.reference import KnownClip, TimedWord, plain_words
from app.bench.streams import Phrase, Stream, compose, most_heard, speech_share
from engine.config import Context, EngineConfig
from engine.types import SAMPLE_RATE
from tickscribe.command import console_script


def timed(text: str, *, start_s: float = 0.0) -> tuple[TimedWord, ...]:
    """One word per second, the first one ending a second after `start_s`."""
    return tuple(TimedWord(word, start_s + n) for n, word in enumerate(text.split(), start=1))


def phrase(text: str, *, start_s: float = 0.0) -> Phrase:
    words = timed(text, start_s=start_s)
    return Phrase("clip.flac", start_s, words[-1].end_s, text, text, words)


def message(at_s: float, **fields: object) -> Message:
    return Message(at_s, msgspec.json.encode(fields).decode())


def partial(at_s: float, utterance: int, committed: str, tentative: str) -> Message:
    return message(
        at_s,
        type="partial",
        utterance=utterance,
        revision=1,
        committed=committed,
        tentative=tentative,
        start=0.0,
        end=1.0,
    )


def final(at_s: float, utterance: int, text: str, *, end: float, reason: str = "pause") -> Message:
    return message(at_s, type="final", utterance=utterance, text=text, start=0.0, end=end, reason=reason, language="en")


CLOSED = message(9.0, type="closed", reason="finished")


# ----------------------------------------------------------------------------------------------- words


def test_words_are_compared_without_case_and_punctuation() -> None:
    assert plain_words(" Don't stop-- 'he' said, \"Now!\"") == ["don't", "stop", "he", "said", "now"]


def test_a_word_is_seen_with_the_first_text_that_has_it_at_its_place() -> None:
    texts = [(1.5, "one"), (2.5, "one to"), (3.5, "one two three"), (4.5, "one two three")]
    assert first_seen(timed("one two three"), texts) == [1.5, 3.5, 3.5]


def test_a_word_that_never_comes_is_none() -> None:
    assert first_seen(timed("one two three"), [(5.0, "one three")]) == [5.0, None, 5.0]


def test_a_repeated_word_is_matched_with_its_first_place() -> None:
    words = timed("the cat and the dog")
    assert first_seen(words, [(9.0, "the cat")]) == [9.0, 9.0, None, None, None]
    assert first_seen(words, [(9.0, "the")]) == [9.0, None, None, None, None]


def test_a_word_cannot_be_seen_before_it_is_said() -> None:
    assert first_seen(timed("the cat the"), [(1.2, "the cat the")]) == [1.2, None, None]


def test_a_word_that_is_taken_back_was_seen_all_the_same() -> None:
    assert first_seen(timed("one two"), [(2.0, "one two"), (3.0, "one"), (4.0, "one two")]) == [2.0, 2.0]


def test_delays_count_from_the_end_of_the_word_and_leave_the_warm_up_out() -> None:
    words = timed("one two three")
    assert word_delays(words, [1.5, None, 3.25], since_s=0) == [(1.0, 0.5), (3.0, 0.25)]
    assert word_delays(words, [1.5, None, 3.25], since_s=2) == [(3.0, 0.25)]


def test_a_phrase_is_there_when_its_last_word_is() -> None:
    phrases = [phrase("one two"), phrase("three four", start_s=4)]
    assert phrase_delays(phrases, [2.0, 2.5, 6.5, None], since_s=0) == ([0.5, 0.5], [])


def test_a_phrase_of_which_nothing_came_is_lost_unless_it_is_very_short() -> None:
    phrases = [phrase("one two three"), phrase("four", start_s=4)]
    assert phrase_delays(phrases, [None] * 4, since_s=0) == ([], ["clip.flac"])


def test_drift_is_the_slope_per_minute() -> None:
    assert drift_s_per_min([(0, 0.5), (30, 1.0), (60, 1.5)]) == pytest.approx(1.0)
    assert drift_s_per_min([(0, 0.5), (30, 0.5), (60, 0.5)]) == pytest.approx(0.0)
    assert math.isnan(drift_s_per_min([(10, 0.5)]))


def test_quantiles_are_values_that_occurred() -> None:
    spread = Distribution.of(range(1, 101))
    assert (spread.p50, spread.p95, spread.p99, spread.worst, spread.n) == (50, 95, 99, 100, 100)
    assert math.isnan(Distribution.of([]).p95)


# ----------------------------------------------------------------------------------------------- the native protocol


def test_native_messages_become_what_can_be_read() -> None:
    messages = [
        message(0.1, type="speech_started", utterance=0, start=0.0),
        partial(1.0, 0, "", " Hello"),
        partial(2.0, 0, " Hello", " world"),
        final(3.0, 0, "Hello world.", end=2.0),
        partial(4.0, 1, "", " Bye"),
        CLOSED,
    ]
    updates = native.to_updates(messages)
    assert [(u.at_s, u.final.split(), u.committed.split(), u.shown.split()) for u in updates] == [
        (1.0, [], [], ["Hello"]),
        (2.0, [], ["Hello"], ["Hello", "world"]),
        (3.0, ["Hello", "world."], ["Hello", "world."], ["Hello", "world."]),
        (4.0, ["Hello", "world."], ["Hello", "world."], ["Hello", "world.", "Bye"]),
    ]


def test_a_server_is_started_with_the_engines_settings_and_further_flags_win() -> None:
    config = EngineConfig(context=Context.FULL, pause_ms=700)
    command = native.serve_command(config, 1234, max_sessions=5, flags=("--pause-ms", "900"))
    assert command[:2] == [console_script(), "serve"]
    pairs = list(zip(command[2::2], command[3::2], strict=True))
    assert {("--context", "full"), ("--port", "1234"), ("--max-sessions", "5")} <= set(pairs)
    assert "--freeze-after-s" not in command, "what the server is to choose itself is not said"
    assert [value for flag, value in pairs if flag == "--pause-ms"] == ["700", "900"]


def test_finalisation_counts_pauses_only() -> None:
    messages = [
        final(3.0, 0, "Hello.", end=2.25),
        final(5.0, 1, "", end=4.0),
        final(8.0, 2, "Cut", end=7.0, reason="max_length"),
        final(9.0, 3, "Bye", end=8.9, reason="finished"),
    ]
    assert list(native.finalisation_s(messages)) == [(2.25, 0.75)]


def test_a_session_without_its_farewell_is_at_fault() -> None:
    assert native.fault([CLOSED]) is None
    assert native.fault([]) == "no closed message"
    error = message(1.0, type="error", code="overloaded", message="Too slow.")
    assert native.fault([error, message(1.1, type="closed", reason="error")]) == "overloaded: Too slow."


# ----------------------------------------------------------------------------------------------- one point


def measured(updates: list[Update], *, lateness_s: float = 0.001, fault: str | None = None) -> Quality:
    """Judge one speaker who says five words, one a second."""
    said = phrase("one two three four five")
    stream = Stream(0.0, np.zeros(16, dtype=np.float32), (said,))
    trace = Trace(lateness_s=[lateness_s])
    return judge([stream], [trace], [Heard(updates, fault)], warm_up_s=0.0)


def spoken_in_time() -> list[Update]:
    """Each word half a second after its end; final at the end."""
    words = "one two three four five".split()
    shown = [" ".join(words[:n]) for n in range(1, 6)]
    updates = [Update(n + 0.5, "", " ".join(words[: n - 1]), text) for n, text in enumerate(shown, start=1)]
    return [*updates, Update(6.0, shown[-1], shown[-1], shown[-1])]


def test_a_speaker_is_judged_from_first_showing_to_final() -> None:
    quality = measured(spoken_in_time())
    assert quality.word.p95 == pytest.approx(0.5)
    assert quality.word_committed.p95 == pytest.approx(1.5)
    assert quality.word_final.worst == pytest.approx(5.0)
    assert quality.phrase_final.p95 == pytest.approx(1.0)
    assert quality.drift_s_per_min == pytest.approx(0.0)
    assert (quality.wer, quality.words_shown, quality.lost_phrases) == (0.0, 1.0, ())


def test_bounds_that_break_are_named() -> None:
    fine, late = Distribution.of([0.5]), Distribution.of([1.5])
    quality = measured(spoken_in_time())
    assert verdict(quality, fine, Bounds()) == ()
    assert verdict(quality, late, Bounds()) == ("finalisation 1.50 s",)
    assert verdict(quality, fine, Bounds(word_s=0.4)) == ("word delay 0.50 s",)
    assert verdict(replace(quality, drift_s_per_min=3.0), fine, Bounds()) == ("drift 3.00 s/min",)


def test_what_was_not_measured_does_not_hold() -> None:
    broken = verdict(measured([]), Distribution.of([]), Bounds())
    assert [text.split()[0] for text in broken] == ["finalisation", "word", "drift", "1"]


def test_a_failed_session_breaks_the_bounds() -> None:
    quality = measured(spoken_in_time(), fault="server_full: No room.")
    assert verdict(quality, Distribution.of([0.5]), Bounds()) == ("1 sessions failed: server_full: No room.",)


def test_a_load_generator_that_was_late_voids_the_measurement() -> None:
    quality = measured(spoken_in_time(), lateness_s=0.08)
    assert quality.is_void
    assert verdict(quality, Distribution.of([0.5]), Bounds())[0].startswith(
        "void: the load generator was late by 80 ms"
    )


# ----------------------------------------------------------------------------------------------- the search


def searched(capacity: int, *, most: int = 256) -> list[int]:
    """The order in which N is measured on a server that serves `capacity`."""

    def measure(n_streams: int) -> Point:
        nothing = Distribution.of([])
        return Point(
            n_streams=n_streams,
            quality=measured([]),
            finalisation=nothing,
            after_pause=nothing,
            work=scrape.work_between({}, {}),
            cpu=None,
            peak_memory_mb=None,
            speech_share=0.5,
            most_heard=1,
            broken=() if n_streams <= capacity else ("late",),
        )

    return [point.n_streams for point in search(measure, most=most)]


def test_n_is_doubled_and_then_bisected() -> None:
    assert searched(5) == [1, 2, 4, 8, 6, 5]
    assert searched(24) == [1, 2, 4, 8, 16, 32, 24, 28, 26, 25]


def test_a_server_that_serves_nobody_is_asked_once() -> None:
    assert searched(0) == [1]


def test_the_search_stops_at_the_most() -> None:
    assert searched(1000, most=12) == [1, 2, 4, 8, 12]


# ----------------------------------------------------------------------------------------------- speakers


def known(name: str, seconds: float) -> KnownClip:
    clip = Clip(name, np.full(int(seconds * SAMPLE_RATE), 0.1, dtype=np.float32), name)
    return KnownClip(clip, name, (TimedWord(name, seconds - 0.5),), seconds - 0.4)


CLIPS = [known(f"clip{n}", 3.0 + n / 2) for n in range(8)]


def test_speakers_talk_a_little_more_than_half_of_the_time() -> None:
    streams = compose(CLIPS, n_streams=12, duration_s=120, seed=1)
    assert 0.5 <= speech_share(streams, CLIPS) <= 0.6


def test_a_seed_gives_the_same_speakers_again_and_another_gives_others() -> None:
    one, again, other = (compose(CLIPS, n_streams=3, duration_s=30, seed=seed) for seed in (1, 1, 2))
    assert [s.phrases for s in one] == [s.phrases for s in again]
    assert all(np.array_equal(a.audio, b.audio) for a, b in zip(one, again, strict=True))
    assert [s.phrases for s in one] != [s.phrases for s in other]


def test_no_two_speakers_say_the_same_and_none_is_heard_much_more_often() -> None:
    streams = compose(CLIPS, n_streams=8, duration_s=40, seed=3)
    orders = {tuple(phrase.name for phrase in stream.phrases) for stream in streams}
    assert len(orders) == len(streams)
    n_phrases = sum(len(stream.phrases) for stream in streams)
    assert most_heard(streams) <= math.ceil(n_phrases / len(CLIPS)) + 2


def test_recordings_lie_where_the_plan_says_and_end_before_the_stream() -> None:
    for stream in compose(CLIPS, n_streams=4, duration_s=30, seed=5):
        for said in stream.phrases:
            inside = int((said.start_s + 1) * SAMPLE_RATE)
            assert stream.audio[inside] == pytest.approx(0.1, abs=0.01)
            assert said.speech_end_s <= 28.0
        for before, after in zip(stream.phrases, stream.phrases[1:], strict=False):
            assert after.start_s - before.speech_end_s >= 1.2


# ----------------------------------------------------------------------------------------------- what it cost

BEFORE = """
tickscribe_audio_received_seconds_total 10.0
tickscribe_encoder_positions_total 100.0
tickscribe_encoder_batch_size_bucket{le="1.0"} 4.0
tickscribe_encoder_batch_size_bucket{le="2.0"} 4.0
tickscribe_encoder_batch_size_bucket{le="+Inf"} 4.0
"""
AFTER = """
tickscribe_audio_received_seconds_total 30.0
tickscribe_encoder_positions_total 2100.0
tickscribe_encoder_batch_size_bucket{le="1.0"} 10.0
tickscribe_encoder_batch_size_bucket{le="2.0"} 13.0
tickscribe_encoder_batch_size_bucket{le="+Inf"} 13.0
tickscribe_encoder_batch_size_sum 16.0
tickscribe_retries_total 1.0
tickscribe_errors_total{code="overloaded"} 2.0
tickscribe_errors_total{code="too_big"} 1.0
"""


def test_work_is_the_difference_of_two_looks() -> None:
    work = scrape.work_between(scrape.parse(BEFORE), scrape.parse(AFTER))
    assert (work.audio_s, work.waste, work.errors) == (20.0, pytest.approx(2.0), 3)
    assert work.encoder_batch == {"1": 6, "2": 3}
    assert (work.windows, work.fallback_rate) == (16, 1 / 16)


def test_the_command_in_the_report_names_what_differs_from_the_defaults() -> None:
    options = capacity.Options(
        EngineConfig(model="base"), Path("clips.tsv"), flags=("--dtype", "fp32"), n_streams=(8, 24)
    )
    assert capacity._command(options) == (
        "tickscribe bench capacity --model base --streams 8 --streams 24 -- --dtype fp32"
    )
    assert capacity._command(capacity.Options(EngineConfig(), Path("clips.tsv"))) == "tickscribe bench capacity"


def test_processor_time_of_others_is_what_the_server_did_not_use() -> None:
    use = CpuTimes(20.0, 12.0, 118.0).since(CpuTimes(10.0, 2.0, 100.0))
    assert (use.server_percent, use.others_percent) == (pytest.approx(100), pytest.approx(80))
