"""Laws of a session, with a scripted decoder that knows what was said."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.session.endpoint import BLOCK_SAMPLES, EndpointRules
from engine.session.left_context import MOST_TOKENS
from engine.session.requests import FinishReason, Hypothesis, Request, Window
from engine.session.session import Session
from engine.types import (
    SAMPLE_RATE,
    SETTING_RANGES,
    EndReason,
    Event,
    Final,
    Partial,
    Progress,
    Samples,
    SessionSettings,
    SpeechStarted,
    Stability,
    Suppressed,
    SuppressReason,
    Word,
)
from tests.engine.scripted import (
    MISHEARD,
    Chunking,
    LevelDetector,
    Phrase,
    Recording,
    ScriptedDecoder,
    Spoken,
    WordVocabulary,
    chunkings,
    ms,
    record,
    recordings,
    steady_speech,
)

AT_ONCE = Chunking()
BY_100_MS = Chunking(step_ms=100)
MOST_ROUNDS = 3_000  # a session that is not done by then waits for something that never comes


def make_session(settings: SessionSettings) -> Session:
    return Session(
        "s",
        settings,
        EndpointRules.of(settings, pause_ms=500),
        WordVocabulary(),
        partial_interval=ms(500),
    )


@dataclass(slots=True)
class Play:
    """Plays the engine around one session, in the order of its tick, and checks the laws on the way.

    Attributes:
        delays: how many rounds each next answer takes; the last one holds for ever.
        overtaken: requests that a newer one of their utterance made worthless; they are answered all the same.
    """

    session: Session
    decoder: ScriptedDecoder
    delays: Iterable[int] = (0,)
    events: list[Event] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    overtaken: list[Request] = field(default_factory=list)
    pending: list[tuple[int, Request]] = field(default_factory=list)
    n_pushed: int = 0
    n_rounds: int = 0

    def __post_init__(self) -> None:
        delays = list(self.delays)
        self.delays = itertools.chain(delays, itertools.repeat(delays[-1]))

    def push(self, samples: Samples) -> None:
        self.session.accept(samples)
        self.n_pushed += len(samples)
        self.round()

    def finish(self) -> None:
        self.session.finish()
        self.n_pushed += -self.n_pushed % BLOCK_SAMPLES
        while not self.session.is_done:
            self.round()

    def round(self) -> None:
        self.n_rounds += 1
        assert self.n_rounds < MOST_ROUNDS, "the session waits for something that never comes"
        self.tell(self.session.hear(LevelDetector().hear(self.session.unheard())))
        requests, told = self.session.advance(now=float(self.n_rounds))
        for request in requests:
            self.ask(request)
        self.tell(told)
        due = [request for at, request in self.pending if at <= self.n_rounds]
        self.pending = [(at, request) for at, request in self.pending if at > self.n_rounds]
        for request in due:
            answer = self.session.apply(request, self.decoder.hypothesis(request))
            assert request not in self.overtaken or answer == [], "a late hypothesis is ignored"
            self.tell(answer)

    def ask(self, request: Request) -> None:
        in_flight = [r for _, r in self.pending if r.utterance_id == request.utterance_id and r not in self.overtaken]
        assert not in_flight or (request.is_final and not in_flight[0].is_final), "one request in flight per utterance"
        self.overtaken += in_flight
        window = request.window
        assert window.end <= self.n_pushed
        audio = self.decoder.recording.samples[window.start : window.end]
        assert np.array_equal(request.audio[: len(audio)], audio) and not request.audio[len(audio) :].any()
        lead = request.prefix[: request.n_left_context]
        assert list(lead) == sorted(set(lead)), "what was said before, in the order of speech"
        self.requests.append(request)
        self.session.start(request)
        assert isinstance(self.delays, itertools.chain)
        self.pending.append((self.n_rounds + next(self.delays), request))

    def tell(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Partial | Final):
                assert 0 <= event.start <= event.end <= event.heard <= self.n_pushed
        self.events += events

    @property
    def finals(self) -> list[Final]:
        return [event for event in self.events if isinstance(event, Final)]

    @property
    def partials(self) -> list[Partial]:
        return [event for event in self.events if isinstance(event, Partial)]

    @property
    def said(self) -> list[int]:
        return [token for final in self.finals for word in final.words for token in word.tokens]


def play(
    recording: Recording,
    chunking: Chunking = BY_100_MS,
    *,
    delays: Iterable[int] = (0,),
    interim: bool = True,
    pause_ms: int | None = None,
    max_utterance_s: float = 30.0,
    language: str | None = None,
    stability: Stability = Stability.BALANCED,
) -> Play:
    """Stream a recording through a session and finish it."""
    chosen = SessionSettings(language, interim, pause_ms=pause_ms, max_utterance_s=max_utterance_s, stability=stability)
    session = make_session(chosen)
    playing = Play(session, ScriptedDecoder(recording), delays)
    for chunk in chunking.split(recording.samples):
        playing.push(chunk)
    playing.finish()
    return playing


delays = st.lists(st.integers(0, 12), min_size=1, max_size=8)
languages = st.sampled_from(["en", None])  # behind a language that is given, utterances have a lead
utterance_lengths = st.just(30.0) | st.floats(*SETTING_RANGES["max_utterance_s"])


# ------------------------------------------------------------------------------------------------ laws


@given(chunking=chunkings, recording=recordings(), delays=delays, interim=st.booleans())
@settings(max_examples=60)
def test_any_chunking_gives_the_same_utterances(
    chunking: Chunking, recording: Recording, delays: list[int], interim: bool
) -> None:
    whole = play(recording, AT_ONCE, interim=False)
    parts = play(recording, chunking, delays=delays, interim=interim)
    assert parts.finals == whole.finals
    assert parts.said == list(recording.tokens)


@given(chunking=chunkings, n_words=st.integers(60, 170), word_ms=st.integers(250, 600), delays=delays)
@settings(max_examples=15)
def test_without_partials_even_long_speech_is_cut_at_the_same_places(
    chunking: Chunking, n_words: int, word_ms: int, delays: list[int]
) -> None:
    recording = steady_speech(n_words, word_ms=word_ms, trailing_ms=900)
    whole = play(recording, AT_ONCE, interim=False)
    parts = play(recording, chunking, interim=False, delays=delays)
    assert parts.finals == whole.finals
    assert [r.window for r in parts.requests] == [r.window for r in whole.requests]


@given(
    chunking=chunkings,
    n_words=st.integers(50, 170),
    word_ms=st.integers(200, 600),
    trailing_ms=st.integers(0, 900),
    delays=delays,
    interim=st.booleans(),
    max_utterance_s=utterance_lengths,
    language=languages,
)
@settings(max_examples=40)
def test_long_speech_without_a_pause_loses_and_doubles_no_word(
    chunking: Chunking,
    n_words: int,
    word_ms: int,
    trailing_ms: int,
    delays: list[int],
    interim: bool,
    max_utterance_s: float,
    language: str | None,
) -> None:
    recording = steady_speech(n_words, word_ms=word_ms, trailing_ms=trailing_ms)
    playing = play(
        recording, chunking, delays=delays, interim=interim, max_utterance_s=max_utterance_s, language=language
    )
    assert playing.said == list(recording.tokens)
    assert " ".join(final.text for final in playing.finals) == recording.text
    reasons = [final.reason for final in playing.finals]
    assert set(reasons[:-1]) <= {EndReason.MAX_LENGTH}
    assert all(before.end == after.start for before, after in itertools.pairwise(playing.finals))
    longest = int(max_utterance_s * SAMPLE_RATE)
    assert len(playing.finals) > 1 or ms(n_words * word_ms) <= longest
    assert all(final.end - final.start <= longest for final in playing.finals)
    assert all(request.window.end - request.window.start <= longest for request in playing.requests)


@given(
    chunking=chunkings,
    recording=recordings(max_phrase_words=90),
    delays=delays,
    max_utterance_s=utterance_lengths,
    stability=st.sampled_from(Stability),
    language=languages,
)
@settings(max_examples=60)
def test_the_laws_of_a_transcript(
    chunking: Chunking,
    recording: Recording,
    delays: list[int],
    max_utterance_s: float,
    stability: Stability,
    language: str | None,
) -> None:
    playing = play(
        recording,
        chunking,
        delays=delays,
        max_utterance_s=max_utterance_s,
        stability=stability,
        language=language,
    )
    assert playing.said == list(recording.tokens)
    finals = playing.finals
    assert [final.utterance_id for final in finals] == list(range(len(finals))), "finals in the order of speech"
    assert [final.start for final in finals] == sorted(final.start for final in finals)
    for final in finals:
        of_utterance = [e for e in playing.events if getattr(e, "utterance_id", None) == final.utterance_id]
        started, *partials, last = of_utterance
        assert isinstance(started, SpeechStarted) and started.start == final.start
        assert last is final, "a final is never revised"
        committed = ""
        for revision, partial in enumerate(partials, start=1):
            assert isinstance(partial, Partial)
            assert partial.revision == revision
            assert partial.committed.startswith(committed), "committed text only grows"
            assert partial.language == "en"
            assert not partial.tentative or stability is not Stability.FINAL
            committed = partial.committed
        assert f" {final.text}".startswith(committed), "the final starts with what was committed"
        assert all(final.start <= word.start <= word.end for word in final.words)
        assert all(final.start <= segment.start <= segment.end for segment in final.segments)
    settled = [event.settled for event in playing.events if isinstance(event, Progress)]
    assert settled == sorted(set(settled))


@given(
    recording=recordings(max_phrase_words=60),
    delays=delays,
    pause_ms=st.integers(100, 5000),
    interim=st.booleans(),
    max_utterance_s=utterance_lengths,
    language=languages,
)
@settings(max_examples=60)
def test_every_session_ends_whatever_the_pause_and_the_longest_utterance(
    recording: Recording,
    delays: list[int],
    pause_ms: int,
    interim: bool,
    max_utterance_s: float,
    language: str | None,
) -> None:
    playing = play(
        recording,
        delays=delays,
        interim=interim,
        pause_ms=pause_ms,
        max_utterance_s=max_utterance_s,
        language=language,
    )
    started = [event for event in playing.events if isinstance(event, SpeechStarted)]
    assert [e.utterance_id for e in started] == [final.utterance_id for final in playing.finals]
    assert playing.said == list(recording.tokens)
    longest = int(max_utterance_s * SAMPLE_RATE)
    assert all(request.window.end - request.window.start <= longest for request in playing.requests)


def test_the_faster_mode_shows_a_word_first_and_the_most_stable_one_last() -> None:
    recording = steady_speech(24, trailing_ms=900)
    shown: dict[Stability, list[int]] = {}
    for stability in Stability:
        partials = play(recording, stability=stability, language="en").partials
        texts = [(partial.end, partial.committed + partial.tentative) for partial in partials]
        shown[stability] = [next(end for end, text in texts if f" w{n}" in text) for n in range(8)]
    fast, balanced, final = (np.array(shown[stability]) for stability in Stability)
    assert (fast <= balanced).all() and (balanced <= final).all()
    assert fast.sum() < balanced.sum() < final.sum()


# ------------------------------------------------------------------------------------------------ forms


class WaveringDecoder(ScriptedDecoder):
    """Says the right words, each in a form that changes from window to window behind the forced prefix."""

    def listen(self, window: Window) -> list[Spoken]:
        heard = super().listen(window)
        return [replace(word, token=word.token + FORM * ((word.token + window.end // 512) % 3)) for word in heard]

    def tokens(self, request: Request) -> list[int]:
        rest = [word.token for word in self.listen(request.window)[len(request.prefix) :]]
        assert [token % FORM for token in request.prefix] == list(range(len(request.prefix)))
        return [*request.prefix, *rest]

    def words(self, request: Request) -> tuple[Word, ...]:
        times = self.listen(request.window)
        return tuple(
            Word(FormVocabulary().decode([token]), (token,), word.start, word.end, 0.9)
            for token, word in zip(self.tokens(request), times, strict=True)
        )


FORM = 10_000_000  # beyond any misheard word


class FormVocabulary(WordVocabulary):
    """Tokens beyond `FORM` are the same word with another case or a comma."""

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join((f" w{t}", f" W{t - FORM}", f" w{t - 2 * FORM},")[t // FORM] for t in tokens)


@given(n_words=st.integers(1, 30), word_ms=st.integers(200, 600), delays=delays, stability=st.sampled_from(Stability))
@settings(max_examples=30)
def test_a_form_that_wavers_delays_nothing_and_never_changes_committed_text(
    n_words: int, word_ms: int, delays: list[int], stability: Stability
) -> None:
    recording = steady_speech(n_words, word_ms=word_ms, trailing_ms=900)
    steady, wavering = (
        Play(
            Session(
                "s",
                SessionSettings("en", stability=stability),
                EndpointRules(),
                vocabulary,
                partial_interval=ms(500),
            ),
            decoder,
            delays,
        )
        for vocabulary, decoder in (
            (WordVocabulary(), ScriptedDecoder(recording)),
            (FormVocabulary(), WaveringDecoder(recording)),
        )
    )
    for playing in (steady, wavering):
        for chunk in BY_100_MS.split(recording.samples):
            playing.push(chunk)
        playing.finish()
    final = wavering.finals[0]
    committed = ""
    for partial in wavering.partials:
        assert partial.utterance_id == final.utterance_id
        assert partial.committed.startswith(committed)
        committed = partial.committed
    assert f" {final.text}".startswith(committed)
    assert " ".join(word.text.strip() for word in final.words) == final.text
    assert commit_times(wavering) == commit_times(steady)


COMMA = 20_000_000


class SignVocabulary(WordVocabulary):
    """Knows a comma by itself, which belongs to the word before it, if that is there."""

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join("," if token == COMMA else f" w{token}" for token in tokens)

    def split_words(self, tokens: Sequence[int], language: str | None) -> list[list[int]]:
        words: list[list[int]] = []
        for token in tokens:
            if token == COMMA and words:
                words[-1].append(token)
            else:
                words.append([token])
        return words


class LateCommaDecoder(ScriptedDecoder):
    """Hears a comma behind the first word once that is committed."""

    def tokens(self, request: Request) -> list[int]:
        spoken = [word.token for word in self.listen(request.window)]
        has_comma = request.prefix and request.prefix[1:2] in ((), (COMMA,))
        return [spoken[0], COMMA, *spoken[1:]] if has_comma else spoken

    def words(self, request: Request) -> tuple[Word, ...]:
        decode, split = SignVocabulary().decode, SignVocabulary().split_words
        groups = split(self.tokens(request), "en")
        spoken = self.listen(request.window)
        return tuple(Word(decode(g), tuple(g), w.start, w.end, 0.9) for g, w in zip(groups, spoken, strict=True))


def test_a_comma_behind_the_committed_words_shifts_none_of_those_behind_it() -> None:
    recording = record([Phrase(600, (700,) * 6)], trailing_ms=1200)
    with_comma, without = (
        Play(
            Session("s", SessionSettings("en"), EndpointRules(), SignVocabulary(), partial_interval=ms(500)),
            decoder,
        )
        for decoder in (LateCommaDecoder(recording), ScriptedDecoder(recording))
    )
    for playing in (with_comma, without):
        for chunk in BY_100_MS.split(recording.samples):
            playing.push(chunk)
        playing.finish()
    assert with_comma.finals[0].text == "w0, w1 w2 w3 w4 w5"
    assert [word.tokens for word in with_comma.finals[0].words][:2] == [(0, COMMA), (1,)]
    assert commit_times(with_comma) == commit_times(without)


def commit_times(playing: Play) -> dict[int, int]:
    """The end of the window in which each number of words was first committed."""
    return {partial.committed.count(" "): partial.end for partial in reversed(playing.partials) if partial.committed}


# ------------------------------------------------------------------------------------------------ finals


def test_speech_decoded_during_the_pause_becomes_the_final_without_another_request() -> None:
    playing = play(record([Phrase(600, (300,) * 8)], trailing_ms=1500))
    (final,) = playing.finals
    assert final.reason is EndReason.PAUSE
    assert [word.tokens for word in final.words] == [(token,) for token in range(8)]
    assert not any(request.is_final for request in playing.requests)


def test_a_request_of_the_pause_that_is_still_in_flight_becomes_the_final() -> None:
    recording = record([Phrase(600, (220,) * 2)], trailing_ms=3000)
    playing = play(recording, delays=[0, 9])
    assert len(playing.finals) == 1 and playing.said == [0, 1]
    assert len(playing.requests) == 2 and not any(request.is_final for request in playing.requests)


def test_finish_flushes_the_open_utterance() -> None:
    playing = play(record([Phrase(600, (300,) * 8)]))
    (final,) = playing.finals
    assert final.reason is EndReason.FINISHED
    assert playing.said == list(range(8))


def test_a_final_has_words_even_if_its_window_was_decoded_while_the_speaker_went_on() -> None:
    """The last partial and the final may show the same audio, but only the final's request asks for words."""
    recording = record([Phrase(512, (512,) * 4)])
    playing = play(recording, AT_ONCE)
    playing_by_block = play(recording, Chunking(step_ms=32))
    assert playing.said == playing_by_block.said == [0, 1, 2, 3]


