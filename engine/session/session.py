"""One stream from open to close, sans-I/O: audio in, requests out, hypotheses in, events out.

Stands between the gateway's audio and the scheduler. Pure: no threads, no clock (`now` is handed through to requests
for fairness only), no torch; every time is a sample index. The engine calls, per tick: `accept` for new audio,
`unheard` and `hear` around the speech detector, `advance` for requests, `apply` for each finished one.

Laws
    any chunking of the same audio gives the same utterances (only where speech without a pause is cut depends on when
    partials looked at it, and on when the utterance before became final);
    at most one request per utterance is in flight;
    a window never exceeds `max_utterance_s`, because the session hears no more of an utterance until it is cut;
    committed text only grows, the final of an utterance starts with it, and finals come in the order of speech;
    what is answered is forgotten: audio is held from the first unanswered utterance on, and of that which led to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.session.agreement import Agreement, TokenWord, is_sign, same_word
from engine.session.audio import AudioBuffer
from engine.session.cutting import CutRules, choose_cut, n_settled, to_segments, with_known_times
from engine.session.endpoint import BLOCK_SAMPLES, Endpointer, EndpointRules, Onset
from engine.session.history import History
from engine.session.hotwords import hotwords_of
from engine.session.languages import LANGUAGE_KNOWN_AFTER, odds_for
from engine.session.left_context import (
    LONGEST_LEFT_CONTEXT,
    MOST_TOKENS,
    SHORT_WINDOW,
    LeftContext,
    LeftContextSource,
    without_left_context,
)
from engine.session.partials import PartialFilter, are_certain, with_forms, word_logprobs
from engine.session.requests import Hypothesis, Request, Window
from engine.session.skipped_speech import SkippedSpeech, SpeechLog, begins_late, find_skipped_speech
from engine.session.suppression import needs_own_window, suppress_reason
from engine.types import (
    SAMPLE_RATE,
    EndReason,
    Event,
    Final,
    Partial,
    Progress,
    Samples,
    SessionSettings,
    SpeechStarted,
    Suppressed,
    SuppressReason,
    Task,
    Word,
)

_HEAR_AT_ONCE = 8 * SAMPLE_RATE  # per tick, so that a fast file does not hold up the others
_STABLE_AFTER = 10 * SAMPLE_RATE  # of audio, before doubtful words that stay the same are committed
_PROGRESS_STEP = SAMPLE_RATE // 2


class Vocabulary(Protocol):
    """What a session needs of models/whisper/tokenizer.py."""

    def encode(self, text: str) -> list[int]:
        """Tokens of the text; a word inside a sentence needs its leading space."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the tokens; the text of a prefix is a prefix of the text."""
        ...

    def split_words(self, tokens: Sequence[int], language: str | None) -> list[list[int]]:
        """Group tokens into words."""
        ...


@dataclass(slots=True, eq=False)
class Utterance:
    """Speech between two endpoints.

    Attributes:
        start: first sample, pre-roll included.
        language: set once it is known; nothing is committed before.
        heard_language: the newest guess, and its probability.
        logprobs: of the words of the newest hypothesis behind what it was made to begin with.
        history: what the model is told to have been said before; set with the first request.
        lead: the words before that its windows show once more as long as there is room for them.
        is_alone: nothing is to lead to it.
        known: words that it begins with, and their times, heard before a cut.
        settled: the beginning, where a hypothesis left out what followed; the rest is asked for by itself, from sample
            `own_start` on.
        end: one past the last sample of speech; None while the speaker goes on.
        over_at: the sample at which the end was known.
        in_flight: the newest request that is not answered; `is_started` once it is being computed.
        answered: the newest result and what it answers.
        shown: committed and tentative text of the last partial.
        n_told: committed tokens that it had.
        final: set once the text is final, until it may be emitted.
        said: the hypothesis that became final, where one did.
        window_start: of the window that told it.
    """

    id: int
    start: int
    own_start: int
    agreement: Agreement
    partial_filter: PartialFilter
    language: str | None
    heard_language: str | None = None
    language_prob: float = 1.0
    history: tuple[int, ...] | None = None
    lead: LeftContext | None = None
    is_alone: bool = False
    known: tuple[Word, ...] = ()
    settled: Hypothesis | None = None
    logprobs: list[float] = field(default_factory=list)
    end: int | None = None
    over_at: int = 0
    reason: EndReason = EndReason.PAUSE
    in_flight: Request | None = None
    is_started: bool = False
    answered: tuple[Request, Hypothesis] | None = None
    revision: int = 0
    shown: tuple[str, str] = ("", "")
    n_told: int = 0
    final: Final | None = None
    said: Hypothesis | None = None
    window_start: int = 0

    def drop_left_context(self) -> None:
        """Ask once more, without what led to it: behind a complete sentence the model may take it for nothing."""
        self.lead, self.is_alone, self.answered = None, True, None


