"""`tickscribe eval`: what is measured of a transcript, by hand-written cases; then whole, over three recordings."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from app.audio.media import MediaError
from app.bench.clips import ClipError, Entry
from app.bench.load import Message, Trace
from app.bench.machine import Machine
from app.bench.reference import TimedWord
from app.bench.report import Report
from app.bench.scoring import Errors, Scorer
from app.eval import evaluate, streamed
from app.eval.measures import (
    Revisions,
    SpokenWord,
    bootstrap_interval,
    count_revisions,
    read_words,
    to_timed,
    units,
    word_time_errors,
)
from app.eval.options import Arm, Options
from app.eval.page import to_html
from app.eval.plots import Scale, share_chart
from app.eval.results import ArmResult, ClipResult, group_of, groups_of, to_row, to_table
from engine.config import EngineConfig
from engine.types import Stability
from tests.conftest import AUDIO

# ----------------------------------------------------------------------------------------------- intervals


def test_the_interval_holds_the_rate_and_is_the_same_every_time() -> None:
    clips = [Errors(10, substitutions=n % 3) for n in range(40)]
    low, high = bootstrap_interval(clips) or (math.nan, math.nan)
    assert low < sum(clips, Errors()).rate < high
    assert bootstrap_interval(clips) == (low, high)


def test_more_clips_give_a_narrower_interval() -> None:
    def width(n_clips: int) -> float:
        low, high = bootstrap_interval([Errors(10, deletions=n % 4) for n in range(n_clips)]) or (0.0, 0.0)
        return high - low

    assert width(400) < 0.5 * width(16)


def test_the_interval_of_many_alike_is_that_of_the_central_limit_theorem() -> None:
    clips = [Errors(1, insertions=n % 2) for n in range(400)]
    low, high = bootstrap_interval(clips) or (0.0, 0.0)
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=0.006)


def test_one_clip_says_nothing_of_others() -> None:
    assert bootstrap_interval([Errors(10, insertions=1)]) is None


# ----------------------------------------------------------------------------------------------- revisions


def revisions(*texts: str) -> Revisions:
    *partials, final = (text.split() for text in texts)
    return count_revisions(partials, final)


def test_words_that_stay_are_shown_once_and_not_revised() -> None:
    assert revisions("he", "he hoped", "he hoped there", "he hoped there was") == Revisions(3, 0)


def test_a_word_that_is_replaced_was_revised() -> None:
    assert revisions("he", "he hope", "he hoped there", "he hoped there") == Revisions(4, 1)


def test_a_word_that_goes_and_comes_back_was_revised_and_shown_anew() -> None:
    assert revisions("one two", "one", "one two", "one two") == Revisions(3, 1)


def test_a_word_put_in_between_moves_the_others_but_does_not_change_them() -> None:
    assert revisions("one three", "one two three") == Revisions(2, 0)


def test_what_the_final_drops_was_revised_and_what_only_it_has_was_never_shown() -> None:
    assert revisions("one two", "one three four") == Revisions(2, 1)
    assert revisions("thank you", "") == Revisions(2, 2)
    assert count_revisions([], ["one"]) == Revisions(0, 0)
    assert math.isnan(Revisions().rate)


def test_case_and_punctuation_do_not_count_and_japanese_counts_by_character() -> None:
    assert units("Well, HE said.", "en") == ["well", "he", "said"]
    assert units("客観的、 実在。", "ja") == list("客観的実在")


# ----------------------------------------------------------------------------------------------- word times


def spoken(text: str, *, shift_s: float = 0.0) -> list[SpokenWord]:
    """One word per second, half a second long."""
    return [SpokenWord(word, n + shift_s, n + 0.5 + shift_s) for n, word in enumerate(text.split())]


def test_times_are_compared_of_words_that_were_heard_rightly() -> None:
    starts, ends = word_time_errors(spoken("one two three"), spoken("One, too three.", shift_s=-0.25))
    assert (starts, ends) == ([0.25, 0.25], [0.25, 0.25])


def test_words_are_timed_in_the_order_of_their_ends() -> None:
    words = [SpokenWord("Twenty-one", 0.0, 1.0), SpokenWord("is", 0.9, 0.95)]
    assert to_timed(words) == [TimedWord("is", 0.95), TimedWord("twenty", 1.0), TimedWord("one", 1.0)]


def test_a_table_of_words_is_read_and_a_bad_line_is_named(tmp_path: Path) -> None:
    table = tmp_path / "words.tsv"
    table.write_text("word\tstart\tend\nhello\t0.5\t0.75\n", encoding="utf-8")
    assert read_words(table) == [SpokenWord("hello", 0.5, 0.75)]
    for line in ("hello\t0.5", "hello\tx\t1", "hello\t2\t1", "hello\t-1\t1", "hello\tnan\t1"):
        table.write_text(f"word\tstart\tend\nfine\t0\t1\n{line}\n", encoding="utf-8")
        with pytest.raises(ClipError, match="line 3"):
            read_words(table)
    with pytest.raises(ClipError, match="no table of words"):
        read_words(tmp_path / "other.tsv")


# ----------------------------------------------------------------------------------------------- streams


def message(at_s: float, **fields: object) -> Message:
    return Message(at_s, msgspec.json.encode(fields).decode())


def partial(at_s: float, text: str) -> Message:
    times = {"start": 0.0, "end": 1.0}
    return message(at_s, type="partial", utterance=0, revision=1, committed="", tentative=text, **times)


HEARD = Trace(
    messages=[
        partial(1.0, " one to"),
        partial(2.6, " one two"),
        message(
            4.0,
            type="final",
            utterance=0,
            text="One two.",
            start=0.0,
            end=2.5,
            reason="pause",
            language="en",
            words=[{"word": "One", "start": 0.5, "end": 0.75, "probability": 1.0}],
        ),
        message(4.0, type="closed", reason="finished"),
    ]
)


def judged(pace: float) -> streamed.Timing:
    words = [TimedWord("one", 0.75), TimedWord("two", 2.25)]
    return streamed.judge(HEARD, language="en", words=words, onset_s=0.5, pace=pace, pause_s=0.5)


def test_delays_count_from_speech_from_the_word_and_from_the_pause_rule() -> None:
    timing = judged(1.0)
    assert timing.first_text_s == pytest.approx(0.5)
    assert timing.word_s == pytest.approx((0.25, 0.35))
    assert timing.final_s == pytest.approx((1.0,))
    assert timing.revisions == Revisions(3, 1)


def test_at_twice_the_speed_the_same_messages_were_half_as_late() -> None:
    assert judged(2.0).word_s == pytest.approx((0.125, 0.175))
    assert judged(2.0).final_s == pytest.approx((0.5,))


def test_a_stream_without_its_end_is_a_fault_and_what_was_final_is_kept() -> None:
    assert streamed.to_transcript(HEARD).fault is None
    cut = streamed.to_transcript(Trace(messages=HEARD.messages[:-1]))
    assert (cut.text, cut.words, cut.fault) == ("One two.", (SpokenWord("One", 0.5, 0.75),), "no closed message")


def test_a_recording_is_followed_by_the_quiet_of_a_room() -> None:
    audio = streamed.with_tail(np.ones(100, dtype=np.float32))
    assert audio.dtype == np.float32
    assert 0 < np.abs(audio[100:]).max() < 0.01 < np.abs(audio[:100]).min()


def test_a_recording_that_cannot_be_read_is_named_before_anybody_connects() -> None:
    with pytest.raises(MediaError, match="There is no file"):
        streamed.stream_all(
            "ws://127.0.0.1:9/",
            [SPEECH],
            pace=1.0,
            n_streams=1,
            stability=Stability.BALANCED,
            on_done=lambda: None,
        )


# ----------------------------------------------------------------------------------------------- results


def entry(name: str, reference: str, *, language: str | None = "en", kind: str = "utterance") -> Entry:
    return Entry(name, Path(name), language, kind, reference)


def result(one: Entry, text: str, errors: Errors) -> ClipResult:
    return ClipResult(one, group_of(one), text, errors)


SPEECH = entry("a.flac", "one two three four")
QUIET = entry("quiet.flac", "", language=None, kind="nonspeech")
ARM = ArmResult(
    "offline",
    "int8",
    (
        result(entry("ja.flac", "客観", language="ja"), "客", Errors(2, deletions=1)),
        result(SPEECH, "one two three", Errors(4, deletions=1)),
        result(entry("b.flac", "five"), "five", Errors(1)),
        result(entry("de.flac", "eins", language="de", kind="noisy"), "eins", Errors(1)),
        result(QUIET, "Thank you.", Errors(insertions=2)),
    ),
)


def test_clips_are_pooled_by_what_they_are() -> None:
    assert groups_of([ARM]) == ["utterance", "ja", "other languages"]
    assert ARM.pooled("utterance") == Errors(5, deletions=1)
    assert ARM.invented_words == 2


def test_a_recording_that_is_heard_again_is_no_other_one() -> None:
    twice = [
        result(replace(clip.entry, name=f"{clip.entry.name} +20 ms"), clip.text, clip.errors) for clip in ARM.clips
    ]
    both = replace(ARM, clips=(*ARM.clips, *twice))
    assert both.interval("utterance") == ARM.interval("utterance") is not None
    assert both.pooled("utterance") == Errors(10, deletions=2)


def test_a_word_that_was_shown_where_nobody_speaks_was_invented_though_it_was_taken_back() -> None:
    timing = replace(judged(1.0), revisions=Revisions(2, 2))
    silent = ClipResult(QUIET, group_of(QUIET), "", Errors(), timing=timing)
    assert replace(ARM, clips=(silent,)).invented_words == 2


def test_the_table_has_columns_for_what_was_measured_and_no_others() -> None:
    headings, (cells,) = to_table([ARM])
    assert headings == ("arm", "utterance WER %", "ja CER %", "other languages WER %", "invented words")
    assert cells[0] == "offline"
    assert cells[1].startswith("20.00 (")
    assert cells[2:] == ("50.00", "0.00", "2")
    live = replace(ARM, clips=(replace(ARM.clips[1], timing=judged(1.0)),))
    headings, (cells,) = to_table([live])
    assert dict(zip(headings, cells, strict=True))["revised %"] == "33.3"


def test_rows_are_json_that_any_program_reads() -> None:
    text = json.dumps(to_row(ARM), allow_nan=False)
    assert json.loads(text)["clips"][-1]["errors"]["rate"] is None


def test_the_page_shows_texts_as_text_whatever_is_in_them() -> None:
    bad = entry("<b>.flac", "<script>alert(1)</script>")
    arm = ArmResult('"><i>', "<u>", (result(bad, "<img src=x onerror=alert(2)>", Errors(3, 3)), ARM.clips[4]))
    headings, cells = to_table([arm])
    machine = Machine("<s>", 2, None, "3", "2", "0")
    page = to_html(Report("<q>", "<a>", machine, "<em>", headings, cells, ()), [arm], Scorer())
    for markup in ("<b>", "<script", "<img", "<i>", "<u>", "<s>", "<a>", "<em>", "<q>"):
        assert markup not in page, markup
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<ins>Thank you.</ins>" in page
    assert "all right" not in page
    assert "http" not in page


def test_axes_end_on_a_round_number_and_have_a_few_ticks() -> None:
    assert Scale(40.0, 0, 100).ticks() == [0, 10, 20, 30, 40]
    assert Scale(40.0, 0, 100)(10.0) == 25
    chart = share_chart([0.25, 0.5, 1.0], "Delay", arm=0)
    assert ">0.50 s<" in chart
    assert ">1.00 s<" in chart


# ----------------------------------------------------------------------------------------------- whole


def test_live_arms_run_once_per_stability(tmp_path: Path) -> None:
    name = "utterance/harvard-spk1-snt1.flac"
    manifest = tmp_path / "manifest.tsv"
    reference = "the child almost hurt the small dog"
    manifest.write_text(
        f"file\tlanguage\tkind\treference\n{AUDIO / name}\ten\tutterance\t{reference}\n", encoding="utf-8"
    )
    options = Options(EngineConfig(), manifest, arms=(Arm.STEPPED,), stabilities=(Stability.FAST, Stability.FINAL))
    fast, final = evaluate.run(options, output=tmp_path / "modes.json")
    assert [fast.name, final.name] == ["stepped fast", "stepped final"]
    assert fast.first_text_s.p50 < final.first_text_s.p50
    assert final.revisions.revised == 0 < final.revisions.shown
    command = json.loads((tmp_path / "modes.json").read_text(encoding="utf-8"))["command"]
    assert command == "tickscribe eval --stability fast --stability final --arm stepped"


def test_a_recording_is_heard_as_often_as_asked_for_later_each_time(tmp_path: Path) -> None:
    table = tmp_path / "words.tsv"
    table.write_text("word\tstart\tend\ndog\t2.0\t2.5\n", encoding="utf-8")
    manifest = tmp_path / "manifest.tsv"
    name = f"{AUDIO}/utterance/harvard-spk1-snt1.flac"
    manifest.write_text(
        f"file\tlanguage\tkind\treference\twords\n{name}\ten\tutterance\tthe\twords.tsv\n", encoding="utf-8"
    )
    options = Options(EngineConfig(), manifest, arms=(Arm.OFFLINE,), n_starts=3)
    (offline,) = evaluate.run(options, output=tmp_path / "starts.json")
    assert [clip.entry.name.removeprefix(name) for clip in offline.clips] == ["", " +20 ms", " +40 ms"]
    assert [len(clip.entry.load()) - len(offline.clips[0].entry.load()) for clip in offline.clips] == [0, 320, 640]
    late_s = [error for clip in offline.clips for error in clip.start_errors_s]
    assert len(late_s) == 3 and max(late_s) - min(late_s) < 0.03, "times count from the beginning of the silence"
    report = json.loads((tmp_path / "starts.json").read_text(encoding="utf-8"))
    assert report["command"] == "tickscribe eval --starts 3 --arm offline"
    assert "1 clips of" in report["setting"] and "each heard 3 times" in report["setting"]


@pytest.mark.timeout(400)  # a server starts, and an engine beside it
def test_three_recordings_from_manifest_to_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (AUDIO / "manifest.tsv").read_text(encoding="utf-8").splitlines()
    wanted = (
        "utterance/harvard-spk1-snt1",
        "utterance/ls-1089-134691-0001",
        "nonspeech/keyboard",
        "utterance/leopard-test-de",
    )
    rows = [f"{AUDIO}/{line}\t" for line in lines[1:] if line.startswith(wanted)]
    words = tmp_path / "words.tsv"
    words.write_text("word\tstart\tend\nthe\t0.3\t0.5\ndog\t2.0\t2.5\n", encoding="utf-8")
    manifest = tmp_path / "manifest.tsv"
    named = [row + "words.tsv" if "harvard" in row else row for row in rows]
    manifest.write_text("\n".join([lines[0] + "\twords", *named]) + "\n", encoding="utf-8")
    output, page = tmp_path / "eval.json", tmp_path / "eval.html"

    options = Options(EngineConfig(), manifest, arms=(Arm.STREAMED, Arm.STEPPED, Arm.OFFLINE), pace=4.0, n_streams=3)
    live, without_clock, offline = evaluate.run(options, output=output, page=page)

    for arm in (live, without_clock, offline):
        assert arm.faults == []
        assert arm.pooled("utterance").rate < 0.25
        assert arm.invented_words == 0
        assert 0 < arm.start_error_s.n <= 2
    for arm in (live, without_clock):
        assert arm.first_text_s.n == 2
        assert arm.word_s.n >= 15
        assert arm.final_s.n == 2
    assert without_clock.final_s.worst < 0.2, "a pause is noticed with the next packet and its block"
    report = json.loads(output.read_text(encoding="utf-8"))
    assert [row["arm"] for row in report["rows"]] == ["streamed", "stepped", "offline"]
    assert "tiny.en does not speak: 1;" in report["setting"]
    assert report["command"] == "tickscribe eval --pace 4 --streams 3 --arm streamed --arm stepped --arm offline"
    assert str(tmp_path) not in report["setting"]
    assert "cut at pauses of 700 ms, other settings" in report["setting"], "live"
    assert "int8 on cpu, 4 branches, cut at pauses of 2000 ms" in report["setting"], "as files"
    assert "harvard-spk1-snt1" in page.read_text(encoding="utf-8")
    assert "invented" in capsys.readouterr().out