def test_finals_wait_for_the_one_before() -> None:
    recording = record([Phrase(600, (300,) * 3), Phrase(900, (300,) * 3)], trailing_ms=900)
    playing = play(recording, interim=False, delays=[60, 0])
    assert [final.utterance_id for final in playing.finals] == [0, 1]
    assert playing.said == list(range(6))


@pytest.mark.parametrize("language", ["en", None])
def test_speech_that_opens_and_outgrows_the_longest_utterance_in_one_chunk_is_cut(language: str | None) -> None:
    """Five seconds were asked for, but a tick listened to eight, so that what lay between was never decoded."""
    recording = record([Phrase(72, (386,) * 18), Phrase(488, (200,))])
    playing = play(recording, AT_ONCE, max_utterance_s=5.0, language=language)
    assert playing.said == list(recording.tokens)
    assert all(final.end - final.start <= 5 * SAMPLE_RATE for final in playing.finals)


def test_a_word_that_begins_in_the_last_block_of_the_pause_belongs_to_the_next_utterance_alone() -> None:
    """One millisecond of it was shown behind the utterance before."""
    recording = record([Phrase(0, (301,)), Phrase(327, (200,))])
    playing = play(recording, pause_ms=309, interim=False)
    assert [[word.tokens for word in final.words] for final in playing.finals] == [[(0,)], [(1,)]]