class Session:
    """See the module; one object per stream."""

    def __init__(
        self,
        session_id: str,
        settings: SessionSettings,
        rules: EndpointRules,
        vocabulary: Vocabulary,
        *,
        partial_interval: int,
    ) -> None:
        self.id = session_id
        self._settings = settings
        self._vocabulary = vocabulary
        self._hotwords = hotwords_of(settings.hotwords, vocabulary.encode)
        prompt = settings.prompt.strip()
        self._history = History(vocabulary.encode(f" {prompt}") if prompt else (), keeps_text=settings.previous_text)
        # A language that is to be found out is not to be told by what was said before.
        self._leads = settings.language is not None and not settings.previous_text
        self._language: str | None = None  # of the last utterance
        self._partial_interval = partial_interval
        self._audio = AudioBuffer()
        self._endpointer = Endpointer(rules)
        self._speech = SpeechLog(rules.release)
        self._longest = int(settings.max_utterance_s * SAMPLE_RATE)
        self._last_words = LeftContextSource(self._longest)
        self._utterances: deque[Utterance] = deque()
        self._n_utterances = 0
        self._finishing = False
        self._progress = 0

    # ------------------------------------------------------------------------------------------ audio in

    def accept(self, samples: Samples) -> None:
        """Append (n,) float32 samples of the session clock."""
        assert not self._finishing, "audio after finish: the gateway refuses it"
        self._audio.append(samples)

    def finish(self) -> None:
        """No more audio will come; whatever is open ends where the audio ends."""
        self._audio.append(np.zeros(-self._audio.end % BLOCK_SAMPLES, dtype=np.float32))  # a last whole block
        self._finishing = True

    @property
    def speaking(self) -> bool:
        """An utterance is open."""
        return self._endpointer.speaking

    @property
    def is_done(self) -> bool:
        """Finished, and everything is answered."""
        return self._finishing and not self._utterances and self._endpointer.heard == self._audio.end

    # ------------------------------------------------------------------------------------------ listening

    def unheard(self) -> Samples:
        """Return the whole blocks that the speech detector is to look at next; may be empty."""
        heard = self._endpointer.heard
        if self.speaking:
            full = self._utterances[-1].start + self._cuts(self._utterances[-1]).longest
        else:  # an utterance may open with the very next block
            full = heard - self._kept_for_onset + self._longest
        end = min(self._audio.end, heard + _HEAR_AT_ONCE, full)
        n_blocks = max(0, end - heard) // BLOCK_SAMPLES
        return self._audio.view(heard, heard + n_blocks * BLOCK_SAMPLES)

    def hear(self, probabilities: NDArray[np.float32]) -> list[Event]:
        """Take one speech probability per block of `unheard`; return what it tells."""
        events: list[Event] = []
        for probability in probabilities.tolist():
            change = self._endpointer.observe(probability)
            self._speech.note(probability)
            if isinstance(change, Onset):
                events.append(self._open(change.start))
            elif change is not None:
                self._close(change.end, EndReason.PAUSE)
        if self._finishing and self._endpointer.heard == self._audio.end and (pause := self._endpointer.flush()):
            self._close(pause.end, EndReason.FINISHED)
        return events

    def _open(
        self,
        start: int,
        guess: Sequence[TokenWord] = (),
        heard_at: int = 0,
        language: str | None = None,
        committed: Sequence[TokenWord] = (),
    ) -> SpeechStarted:
        language = language or self._settings.language
        agreement = self._agreement(guess, heard_at, committed)
        partial_filter = PartialFilter(self._settings.stability, self._key)
        self._utterances.append(Utterance(self._n_utterances, start, start, agreement, partial_filter, language))
        self._n_utterances += 1
        return SpeechStarted(self._utterances[-1].id, start)

    def _agreement(
        self, guess: Sequence[TokenWord] = (), heard_at: int = 0, committed: Sequence[TokenWord] = ()
    ) -> Agreement:
        return Agreement(guess, heard_at, committed=committed, stable_after=_STABLE_AFTER, key=self._key)

    def _key(self, word: TokenWord) -> str:
        return same_word(self._vocabulary.decode(word))

    def _is_sign(self, token: int) -> bool:
        return is_sign(self._vocabulary.decode((token,)))

    def _close(self, end: int, reason: EndReason) -> None:
        utterance = self._utterances[-1]
        utterance.end = max(end, utterance.start)  # it may have been cut behind the last word
        utterance.reason = reason
        utterance.over_at = self._endpointer.heard

    # ------------------------------------------------------------------------------------------ requests out

    def advance(self, now: float) -> tuple[list[Request], list[Event]]:
        """Ask for what is worth decoding now, and emit what needs no decoding.

        A request that still waits is asked again with the newest audio; the newer one takes its place.

        Args:
            now: any monotonic clock; stamped on requests.
        """
        requests = []
        self._find_lead()
        for utterance in self._utterances:
            if utterance.final is None and (request := self._next_request(utterance, now)):
                utterance.in_flight, utterance.is_started = request, False
                requests.append(request)
        return requests, self._emit_finals() + self._emit_progress()

    def _find_lead(self) -> None:
        """Let the oldest utterance, before which everything is final, begin with what was said before."""
        if self._leads and self._utterances:
            utterance = self._utterances[0]
            is_early = utterance.history is None or (utterance.lead is None and utterance.end is None)
            lead = self._last_words.before(utterance.start)
            if is_early and not utterance.is_alone and lead and self._endpointer.heard <= lead.start + self._longest:
                utterance.lead = lead

    def start(self, request: Request) -> None:
        """The request is being computed: nothing newer takes its place but the final."""
        for utterance in self._utterances:
            if utterance.in_flight is request:
                utterance.is_started = True

    def _next_request(self, utterance: Utterance, now: float) -> Request | None:
        if utterance.end is not None:
            return self._final_request(utterance, now)
        window = self._window(utterance)
        waiting = utterance.in_flight
        if waiting is None:
            return self._request(utterance, window, now, is_final=False) if self._is_due(utterance, window) else None
        if utterance.is_started or waiting.window == window:
            return None
        return self._request(utterance, window, waiting.ready_at, is_final=False)

    def _final_request(self, utterance: Utterance, now: float) -> Request | None:
        """Ask for the final text, unless nothing was said, or it was asked for during the pause."""
        if utterance.end == utterance.start:
            utterance.final = self._final(utterance, (), (), utterance.language or self._language or "")
            return None
        if (
            utterance.answered
            and self._gives_final(utterance, utterance.answered[0])
            and self._finalise(utterance, *utterance.answered)
        ):
            return None
        if utterance.in_flight and self._gives_final(utterance, utterance.in_flight):
            return None
        return self._request(utterance, self._window(utterance), now, is_final=True)

    def _gives_final(self, utterance: Utterance, request: Request) -> bool:
        """Whether the result of the request is all that there is to say of the utterance."""
        if utterance.end is None:
            return False
        return request.is_final or (request.wants_words and request.window == self._window(utterance))

    def _window(self, utterance: Utterance) -> Window:
        """The audio worth showing: up to the newest block, but no further into silence than the hangover."""
        speech_end = self._endpointer.speech_end if utterance.end is None else utterance.end
        end = min(self._endpointer.heard, speech_end + self._endpointer.rules.hangover_samples)
        end = min(max(end, utterance.own_start + 1), utterance.start + self._longest)
        lead = utterance.lead
        return Window(lead.start if lead and end - lead.start <= self._longest else utterance.own_start, end)

    def _is_due(self, utterance: Utterance, window: Window) -> bool:
        """Whether an open utterance has enough news for another request."""
        if self._must_cut(utterance, window):
            is_news = utterance.answered is None or utterance.answered[0].window != window
            return is_news or self._is_full(utterance, window)  # full since then: now it has to be cut
        if not self._settings.interim:
            return False
        rules = self._endpointer.rules
        seen = utterance.answered[0].window.end if utterance.answered else utterance.start + rules.pre_roll_samples
        return window.end > seen if self._pausing else window.end - seen >= self._partial_interval

    @property
    def _kept_for_onset(self) -> int:
        """How far before the newest block an utterance may begin that is not open yet."""
        rules = self._endpointer.rules
        return rules.pre_roll_samples + rules.onset_blocks * BLOCK_SAMPLES

    @property
    def _pausing(self) -> bool:
        """The newest speech lies so far back that its window does not grow any more."""
        return self._endpointer.heard >= self._endpointer.speech_end + self._endpointer.rules.hangover_samples

    def _must_cut(self, utterance: Utterance, window: Window) -> bool:
        # Without partials nobody waits for text, so the window may grow to its full length first.
        is_long = self._settings.interim and window.end - utterance.start >= self._cuts(utterance).look_after
        return utterance.end is None and (is_long or self._is_full(utterance, window))

    def _cuts(self, utterance: Utterance) -> CutRules:
        """How long the utterance may grow: its lead has room in the window where windows are always short."""
        led = utterance.start - utterance.lead.start if utterance.lead else 0
        return CutRules(self._longest - led if self._longest <= SHORT_WINDOW else self._longest)

    def _is_full(self, utterance: Utterance, window: Window) -> bool:
        """Whether the window shows all that can be heard of the utterance until it is cut."""
        can_hear = self._endpointer.heard + BLOCK_SAMPLES <= utterance.start + self._cuts(utterance).longest
        return not can_hear and window == self._window(utterance)

    def _request(self, utterance: Utterance, window: Window, now: float, *, is_final: bool) -> Request:
        # During a pause the window is already the one that the final will have: if nothing more is said, this result is
        # the final, so it needs words.
        wants_words = is_final or self._pausing or self._must_cut(utterance, window)
        if utterance.history is None:
            utterance.history = self._history.before(utterance.start)
        is_led = utterance.lead is not None and window.start == utterance.lead.start
        lead = utterance.lead.tokens if utterance.lead and is_led else ()
        return Request(
            session_id=self.id,
            utterance_id=utterance.id,
            window=window,
            audio=self._audio.view(window.start, window.end).copy(),
            prefix=lead + utterance.agreement.committed_tokens,
            draft=utterance.agreement.tentative_tokens,
            language=utterance.language,
            wants_words=wants_words,
            is_final=is_final,
            ready_at=now,
            likely_language=utterance.heard_language or self._language,
            language_odds=odds_for(window.end - window.start),
            task=self._settings.task,
            history=utterance.history,
            hotwords=self._hotwords,
            n_left_context=len(lead),
            own_start=utterance.own_start,
        )

    # ------------------------------------------------------------------------------------------ hypotheses in

    def apply(self, request: Request, hypothesis: Hypothesis) -> list[Event]:
        """Take the result of a request; return the events it causes."""
        utterance = next((u for u in self._utterances if u.in_flight is request), None)
        if utterance is None:
            return []  # overtaken by a newer request
        utterance.in_flight = None
        told: list[Event] = []
        if request.n_left_context:
            hypothesis = without_left_context(
                hypothesis, request.n_left_context, utterance.start, self._vocabulary.decode
            )
        hypothesis = replace(hypothesis, words=with_known_times(hypothesis.words, utterance.known))
        speech_prob = self._speech.mean(utterance.own_start, request.window.end)
        if request.n_left_context and not request.n_committed:
            skips_beginning = begins_late(hypothesis.words, utterance.own_start, self._speech)
            if skips_beginning or needs_own_window(hypothesis, speech_prob):
                utterance.drop_left_context()
                return told
        reason = None if request.n_committed else suppress_reason(hypothesis, speech_prob, self._history.prompt)
        if reason is None:
            self._note_language(utterance, request, hypothesis)
        else:
            told.append(self.suppressed(request, hypothesis, reason))
            hypothesis = without_text(hypothesis)
            utterance.partial_filter = PartialFilter(self._settings.stability, self._key)  # nothing of it was text
        hypothesis = self._observe(utterance, request, hypothesis)
        utterance.answered = (request, hypothesis)
        if request.n_left_context + len(hypothesis.tokens) > MOST_TOKENS:
            utterance.lead, utterance.is_alone = None, True
        if self._gives_final(utterance, request):
            self._finalise(utterance, request, hypothesis)
            return told + self._emit_finals()
        if request.wants_words and self._must_cut(utterance, request.window):
            if request.n_left_context and not hypothesis.tokens:
                utterance.drop_left_context()
                return told
            return told + self._cut(utterance, request, hypothesis)
        return told + self._emit_partial(utterance, request.window, hypothesis)

    def suppressed(self, request: Request, hypothesis: Hypothesis, reason: SuppressReason) -> Suppressed:
        """Return what tells of a hypothesis that does not come into the text."""
        return Suppressed(
            utterance_id=request.utterance_id,
            reason=reason,
            text=self._vocabulary.decode(hypothesis.tokens).strip(),
            start=request.window.start,
            end=request.window.end,
            avg_logprob=hypothesis.avg_logprob,
            no_speech_prob=hypothesis.no_speech_prob,
        )

    def _note_language(self, utterance: Utterance, request: Request, hypothesis: Hypothesis) -> None:
        utterance.heard_language = hypothesis.language
        if request.language is None:
            utterance.language_prob = hypothesis.language_prob
        if request.window.end - request.window.start >= LANGUAGE_KNOWN_AFTER:
            utterance.language = hypothesis.language

    def _observe(self, utterance: Utterance, request: Request, hypothesis: Hypothesis) -> Hypothesis:
        """Commit what is stable; return the hypothesis with words in the form in which they were heard first."""
        n_prefix = request.n_committed
        fresh = [
            tuple(word) for word in self._vocabulary.split_words(hypothesis.tokens[n_prefix:], hypothesis.language)
        ]
        logprobs = hypothesis.logprobs
        if n_prefix and len(fresh) > 1 and all(map(self._is_sign, fresh[0])):
            # A comma behind the committed words is no word of its own, which would shift all those behind it.
            sign = fresh.pop(0)
            utterance.agreement.append_sign(sign)
            n_prefix += len(sign)
            logprobs = logprobs[len(sign) :]
        utterance.logprobs = word_logprobs(fresh, logprobs, self._is_sign)
        certain = are_certain(utterance.logprobs)
        commits = utterance.language is not None
        settled = utterance.agreement.observe(fresh, request.window.end, certain, commits=commits)
        return with_forms(hypothesis, n_prefix, fresh, settled, self._vocabulary.decode)

    def _emit_partial(self, utterance: Utterance, window: Window, hypothesis: Hypothesis) -> list[Event]:
        agreement = utterance.agreement
        committed = self._vocabulary.decode(agreement.committed_tokens)
        ages = agreement.ages(window.end)
        tokens = utterance.partial_filter.update(agreement.committed, agreement.tentative, utterance.logprobs, ages)
        tentative = self._vocabulary.decode(agreement.committed_tokens + tokens)[len(committed) :]
        if not self._settings.interim or (committed, tentative) == utterance.shown:
            return []
        utterance.shown = (committed, tentative)
        utterance.n_told = len(agreement.committed_tokens)
        utterance.revision += 1
        return [
            Partial(
                utterance_id=utterance.id,
                revision=utterance.revision,
                committed=committed,
                tentative=tentative,
                start=utterance.start,
                end=window.end,
                heard=window.end,
                language=hypothesis.language,
                language_prob=utterance.language_prob,
            )
        ]

    def _finalise(self, utterance: Utterance, request: Request, hypothesis: Hypothesis) -> bool:
        """Make this the final text, unless something was left out; return whether it is."""
        assert utterance.end is not None
        hole = self._find_skipped_speech(utterance, request, hypothesis, utterance.end)
        leaves_all_out = hole is not None and hole.start <= utterance.own_start
        if request.n_left_context and (leaves_all_out or not hypothesis.tokens):
            utterance.drop_left_context()
            return False
        if hole is not None and not leaves_all_out:
            words = hypothesis.words[: hole.n_words]
            tokens = tuple(token for word in words for token in word.tokens)
            kept = replace(hypothesis, tokens=tokens, words=words)
            utterance.settled = joined(utterance.settled, kept)
            utterance.drop_left_context()
            utterance.agreement, utterance.n_told, utterance.known = self._agreement(), 0, ()
            utterance.own_start = hole.start
            return False
        whole = joined(utterance.settled, hypothesis)
        utterance.said, utterance.window_start = whole, request.window.start
        utterance.final = self._final(utterance, whole.tokens, whole.words, whole.language)
        return True

    def _find_skipped_speech(
        self, utterance: Utterance, request: Request, hypothesis: Hypothesis, end: int
    ) -> SkippedSpeech | None:
        """Find speech up to `end` that the text leaves out, behind all that was told of it."""
        n_fixed = max(request.n_committed, utterance.n_told)
        return find_skipped_speech(hypothesis.words, n_fixed, end, self._speech)

    def _learn(self, said: Hypothesis, window_start: int, end: int) -> None:
        """Take what became final for the beginning of what is asked for next."""
        self._last_words.note(said.words, window_start)
        if said.tokens:
            self._language = said.language
            self._history.note(said.tokens, said, end)

    def _final(self, utterance: Utterance, tokens: Sequence[int], words: tuple[Word, ...], language: str) -> Final:
        assert utterance.end is not None
        text = self._vocabulary.decode(tokens).strip()
        return Final(
            utterance_id=utterance.id,
            text=text,
            start=utterance.start,
            end=utterance.end,
            heard=utterance.over_at,
            reason=utterance.reason,
            language=language,
            segments=to_segments(text, words, utterance.start, utterance.end),
            words=words,
            language_prob=utterance.language_prob,
        )

    def _cut(self, utterance: Utterance, request: Request, hypothesis: Hypothesis) -> list[Event]:
        """End a long utterance behind a committed word; what follows becomes the next one."""
        window = request.window
        n_committed = len(utterance.agreement.committed_tokens)
        is_full = self._is_full(utterance, window)
        own = replace(window, start=utterance.start)
        n_words = choose_cut(hypothesis.words, own, n_committed, self._cuts(utterance), is_full=is_full)
        hole = self._find_skipped_speech(utterance, request, hypothesis, min(window.end, self._endpointer.speech_end))
        if hole is not None and hole.start <= utterance.start:
            hole = None  # nothing can be cut off before it
        if hole is not None and (n_words is None or hole.n_words <= n_words):
            kept, rest = hypothesis.words[: hole.n_words], hypothesis.words[:0]
            cut = hole.start
        elif n_words is not None:
            kept, rest = hypothesis.words[:n_words], hypothesis.words[n_words:]
            cut = window.end
            if rest:  # in the middle of the gap, so that neither word loses its edge
                cut = (kept[-1].end + rest[0].start) // 2 if kept else rest[0].start
        else:
            return self._emit_partial(utterance, window, hypothesis)  # there is room: look again a little later
        self._close(cut, EndReason.MAX_LENGTH)
        tokens = tuple(token for word in kept for token in word.tokens)
        utterance.said, utterance.window_start = replace(hypothesis, tokens=tokens, words=kept), window.start
        utterance.final = self._final(utterance, tokens, kept, hypothesis.language)
        events = self._emit_finals()
        # What follows was heard with what came before it in view; the next window is not asked again.
        behind = [word.tokens for word in rest]
        n_known = n_settled(rest if hole is None else rest[: hole.n_words - len(kept)], window)
        if self._settings.task is Task.TRANSLATE:  # its words have no times of their own
            n_known = 0
        opened = self._open(cut, behind[n_known:], window.end, hypothesis.language, behind[:n_known])
        self._utterances[-1].language_prob = utterance.language_prob
        self._utterances[-1].known = rest[:n_known]
        self._find_lead()  # before more is heard of it
        return [*events, opened]

    # ------------------------------------------------------------------------------------------ events out

    def _emit_finals(self) -> list[Event]:
        events: list[Event] = []
        while self._utterances and (final := self._utterances[0].final):
            utterance = self._utterances.popleft()
            if utterance.said:
                self._learn(utterance.said, utterance.window_start, final.end)
            events.append(final)
        return events

    def _emit_progress(self) -> list[Event]:
        """Forget answered audio, and tell how far that is."""
        settled = max(0, self._endpointer.heard - self._kept_for_onset)
        if self._utterances:
            settled = min(settled, self._utterances[0].start)
        self._audio.forget_before(settled - LONGEST_LEFT_CONTEXT if self._leads else settled)
        self._speech.forget_before(settled)
        if settled - self._progress < _PROGRESS_STEP:
            return []
        self._progress = settled
        return [Progress(settled)]


def without_text(hypothesis: Hypothesis) -> Hypothesis:
    """Return the hypothesis that nothing was said."""
    return replace(hypothesis, tokens=(), words=(), logprobs=())


def joined(settled: Hypothesis | None, rest: Hypothesis) -> Hypothesis:
    """Return what two parts of an utterance say together."""
    if settled is None:
        return rest
    return replace(rest, tokens=settled.tokens + rest.tokens, words=settled.words + rest.words)
