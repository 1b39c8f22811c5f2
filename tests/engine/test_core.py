"""The whole engine, tick by tick: scripted, and with the real model."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper_normalizer.english import EnglishTextNormalizer

from engine.config import Device, EngineConfig
from engine.core import Engine, ModelInfo, build_engine
from engine.errors import UnknownSession
from engine.models.whisper.checkpoint import Checkpoint
from engine.session.agreement import same_word
from engine.session.requests import Request
from engine.session.session import Session
from engine.types import (
    SAMPLE_RATE,
    CloseReason,
    Event,
    Final,
    Partial,
    Samples,
    SessionClosed,
    SessionSettings,
    Stability,
    Suppressed,
    SuppressReason,
    TickStats,
    Word,
)
from tests.conftest import AUDIO, Clip, LoadClip
from tests.engine.scripted import (
    Chunking,
    LevelDetector,
    Phrase,
    Recording,
    ScriptedDecoder,
    ScriptedRunner,
    WordVocabulary,
    chunkings,
    record,
    recordings,
    steady_speech,
)

INFO = ModelInfo(
    "scripted", "cpu", "float32", multilingual=False, languages=("en",), n_mels=80, parameters=0, count_tokens=len
)
MOST_TICKS = 5_000


@dataclass(slots=True)
class Show:
    """An engine, and everything that it tells of each session.

    Attributes:
        told: events by session; nothing may follow a SessionClosed.
        ticks: statistics of every tick.
    """

    engine: Engine
    told: dict[str, list[Event]] = field(default_factory=dict)
    ticks: list[TickStats] = field(default_factory=list)

    def open(self, *session_ids: str, settings: SessionSettings | None = None) -> None:
        for session_id in session_ids:
            self.engine.open(session_id, settings or SessionSettings())
            self.told[session_id] = []

    def tick(self) -> None:
        events, stats = self.engine.tick(float(len(self.ticks)))
        self.ticks.append(stats)
        assert len(self.ticks) < MOST_TICKS, "there is work for ever"
        self.tell(events)

    def settle(self) -> None:
        """Tick until there is nothing to do."""
        while self.engine.has_work():
            self.tick()

    def tell(self, events: list[tuple[str, Event]]) -> None:
        for session_id, event in events:
            assert not self.is_closed(session_id), f"{event} after the end of {session_id}"
            self.told[session_id].append(event)

    def stream(self, audio: Mapping[str, list[Samples]]) -> None:
        """Push the chunks of all sessions side by side, finish each after its last, and answer everything."""
        waiting = {session_id: list(chunks) for session_id, chunks in audio.items()}
        while waiting:
            for session_id, chunks in list(waiting.items()):
                if chunks:
                    self.engine.push(session_id, chunks.pop(0))
                else:
                    self.engine.finish(session_id)
                    del waiting[session_id]
            self.tick()
        self.settle()

    def is_closed(self, session_id: str) -> bool:
        return any(isinstance(event, SessionClosed) for event in self.told[session_id])

    def closed(self, session_id: str) -> SessionClosed:
        (event,) = [event for event in self.told[session_id] if isinstance(event, SessionClosed)]
        return event

    def finals(self, session_id: str) -> list[Final]:
        return [event for event in self.told[session_id] if isinstance(event, Final)]

    def tokens(self, session_id: str) -> tuple[int, ...]:
        return tuple(token for final in self.finals(session_id) for word in final.words for token in word.tokens)

    @property
    def n_used_slots(self) -> int:
        return self.engine._scheduler.slots.n_used


def make_show(
    recordings: Mapping[str, Recording], *, n_slots: int = 4, interim: bool = True, fault: Exception | None = None
) -> Show:
    """A scripted engine with one open session per recording."""
    decoders = {session_id: ScriptedDecoder(recording) for session_id, recording in recordings.items()}
    runner = ScriptedRunner(decoders, fault=fault)
    show = Show(Engine(EngineConfig(n_slots=n_slots), INFO, runner, LevelDetector(), WordVocabulary()))
    show.open(*recordings, settings=SessionSettings(interim=interim))
    return show


def two_speakers() -> dict[str, Recording]:
    phrases = [Phrase(600, (300,) * 6), Phrase(900, (300,) * 6)]
    return {"bad": record(phrases, trailing_ms=900), "good": record(phrases, trailing_ms=900, first_token=100)}


def in_steps(recordings: Mapping[str, Recording], step_ms: int = 100) -> dict[str, list[Samples]]:
    return {session_id: Chunking(step_ms).split(recording.samples) for session_id, recording in recordings.items()}


# ------------------------------------------------------------------------------------------------ sessions


@given(speakers=st.lists(st.tuples(recordings(), chunkings), min_size=1, max_size=5), n_slots=st.integers(1, 4))
@settings(max_examples=25)
def test_everybody_gets_their_own_words_whoever_else_speaks(
    speakers: list[tuple[Recording, Chunking]], n_slots: int
) -> None:
    sessions = {str(number): recording for number, (recording, _) in enumerate(speakers)}
    show = make_show(sessions, n_slots=n_slots)
    show.stream({str(n): chunking.split(recording.samples) for n, (recording, chunking) in enumerate(speakers)})
    for session_id, recording in sessions.items():
        assert show.tokens(session_id) == recording.tokens
        assert show.told[session_id][-1] == SessionClosed(CloseReason.FINISHED)
    assert show.n_used_slots == 0
    assert [stats.tick for stats in show.ticks] == list(range(1, len(show.ticks) + 1))
    assert show.ticks[-1].sessions == show.ticks[-1].speaking == show.ticks[-1].waiting == 0


def test_all_windows_of_a_tick_go_through_the_encoder_together() -> None:
    sessions = {name: steady_speech(10) for name in "abc"}
    show = make_show(sessions)
    show.stream(in_steps(sessions))
    assert max(stats.encoder_batch for stats in show.ticks) == 3
    assert max(stats.encoder_runs for stats in show.ticks) == 1


def test_whoever_finds_no_slot_waits_and_is_answered() -> None:
    sessions = {name: steady_speech(10) for name in "abcd"}
    show = make_show(sessions, n_slots=1)
    show.stream(in_steps(sessions))
    assert max(stats.waiting for stats in show.ticks) > 0
    assert max(wait for stats in show.ticks for wait in stats.queue_wait_ms) > 0
    assert all(show.tokens(name) == recording.tokens for name, recording in sessions.items())


def test_a_session_without_partials_gets_only_finals() -> None:
    sessions = two_speakers()
    show = make_show(sessions, interim=False)
    show.stream(in_steps(sessions))
    for name, recording in sessions.items():
        assert not any(isinstance(event, Partial) for event in show.told[name])
        assert show.tokens(name) == recording.tokens


def test_there_is_work_exactly_while_something_has_come_or_runs() -> None:
    show = make_show(two_speakers())
    assert not show.engine.has_work()
    show.engine.push("good", np.zeros(SAMPLE_RATE, dtype=np.float32))
    assert show.engine.has_work()
    show.settle()
    assert not show.engine.has_work()
    show.engine.finish("good")
    assert show.engine.has_work()
    show.settle()
    assert show.closed("good").reason is CloseReason.FINISHED
    assert not show.engine.has_work()


def test_a_fast_file_is_heard_a_few_seconds_per_tick() -> None:
    """So that it does not hold up the others."""
    recording = steady_speech(150)
    show = make_show({"file": recording})
    show.stream({"file": [recording.samples]})
    assert show.tokens("file") == recording.tokens
    assert len([stats for stats in show.ticks if stats.encoder_batch]) > 2


def test_abandoned_work_is_dropped_and_its_slots_go_to_others() -> None:
    sessions = two_speakers()
    show = make_show(sessions, n_slots=1)
    chunks = in_steps(sessions)
    while not show.n_used_slots:
        show.engine.push("bad", chunks["bad"].pop(0))
        show.tick()
    show.tell([show.engine.abandon("bad")])
    assert show.n_used_slots == 0
    assert show.told["bad"][-1] == SessionClosed(CloseReason.ABANDONED)
    show.stream({"good": chunks["good"]})
    assert show.tokens("good") == sessions["good"].tokens


def test_a_closed_session_is_unknown() -> None:
    show = make_show(two_speakers())
    show.engine.abandon("bad")
    for call in (
        lambda: show.engine.push("bad", np.zeros(1, dtype=np.float32)),
        lambda: show.engine.finish("bad"),
        lambda: show.engine.abandon("bad"),
    ):
        with pytest.raises(UnknownSession, match="bad"):
            call()


def test_closing_all_tells_everybody_once_and_keeps_nothing() -> None:
    sessions = {name: steady_speech(20) for name in "abc"}
    show = make_show(sessions, n_slots=2)
    for name, recording in sessions.items():
        show.engine.push(name, recording.samples)
    show.tick()
    assert show.n_used_slots == 2
    show.tell(show.engine.close_all(CloseReason.SHUTDOWN, "Bye."))
    assert [show.closed(name) for name in sessions] == [SessionClosed(CloseReason.SHUTDOWN, "Bye.")] * 3
    assert show.n_used_slots == 0
    assert show.engine.close_all(CloseReason.SHUTDOWN, "Bye.") == []


# ------------------------------------------------------------------------------------------------ faults


def break_session(monkeypatch: pytest.MonkeyPatch, method: str, session_id: str, *, calls: int = 0) -> None:
    """Let a method of one session raise after so many calls."""
    original = getattr(Session, method)
    left = [calls]

    def broken(self: Session, *args: object) -> object:
        if self.id == session_id:
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError(f"no {method} today")
        return original(self, *args)

    monkeypatch.setattr(Session, method, broken)


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        *((method, calls) for method in ("accept", "unheard", "hear", "advance", "apply") for calls in (0, 3)),
        ("finish", 0),
    ],
)
def test_a_fault_in_one_session_closes_that_session_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str, calls: int
) -> None:
    sessions = two_speakers()
    show = make_show(sessions)
    break_session(monkeypatch, method, "bad", calls=calls)
    chunks = in_steps(sessions)
    while chunks:
        for session_id in list(chunks):
            if show.is_closed(session_id):
                del chunks[session_id]
            elif chunks[session_id]:
                show.engine.push(session_id, chunks[session_id].pop(0))
            else:
                show.engine.finish(session_id)
                del chunks[session_id]
        show.settle()
    closed = show.closed("bad")
    assert closed.reason is CloseReason.FAILED
    assert closed.message.endswith("Please start it again.")
    assert show.tokens("good") == sessions["good"].tokens
    assert show.closed("good").reason is CloseReason.FINISHED
    assert show.n_used_slots == 0
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "bad" in record.getMessage() and record.exc_info is not None
    with pytest.raises(UnknownSession):
        show.engine.push("bad", np.zeros(1, dtype=np.float32))


def test_two_results_of_one_tick_cannot_fail_a_session_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = two_speakers()
    show = make_show(sessions)
    break_session(monkeypatch, "apply", "bad")
    show.engine.push("bad", sessions["bad"].samples)  # both utterances are over at once
    show.engine.finish("bad")
    show.settle()
    assert show.closed("bad").reason is CloseReason.FAILED
    assert show.n_used_slots == 0


def test_a_fault_between_ticks_is_told_once_even_if_everything_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    show = make_show(two_speakers())
    break_session(monkeypatch, "accept", "bad")
    show.engine.push("bad", np.zeros(1, dtype=np.float32))
    show.tell(show.engine.close_all(CloseReason.SHUTDOWN, "Bye."))
    assert show.closed("bad").reason is CloseReason.FAILED
    assert show.closed("good").reason is CloseReason.SHUTDOWN


def test_a_fault_of_the_model_is_nobodys_own() -> None:
    show = make_show({"a": steady_speech(5)}, fault=RuntimeError("out of order"))
    show.engine.push("a", steady_speech(5).samples)
    with pytest.raises(RuntimeError, match="out of order"):
        show.settle()


class LoopingDecoder(ScriptedDecoder):
    """Says the same word without end."""

    def tokens(self, request: Request) -> list[int]:
        return [7] * 100


def test_every_window_that_is_decoded_again_is_told_and_counted() -> None:
    recording = record([Phrase(600, (300,) * 3)], trailing_ms=1000)
    runner = ScriptedRunner({"a": LoopingDecoder(recording)})
    show = Show(Engine(EngineConfig(n_slots=2), INFO, runner, LevelDetector(), WordVocabulary()))
    show.open("a", settings=SessionSettings(interim=False))
    show.stream({"a": [recording.samples]})
    (told,) = [event for event in show.told["a"] if isinstance(event, Suppressed)]
    assert (told.reason, told.text, told.utterance_id) == (SuppressReason.LOOP, "w7", 0)
    assert [reason for stats in show.ticks for reason in stats.suppressed] == [SuppressReason.LOOP]
    assert sum(stats.retries for stats in show.ticks) == 1


# ------------------------------------------------------------------------------------------------ the real model


@pytest.fixture(scope="module")
def engine() -> Engine:
    """What `serve` runs on a CPU."""
    engine = build_engine(EngineConfig(device=Device.CPU, n_slots=8))
    engine.warm_up()
    return engine


def test_an_engine_tells_what_is_loaded(engine: Engine) -> None:
    info = engine.info
    assert (info.name, info.device, info.multilingual, info.languages) == ("tiny.en", "cpu", False, ("en",))
    assert info.n_mels == 80
    assert 36_000_000 < info.parameters < 40_000_000
    assert "function" not in repr(info), "it is what the log says when the server is ready"


def test_building_an_engine_does_not_import_the_compiler() -> None:
    """It takes seconds, and one random initialisation on the meta device is enough to pull it in."""
    script = (
        "import sys; from engine.config import EngineConfig; from engine.core import build_engine; "
        "build_engine(EngineConfig()); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_eight_speakers_at_once_each_get_their_own_words(
    engine: Engine, english_clips: tuple[Clip, ...], load_clip: LoadClip
) -> None:
    clips = {clip.speaker: clip for clip in english_clips[:8]}
    assert len(clips) == 8
    show = Show(engine)
    show.open(*clips)
    show.stream({speaker: Chunking(1000).split(load_clip(clip.name)) for speaker, clip in clips.items()})
    normalise = EnglishTextNormalizer()
    for speaker, clip in clips.items():
        text = " ".join(final.text for final in show.finals(speaker))
        assert jiwer.wer(normalise(clip.reference), normalise(text)) < 0.25, f"{speaker}: {text}"
        assert show.closed(speaker).reason is CloseReason.FINISHED
    batches = [stats.encoder_batch for stats in show.ticks if stats.encoder_batch]
    assert max(batches) > 1
    assert all(stats.encoder_runs <= 1 for stats in show.ticks if not stats.retries)
    assert show.n_used_slots == 0


@pytest.mark.timeout(300)
def test_cutting_speech_at_eight_seconds_costs_few_words(
    engine: Engine, english_clips: tuple[Clip, ...], load_clip: LoadClip
) -> None:
    """A minute of speech in which no pause is long enough to end an utterance."""
    clips = english_clips[:9]
    speech = np.concatenate([load_clip(clip.name) for clip in clips])
    normalise = EnglishTextNormalizer()
    reference = normalise(" ".join(clip.reference for clip in clips))
    errors = {}
    for longest_s in (30.0, 8.0):
        show = Show(engine)
        show.open("long", settings=SessionSettings(language="en", pause_ms=3000, max_utterance_s=longest_s))
        show.stream({"long": Chunking(500).split(speech)})
        finals = show.finals("long")
        assert all(final.end - final.start <= longest_s * SAMPLE_RATE for final in finals)
        assert len(finals) > len(speech) / SAMPLE_RATE / longest_s
        errors[longest_s] = jiwer.wer(reference, normalise(" ".join(final.text for final in finals)))
    assert errors[8.0] <= errors[30.0] + 0.02


NONSPEECH = ("silence-10s", "keyboard-typing", "phone-beeps-12s")


def words_where_nobody_speaks(engine: Engine, load_clip: LoadClip, settings: SessionSettings) -> str:
    """Everything that is shown of the recordings without speech, partials included."""
    show = Show(engine)
    show.open(*NONSPEECH, settings=settings)
    show.stream({name: Chunking(100).split(load_clip(f"nonspeech/{name}.flac")) for name in NONSPEECH})
    shown = ""
    for event in (event for told in show.told.values() for event in told):
        match event:
            case Partial():
                shown += event.committed + event.tentative
            case Final():
                shown += event.text
    return shown


@pytest.mark.parametrize("interim", [True, False])
@pytest.mark.parametrize("threshold", [0.5, 0.3])
def test_where_nobody_speaks_nothing_is_written(
    engine: Engine, load_clip: LoadClip, threshold: float, interim: bool
) -> None:
    """Also where more counts as speech than by default."""
    settings = SessionSettings(interim=interim, threshold=threshold, min_speech_ms=0, stability=Stability.FAST)
    assert words_where_nobody_speaks(engine, load_clip, settings) == ""


def test_a_multilingual_model_writes_nothing_where_nobody_speaks(base: Checkpoint, load_clip: LoadClip) -> None:
    engine = build_engine(EngineConfig(model=base.name, device=Device.CPU, n_slots=4))
    assert words_where_nobody_speaks(engine, load_clip, SessionSettings(stability=Stability.FAST)) == ""


def known_words(name: str) -> list[tuple[str, float, float]]:
    """Words of a recording with their starts and ends in seconds."""
    lines = (AUDIO / name).with_suffix(".tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [(word, float(start), float(end)) for word, start, end in (line.split("\t") for line in lines)]


def time_errors(words: list[Word], known: list[tuple[str, float, float]], offset: int = 0) -> tuple[float, float]:
    """Median absolute errors of starts and ends in seconds, over the words that were heard rightly: most of them.

    Args:
        offset: sample at which the recording of the known words began.
    """
    heard = [same_word(word.text) for word in words]
    blocks = SequenceMatcher(
        None, [same_word(word) for word, _, _ in known], heard, autojunk=False
    ).get_matching_blocks()
    pairs = [(known[b.a + i], words[b.b + i]) for b in blocks for i in range(b.size)]
    assert len(pairs) >= 0.75 * len(known), heard
    starts = [abs((word.start - offset) / SAMPLE_RATE - start) for (_, start, _), word in pairs]
    ends = [abs((word.end - offset) / SAMPLE_RATE - end) for (_, _, end), word in pairs]
    return float(np.median(starts)), float(np.median(ends))


def words_of(finals: list[Final]) -> list[Word]:
    """All words, which must be in order, and inside of what was heard."""
    words = [word for final in finals for word in final.words]
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert all(final.start <= word.start and word.end <= final.heard for final in finals for word in final.words)
    return words


@pytest.mark.parametrize("name", ["words/espeak-apart.flac", "words/espeak-near.flac"])
def test_words_have_the_times_at_which_they_were_said(engine: Engine, load_clip: LoadClip, name: str) -> None:
    show = Show(engine)
    show.open("a")
    show.stream({"a": Chunking(100).split(load_clip(name))})
    start_error, end_error = time_errors(words_of(show.finals("a")), known_words(name))
    assert start_error <= 0.2 and end_error <= 0.2


def test_word_times_do_not_drift_in_half_an_hour_with_pauses(engine: Engine, load_clip: LoadClip) -> None:
    name = "words/espeak-near.flac"
    clip, pause = load_clip(name), np.zeros(600 * SAMPLE_RATE + 777, dtype=np.float32)
    show = Show(engine)
    show.open("a")
    show.stream({"a": [*[clip, *np.array_split(pause, 20)] * 3, clip]})
    last = 3 * (len(clip) + len(pause))
    assert last > 30 * 60 * SAMPLE_RATE
    words = words_of(show.finals("a"))
    errors = [
        time_errors([word for word in words if begin <= word.start < begin + len(clip)], known_words(name), begin)
        for begin in (0, last)
    ]
    assert errors[1] == pytest.approx(errors[0], abs=0.05) and max(errors[1]) <= 0.2


def test_japanese_is_shown_in_whole_characters(
    base: Checkpoint, audio_manifest: tuple[Clip, ...], load_clip: LoadClip
) -> None:
    (clip,) = [clip for clip in audio_manifest if clip.kind == "utterance" and clip.language == "ja"]
    show = Show(build_engine(EngineConfig(model=base.name, device=Device.CPU, n_slots=2)))
    show.open("ja")
    for chunk in Chunking(500).split(load_clip(clip.name)):
        show.engine.push("ja", chunk)
        show.settle()
    show.engine.finish("ja")
    show.settle()
    partials = [event for event in show.told["ja"] if isinstance(event, Partial)]
    finals = show.finals("ja")
    shown = [partial.committed + partial.tentative for partial in partials] + [final.text for final in finals]
    assert len(partials) > 1 and "\ufffd" not in "".join(shown)
    assert partials[-1].language == finals[-1].language == "ja"
    assert 0.5 < finals[-1].language_prob < 1
    expected = set(clip.reference)
    assert len(expected & set("".join(final.text for final in finals))) > 0.5 * len(expected)