@pytest.mark.parametrize("word_ms", [150, 300, 450, 600])
def test_long_speech_in_real_time_is_cut_between_words(word_ms: int) -> None:
    """Commits every half second once left no place to cut: the window filled up and the cut went through a word."""
    recording = steady_speech(80_000 // word_ms, word_ms=word_ms)
    playing = play(recording, delays=[2])
    assert playing.said == list(recording.tokens)
    assert len(playing.finals) >= 3


def test_without_partials_there_is_one_request_per_utterance() -> None:
    recording = record([Phrase(600, (300,) * 20), Phrase(900, (300,) * 3)], trailing_ms=900)
    playing = play(recording, interim=False)
    assert playing.partials == []
    assert [request.is_final for request in playing.requests] == [True, True]


def test_silence_is_never_decoded() -> None:
    playing = play(record([], trailing_ms=20_000))
    assert playing.requests == [] and playing.finals == []
    assert isinstance(playing.events[-1], Progress)
    assert playing.events[-1].settled > 18 * SAMPLE_RATE


def test_a_window_shows_the_pre_roll_and_no_more_silence_than_the_hangover() -> None:
    rules = EndpointRules()
    playing = play(record([Phrase(1024, (320,) * 4)], trailing_ms=2000), interim=False)
    (request,) = playing.requests
    start, end = ms(1024), ms(1024 + 4 * 320)
    assert request.window.start == start - rules.pre_roll_samples
    assert end + rules.hangover_samples <= request.window.end <= end + rules.hangover_samples + BLOCK_SAMPLES


@pytest.mark.parametrize("n_blocks", [936, 937, 938, 1000, 2000])
def test_a_full_window_without_a_word_is_cut_at_its_end(n_blocks: int) -> None:
    """A cut at the last sample of the session once left an utterance that reached past the end of the audio."""
    playing = play(Recording(np.full(n_blocks * BLOCK_SAMPLES, 0.9, dtype=np.float32), ()))
    assert {final.text for final in playing.finals} == {""}
    assert playing.finals[-1].reason is EndReason.FINISHED
    assert playing.finals[-1].end == n_blocks * BLOCK_SAMPLES


def test_a_pause_right_at_the_end_of_a_full_window_does_not_stop_the_session() -> None:
    """Neither a cut nor a pause was possible: the session heard no more of the utterance, for ever."""
    for last_word_ms in range(29_000, 30_500, 125):
        words = (*(500,) * 57, last_word_ms - 57 * 500)
        recording = record([Phrase(512, words), Phrase(1000, (300,) * 3)], trailing_ms=1000)
        for interim in (True, False):
            assert play(recording, interim=interim).said == list(recording.tokens)


# ------------------------------------------------------------------------------------------------ holes


class SkippingDecoder(ScriptedDecoder):
    """Ends the text of a window behind its third word, or skips to the last one, if the window is long."""

    def listen(self, window: Window) -> list[Spoken]:
        heard = super().listen(window)
        if len(heard) < 10:
            return heard
        return heard[:3] if window.start % 2 else [*heard[:3], heard[-1]]


@given(chunking=chunkings, n_words=st.integers(1, 170), delays=delays, lead_ms=st.integers(500, 532))
@settings(max_examples=30)
def test_speech_that_the_text_of_a_window_leaves_out_is_decoded_by_itself(
    chunking: Chunking, n_words: int, delays: list[int], lead_ms: int
) -> None:
    recording = record([Phrase(lead_ms, (400,) * n_words)], trailing_ms=900)
    playing = Play(make_session(SessionSettings("en", interim=False)), SkippingDecoder(recording), delays)
    for chunk in chunking.split(recording.samples):
        playing.push(chunk)
    playing.finish()
    assert playing.said == list(recording.tokens)
    assert " ".join(final.text for final in playing.finals) == recording.text
    assert len(playing.finals) == 1 or n_words > 60, "between two endpoints it stays one utterance"
    starts = [word.start for final in playing.finals for word in final.words]
    assert starts == sorted(starts)


class RepeatingDecoder(ScriptedDecoder):
    """Leaves out the middle of a phrase, the same again and again, unless the window begins there."""

    def listen(self, window: Window) -> list[Spoken]:
        heard = super().listen(window)
        return [word for word in heard if heard[0].token or not 3 <= word.token % MISHEARD < 10]


@pytest.mark.parametrize("word_ms", range(240, 420, 20))
@pytest.mark.parametrize("n_words", [12, 13])
def test_text_that_was_told_as_committed_stays_though_speech_is_left_out_before_it(n_words: int, word_ms: int) -> None:
    """Two hypotheses agree on words behind what they leave out; the second is also the final's."""
    recording = record([Phrase(600, (word_ms,) * n_words)], trailing_ms=2500)
    playing = Play(make_session(SessionSettings("en")), RepeatingDecoder(recording))
    for chunk in BY_100_MS.split(recording.samples):
        playing.push(chunk)
    playing.finish()
    told = max((partial.committed for partial in playing.partials), key=len)
    assert f" {playing.finals[0].text}".startswith(told)


class LeapingDecoder(ScriptedDecoder):
    """Leaves out the middle of a window that is nearly full."""

    def listen(self, window: Window) -> list[Spoken]:
        heard = super().listen(window)
        return heard if len(heard) < 65 else [*heard[:25], *heard[60:]]


def test_words_beyond_left_out_speech_are_not_known_behind_a_cut_before_it() -> None:
    recording = steady_speech(150, word_ms=405, trailing_ms=900)
    playing = led(recording, LeapingDecoder(recording), interim=False)
    assert playing.finals[0].text.endswith("w19."), "the cut lies before what was left out"
    assert playing.said == list(recording.tokens)


class DrawingDecoder(ScriptedDecoder):
    """Ends a long text behind a cut after its first words, and draws these out over what it leaves out."""

    def hypothesis(self, request: Request) -> Hypothesis:
        heard = super().hypothesis(request)
        n_words = request.n_committed + 2
        if not request.n_committed or len(heard.tokens) < n_words + 10:
            return heard
        late = [request.window.end - ms(100 * (n_words - n)) for n in range(n_words)]
        words = tuple(replace(w, start=at, end=at + ms(90)) for w, at in zip(heard.words, late, strict=False))
        return replace(heard, tokens=heard.tokens[:n_words], words=words, logprobs=(0.0, 0.0))


def test_words_known_from_before_a_cut_tell_where_speech_is_left_out_behind_it() -> None:
    recording = steady_speech(170, word_ms=405, trailing_ms=900)
    playing = led(recording, DrawingDecoder(recording), interim=False)
    assert any(request.n_committed for request in playing.requests)
    assert playing.said == list(recording.tokens)
    spoken = {word.token: word.start for word in recording.spoken}
    words = [word for final in playing.finals for word in final.words]
    assert all(abs(word.start - spoken[word.tokens[0]]) <= ms(1000) for word in words)


class StillDecoder(ScriptedDecoder):
    """Times the first word where the window begins, and without length: all speech seems to follow it."""

    def hypothesis(self, request: Request) -> Hypothesis:
        heard = super().hypothesis(request)
        at = request.window.start
        return replace(heard, words=tuple(replace(word, start=at, end=at) for word in heard.words))


def test_a_window_whose_words_have_no_length_is_not_asked_for_again_and_again() -> None:
    recording = record([Phrase(600, (300,) * 12)], trailing_ms=900)
    playing = led(recording, StillDecoder(recording), interim=False)
    assert playing.said == list(recording.tokens)


# ------------------------------------------------------------------------------------------------ lead


def led(recording: Recording, decoder: ScriptedDecoder | None = None, **chosen: object) -> Play:
    chosen = {"language": "en"} | chosen
    playing = Play(make_session(SessionSettings(**chosen)), decoder or ScriptedDecoder(recording))  # type: ignore[arg-type]
    for chunk in BY_100_MS.split(recording.samples):
        playing.push(chunk)
    playing.finish()
    return playing


TWO_PHRASES = record([Phrase(600, (300,) * 4), Phrase(900, (300,) * 4)], trailing_ms=900)


def test_a_short_utterance_after_a_short_pause_is_shown_with_the_words_before_it() -> None:
    playing = led(TWO_PHRASES)
    windows = [request.window for request in playing.requests if request.utterance_id == 1]
    assert {(window.start, window.start < playing.finals[0].end) for window in windows} == {(windows[0].start, True)}
    assert {request.prefix[:4] for request in playing.requests if request.n_left_context} == {(0, 1, 2, 3)}
    shown = [partial for partial in playing.partials if partial.utterance_id == 1]
    assert shown and all(partial.start == playing.finals[1].start for partial in shown)
    assert not any("w3" in partial.committed + partial.tentative for partial in shown)
    assert playing.said == list(range(8))


@pytest.mark.parametrize(
    ("recording", "chosen"),
    [
        (record([Phrase(600, (300,) * 4), Phrase(4000, (300,) * 4)], trailing_ms=900), {}),
        (TWO_PHRASES, {"language": None}),  # the words before would tell the language
        (TWO_PHRASES, {"previous_text": True}),  # they are told already
    ],
)
def test_an_utterance_by_itself_has_no_lead(recording: Recording, chosen: dict[str, object]) -> None:
    playing = led(recording, **chosen)
    assert {request.n_left_context for request in playing.requests} == {0}
    assert playing.said == list(range(8))


def test_windows_begin_where_the_one_before_began_until_that_is_too_long_ago() -> None:
    recording = record([Phrase(900, (300,) * 6)] * 20, trailing_ms=1000)
    playing = led(recording)
    starts = [request.window.start for request in playing.requests]
    assert starts == sorted(starts) and 2 <= len(set(starts)) <= 5
    assert all(request.own_start - request.window.start <= ms(26_000) for request in playing.requests)
    assert playing.said == list(recording.tokens)


def test_what_leads_to_an_utterance_is_in_the_order_of_speech_whichever_answer_came_first() -> None:
    recording = record([Phrase(600, (300,) * 4)] + [Phrase(900, (300,) * 4)] * 2, trailing_ms=900)
    playing = play(recording, interim=False, language="en", delays=(30, 0))
    assert [request.n_left_context for request in playing.requests] == [0, 0, 4], (
        "the second did not wait for the first"
    )
    assert playing.requests[-1].prefix == (4, 5, 6, 7)
    assert playing.said == list(recording.tokens)


def test_an_utterance_that_fills_the_window_has_no_room_for_a_lead() -> None:
    recording = record([Phrase(600, (300,) * 50), Phrase(900, (300,) * 50)], trailing_ms=900)
    playing = led(recording)
    of_second = [request for request in playing.requests if request.utterance_id == 1]
    assert of_second[0].n_left_context == 50 and of_second[-1].n_left_context == 0
    assert of_second[-1].window.start == playing.finals[1].start
    assert all(
        request.window.end - request.window.start <= ms(30_000) for request in of_second if request.n_left_context
    )
    assert playing.said == list(range(100))


class ContentDecoder(ScriptedDecoder):
    """Takes what follows the words before for nothing."""

    def hypothesis(self, request: Request) -> Hypothesis:
        heard = super().hypothesis(request)
        if not request.n_left_context:
            return heard
        return replace(
            heard, tokens=heard.tokens[: request.n_left_context], words=heard.words[: request.n_left_context]
        )


def test_a_full_window_without_text_is_decoded_again_without_its_lead() -> None:
    recording = steady_speech(60, trailing_ms=900)
    playing = led(recording, ContentDecoder(recording), max_utterance_s=8.0)
    assert playing.said == list(recording.tokens)


class LateDecoder(ScriptedDecoder):
    """Goes on behind the words before with the last word only."""

    def hypothesis(self, request: Request) -> Hypothesis:
        heard = super().hypothesis(request)
        n_left_context = request.n_left_context
        if not n_left_context or len(heard.tokens) == n_left_context:
            return heard
        logprobs = heard.logprobs[-1:]
        return replace(
            heard,
            tokens=(*heard.tokens[:n_left_context], heard.tokens[-1]),
            words=(*heard.words[:n_left_context], *heard.words[-1:]),
            logprobs=logprobs,
        )


def test_an_utterance_whose_beginning_is_left_out_is_decoded_again_without_its_lead() -> None:
    recording = record([Phrase(600, (300,) * 4), Phrase(900, (300,) * 9)], trailing_ms=900)
    playing = led(recording, LateDecoder(recording), interim=False)
    assert [request.n_left_context for request in playing.requests] == [0, 4, 0]
    assert playing.said == list(recording.tokens)


def test_a_lead_leaves_room_for_the_tokens_of_its_utterance() -> None:
    recording = record([Phrase(600, (100,) * 70), Phrase(900, (100,) * 150)], trailing_ms=900)
    playing = led(recording)
    of_second = [request for request in playing.requests if request.utterance_id == 1]
    assert of_second[0].n_left_context == 70 and of_second[-1].n_left_context == 0
    assert max(len(request.prefix + request.draft) for request in of_second) <= MOST_TOKENS + 10
    assert playing.said == list(recording.tokens)


@pytest.mark.parametrize("longest_s", [8.0, 12.0])
def test_behind_a_cut_the_lead_has_room_in_a_short_window(longest_s: float) -> None:
    """Without it the window would be full of new speech at once, and begin in the middle of a sentence."""
    recording = steady_speech(110, trailing_ms=900)
    playing = led(recording, max_utterance_s=longest_s, interim=False)
    behind_cuts = [request for request in playing.requests if request.utterance_id > 0]
    assert len(behind_cuts) > 3 and all(request.n_left_context for request in behind_cuts)
    assert all(request.window.end - request.window.start <= longest_s * SAMPLE_RATE for request in behind_cuts)
    assert playing.said == list(recording.tokens)


class EarlyDecoder(ScriptedDecoder):
    """Times the words of an utterance that has a lead before its beginning."""

    def hypothesis(self, request: Request) -> Hypothesis:
        heard = super().hypothesis(request)
        if not request.n_left_context:
            return heard
        at = request.own_start - ms(100)
        late = tuple(replace(word, start=at, end=at) for word in heard.words[request.n_left_context :])
        return replace(heard, words=heard.words[: request.n_left_context] + late)


def test_words_that_are_timed_inside_the_lead_are_not_doubled() -> None:
    recording = record([Phrase(600, (300,) * 4), Phrase(900, (300,) * 12)], trailing_ms=900)
    assert led(recording, EarlyDecoder(recording)).said == list(recording.tokens)


def test_an_utterance_without_text_is_decoded_again_without_its_lead() -> None:
    playing = led(TWO_PHRASES, ContentDecoder(TWO_PHRASES))
    assert [request.n_left_context for request in playing.requests if request.utterance_id == 1][-2:] == [4, 0]
    assert playing.said == list(range(8))


# ------------------------------------------------------------------------------------------------ no speech


SILENCE = Hypothesis((1, 2), -1.5, 0.9, "en", FinishReason.END_OF_TEXT)


def only_answer(settings: SessionSettings, hypothesis: Hypothesis) -> list[Event]:
    """What comes of the first hypothesis of an utterance, which is also its last without partials."""
    recording = record([Phrase(600, (300,) * 3)], trailing_ms=0 if settings.interim else 1000)
    session = make_session(settings)
    session.accept(recording.samples)
    session.hear(LevelDetector().hear(session.unheard()))
    ((request,), _) = session.advance(0.0)
    return session.apply(request, hypothesis)


def test_text_of_what_the_model_takes_for_no_speech_is_told_but_is_in_no_final() -> None:
    told, final = only_answer(SessionSettings(interim=False), SILENCE)
    assert isinstance(told, Suppressed) and isinstance(final, Final)
    assert (told.reason, told.text, told.utterance_id) == (SuppressReason.NO_SPEECH, "w1 w2", 0)
    assert (told.avg_logprob, told.no_speech_prob) == (-1.5, 0.9)
    assert told.start == final.start and told.end > final.end, "it is the window: speech and a little silence"
    assert (final.text, final.words) == ("", ())


def test_text_of_what_the_model_takes_for_no_speech_is_never_shown() -> None:
    settings = SessionSettings(stability=Stability.FAST)
    (told,) = only_answer(settings, SILENCE)
    assert isinstance(told, Suppressed)
    (partial,) = only_answer(settings, replace(SILENCE, no_speech_prob=0.01, avg_logprob=-0.3))
    assert isinstance(partial, Partial) and partial.tentative == " w1 w2"


class UnsureDecoder(ScriptedDecoder):
    """Has its doubts about everything, as of a short window of a clear voice, or of a few notes of music."""

    def hypothesis(self, request: Request) -> Hypothesis:
        return replace(super().hypothesis(request), avg_logprob=-1.0, no_speech_prob=0.5)


@pytest.mark.parametrize(("n_words", "said"), [(8, 8), (1, 0)])
def test_the_detector_decides_where_the_model_is_unsure(n_words: int, said: int) -> None:
    """A sound of a tenth of a second is little speech for a window with its pre-roll and hangover."""
    recording = record([Phrase(800, (100,) * n_words)], trailing_ms=900)
    playing = Play(make_session(SessionSettings("en", interim=False)), UnsureDecoder(recording))
    for chunk in BY_100_MS.split(recording.samples):
        playing.push(chunk)
    playing.finish()
    assert len(playing.said) == said


class UnsureBehindALeadDecoder(ScriptedDecoder):
    """Writes something under a sound behind a sentence, and knows that it is none once it hears it by itself."""

    def hypothesis(self, request: Request) -> Hypothesis:
        heard = super().hypothesis(request)
        if request.utterance_id == 0:
            return heard
        return replace(heard, avg_logprob=-0.9, no_speech_prob=0.0 if request.n_left_context else 0.9)


def test_a_doubtful_sound_behind_a_sentence_is_heard_by_itself() -> None:
    recording = record([Phrase(600, (300,) * 4), Phrase(900, (100,))], trailing_ms=900)
    playing = led(recording, UnsureBehindALeadDecoder(recording))
    of_sound = [request for request in playing.requests if request.utterance_id == 1]
    assert of_sound[0].n_left_context and not of_sound[-1].n_left_context
    assert playing.said == list(range(4))
    assert any(isinstance(event, Suppressed) for event in playing.events)


def test_words_well_before_the_end_of_a_window_stay_behind_a_cut() -> None:
    recording = record([Phrase(500, (400,) * 11), Phrase(100, (400,) * 40)])
    playing = play(recording, max_utterance_s=8.0, interim=False)
    second = next(request for request in playing.requests if request.utterance_id == 1)
    first_cut = playing.finals[0]
    heard_until = playing.requests[0].window.end
    kept = [w.token for w in recording.spoken if w.start >= first_cut.end and w.end <= heard_until - ms(1500)]
    assert kept and second.prefix[second.n_left_context :][: len(kept)] == tuple(kept)
    assert playing.said == list(recording.tokens)


class DoubtingDecoder(ScriptedDecoder):
    """Takes everything for silence once words are committed."""

    def hypothesis(self, request: Request) -> Hypothesis:
        sure = super().hypothesis(request)
        return replace(sure, avg_logprob=-3.0, no_speech_prob=0.99) if request.prefix else sure


def test_what_is_committed_is_suppressed_by_no_doubt() -> None:
    recording = steady_speech(20)
    playing = Play(make_session(SessionSettings("en")), DoubtingDecoder(recording))
    for chunk in BY_100_MS.split(recording.samples):
        playing.push(chunk)
    playing.finish()
    assert any(request.prefix for request in playing.requests)
    assert playing.said == list(recording.tokens)
    assert not any(isinstance(event, Suppressed) for event in playing.events)


def test_the_language_of_an_utterance_is_kept_once_two_seconds_have_told_it() -> None:
    played = play(steady_speech(20), BY_100_MS)
    asked = [request for request in played.requests if not request.is_final]
    told = next(i for i, request in enumerate(asked) if request.window.end - request.window.start >= ms(2_000))
    assert told > 1 and {request.language for request in asked[: told + 1]} == {None}
    assert {request.language for request in asked[told + 1 :]} == {played.finals[0].language}
    assert {request.prefix for request in asked[: told + 1]} == {()}, "nothing is committed before"


def test_a_given_language_goes_with_every_request() -> None:
    recording = record([Phrase(600, (300,) * 12)], trailing_ms=1000)
    playing = Play(make_session(SessionSettings(language="de")), ScriptedDecoder(recording))
    playing.push(recording.samples)
    playing.finish()
    assert playing.requests[0].language == "de"


def test_the_language_of_the_session_is_expected_of_its_next_utterance() -> None:
    played = play(record([Phrase(600, (300,) * 4), Phrase(900, (300,) * 4)], trailing_ms=900))
    first, *_, last = played.requests
    assert first.likely_language is None and last.likely_language == "en"


def test_every_request_of_an_utterance_is_told_the_same_prompt_and_text() -> None:
    recording = record([Phrase(600, (300,) * 4), Phrase(900, (300,) * 4)], trailing_ms=900)
    playing = Play(
        make_session(SessionSettings("en", prompt="w77 w78", previous_text=True)), ScriptedDecoder(recording)
    )
    for chunk in BY_100_MS.split(recording.samples):
        playing.push(chunk)
    playing.finish()
    told = {utterance: {r.history for r in playing.requests if r.utterance_id == utterance} for utterance in (0, 1)}
    assert told == {0: {(77, 78)}, 1: {(77, 78, 0, 1, 2, 3)}}


@pytest.mark.parametrize(("no_speech_prob", "text"), [(0.5, ""), (0.01, "w7 w8")])
def test_a_doubtful_hypothesis_that_repeats_the_prompt_is_no_text(no_speech_prob: float, text: str) -> None:
    echo = Hypothesis((7, 8), -0.2, no_speech_prob, "en", FinishReason.END_OF_TEXT)
    *told, final = only_answer(SessionSettings(interim=False, prompt="w6 w7 w8 w5"), echo)
    assert isinstance(final, Final) and final.text == text
    reasons = [event.reason for event in told if isinstance(event, Suppressed)]
    assert reasons == ([] if text else [SuppressReason.PROMPT_ECHO])


def test_a_request_that_waits_is_asked_again_with_the_newest_audio() -> None:
    session = make_session(SessionSettings())
    speech = steady_speech(10).samples
    asked = []
    for start in range(0, len(speech), ms(100)):
        session.accept(speech[start : start + ms(100)])
        session.hear(LevelDetector().hear(session.unheard()))
        requests, _ = session.advance(now=float(start))
        asked += requests
    assert len(asked) > 10 and len({request.ready_at for request in asked}) == 1, "it keeps its place in the queue"
    ends = [request.window.end for request in asked]
    assert ends == sorted(set(ends))
    session.start(asked[-1])
    session.accept(speech)
    session.hear(LevelDetector().hear(session.unheard()))
    assert session.advance(now=0.0)[0] == []


def test_answered_audio_is_forgotten() -> None:
    recording = record([Phrase(900, (300,) * 4)] * 20, trailing_ms=1000)
    playing = play(recording)
    held = playing.session._audio
    assert held.end - held.start < 2 * SAMPLE_RATE
    held = led(recording).session._audio
    assert held.end - held.start < 28 * SAMPLE_RATE, "the next utterance may be shown with what was said before"
