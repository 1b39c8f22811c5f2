"""What the engine does in a tick: who is admitted, who decodes, who is done.

Stands between the sessions (which ask by `Request`) and the runner (which turns a `Round` into tensors). Pure: no
torch, no clock, no threads; integers and tokens only.

There is no prefill phase and no decode phase. A sequence waits, is admitted when a slot is free, has its window encoded
together with those of everybody who was admitted, and from the next round on gains tokens until it ends. Rows join and
leave the running batch in any round; the rounds of the running rows go on beside the encoder.

Order of admission: finals, and what may become one, before partials; then whoever has waited longest. A partial whose
utterance asks for its final meanwhile is worthless; it is evicted when the final is submitted.

A row keeps what was encoded into it after its sequence is done. When its session asks again for a window that begins
there, the same row is lent: the same window is not encoded again, and of a longer one only what is not frozen (`Held`).

Law: a sequence is in exactly one of waiting, running, finished; it holds a slot exactly while it runs (Status says how
far it is).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from engine.guards import is_unlikely, loop_period, without_loop
from engine.slots import Slot, SlotPool
from engine.types import (
    MAX_WINDOW_SAMPLES,
    POSITION_SAMPLES,
    SAMPLE_RATE,
    FinishReason,
    Hypothesis,
    Request,
    Window,
    Word,
)

_MAX_TEXT_TOKENS = 224  # half of Whisper's 448 text positions, as in openai/whisper
_TOKENS_PER_SECOND = 14  # fast speech in the scripts that need most tokens per sound stays below
_FREE_TOKENS = 16


class Status(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    ENCODING = "encoding"  # holds a slot, as do the next two
    ENCODED = "encoded"
    DECODING = "decoding"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its way through the decoder.

    Attributes:
        first_position: the encoder position from which the window is to be encoded; what lies before is in the row.
        full_context: the second try of a window whose text looked wrong: padded to 30 seconds.
        tokens: text tokens so far, beginning with the forced prefix.
        logprobs: of the tokens behind the prefix.
        logprob_sum, n_scored: over the tokens that the model chose, end-of-text included.
    """

    request: Request
    status: Status = Status.WAITING
    slot: Slot | None = None
    first_position: int = 0
    full_context: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logprob_sum: float = 0.0
    n_scored: int = 0
    no_speech_prob: float = 0.0
    language: str = ""
    language_prob: float = 1.0
    finish_reason: FinishReason | None = None
    words: tuple[Word, ...] = ()

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prefix)

    @property
    def max_tokens(self) -> int:
        """Most text tokens, so that a loop ends: so many per second of audio, and no more than the cache holds."""
        seconds = (self.request.window.end - self.request.window.start) / SAMPLE_RATE
        return min(_MAX_TEXT_TOKENS, _FREE_TOKENS + int(_TOKENS_PER_SECOND * seconds))

    @property
    def looks_wrong(self) -> bool:
        """Whether a finished sequence deserves a second try."""
        is_broken_off = self.finish_reason in (FinishReason.TOKEN_LIMIT, FinishReason.LOOP)
        is_doubtful = self.request.wants_whole and is_unlikely(self.avg_logprob, self.n_scored)
        return not self.full_context and (is_broken_off or is_doubtful)

    @property
    def avg_logprob(self) -> float:
        """Mean over the tokens that the model chose."""
        return self.logprob_sum / max(1, self.n_scored)

    def to_hypothesis(self) -> Hypothesis:
        """Return the result of a finished sequence."""
        assert self.finish_reason is not None
        return Hypothesis(
            tokens=tuple(self.tokens),
            avg_logprob=self.avg_logprob,
            no_speech_prob=self.no_speech_prob,
            language=self.language,
            finish_reason=self.finish_reason,
            words=self.words,
            language_prob=self.language_prob,
            logprobs=tuple(self.logprobs),
        )


@dataclass(frozen=True, slots=True)
class Held:
    """What the audio part of a row holds, also after its sequence is done.

    Attributes:
        session_id: whose it is.
        window: what was encoded into the row last.
        n_frozen: so many positions had enough audio to their right when they were encoded; partials reuse them, finals
            those of what is final already.
        first_fresh: the position from which on all were encoded with the whole window in view.
    """

    session_id: str
    window: Window
    n_frozen: int
    first_fresh: int

    def suits(self, request: Request) -> bool:
        """Whether all that wants it was encoded with the whole window in view."""
        return not request.wants_whole or self.first_fresh <= request.n_final_positions


@dataclass(frozen=True, slots=True)
class Round:
    """What the decoder is to do next.

    Attributes:
        prefill: encoded since the last round: prompt, prefix and draft.
        decode: running since an earlier round: one token each.
    """

    prefill: tuple[Sequence, ...]
    decode: tuple[Sequence, ...]

    def __bool__(self) -> bool:
        return bool(self.prefill or self.decode)


@dataclass(frozen=True, slots=True)
class Gain:
    """What one sequence gained in a tick.

    Attributes:
        tokens: text tokens chosen, in order.
        logprobs: one per token, plus one for the end of text if it was chosen.
        ended: the model chose the end of text.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What is known about a window once its prompt has been prefilled."""

    language: str
    no_speech_prob: float
    language_prob: float = 1.0


@dataclass(frozen=True, slots=True)
class RoundOutput:
    """What the runner found; the lists run parallel to those of the round."""

    prefilled: tuple[Prefilled, ...]
    prefill_gains: tuple[Gain, ...]
    decode_gains: tuple[Gain, ...]


class Scheduler:
    """Who does what next.

    Call `submit` and `abort` between ticks. Per tick: `admit`, encode what it returns, `mark_encoded`; meanwhile and as
    often as one likes `next_round`, run it, `update`, `retry`, `release`.
    """

    def __init__(self, n_slots: int, *, freeze_after: int = 0, max_positions: int | None = None) -> None:
        """Make an empty scheduler.

        Args:
            n_slots: most sequences that run at once.
            freeze_after: samples to the right of a position from which on it is reused; 0 never.
            max_positions: encoder positions admitted at once, whole windows only and at least one; None is no bound.
        """
        self.slots = SlotPool(n_slots)
        self._freeze_after = freeze_after
        self._max_positions = max_positions
        self._held: dict[int, Held] = {}  # by row
        self._rows: dict[tuple[str, int], int] = {}  # session and first sample of a window -> the row that holds it
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        """Something waits or runs."""
        return bool(self.waiting or self.running)

    def submit(self, request: Request) -> None:
        """Queue a request; an older one of the same utterance is evicted."""
        self._evict(lambda older: _utterance(older) == _utterance(request))
        self.waiting.append(Sequence(request))

    def abort(self, session_id: str) -> None:
        """Drop everything of a session, so that another one may have its name."""
        self._evict(lambda request: request.session_id == session_id)
        self._forget(session_id)

    def admit(self) -> list[Sequence]:
        """Give slots to as many as there are free ones; return who was admitted: those that are ENCODING need it."""
        self.waiting.sort(key=lambda s: (not s.request.wants_whole, s.request.ready_at))
        n_admitted = self._n_fitting()
        admitted, self.waiting = self.waiting[:n_admitted], self.waiting[n_admitted:]
        for sequence in sorted(admitted, key=lambda s: self._held_row(s) is None):
            self._place(sequence)  # rows that hold something for their window first, before others take them
        self.running += admitted
        return admitted

    def mark_encoded(self) -> None:
        """The windows of all that were admitted are encoded."""
        for sequence in self.running:
            if sequence.status is Status.ENCODING:
                sequence.status = Status.ENCODED

    def next_round(self) -> Round:
        """Return what can be decoded now; it is falsy if there is nothing."""
        return Round(
            tuple(s for s in self.running if s.status is Status.ENCODED),
            tuple(s for s in self.running if s.status is Status.DECODING),
        )

    def update(self, round_: Round, output: RoundOutput) -> list[Sequence]:
        """Enter what the runner found; return the sequences that are now finished (they still hold their slots)."""
        for sequence, prefilled in zip(round_.prefill, output.prefilled, strict=True):
            sequence.status = Status.DECODING
            sequence.language = prefilled.language
            sequence.language_prob = prefilled.language_prob
            sequence.no_speech_prob = prefilled.no_speech_prob
        gains = output.decode_gains + output.prefill_gains
        for sequence, gain in zip(round_.decode + round_.prefill, gains, strict=True):
            _enter(sequence, gain)
        return [s for s in round_.decode + round_.prefill if s.finish_reason is not None]

    def retry(self, finished: list[Sequence]) -> list[Sequence]:
        """Queue those that look wrong once more, with full context; return the others. None may be released yet."""
        wrong = [s for s in finished if s.looks_wrong]
        self.waiting += [Sequence(s.request, full_context=True) for s in wrong]
        self.release(wrong)
        return [s for s in finished if s not in wrong]

    def release(self, finished: list[Sequence]) -> None:
        """Give the slots of finished sequences back."""
        for sequence in finished:
            self._leave(sequence)
        self.running = [s for s in self.running if s.status is not Status.FINISHED]

    def _n_fitting(self) -> int:
        """Return how many of the waiting, the first of them, have slots and stay within the bound of positions."""
        n_positions = 0
        candidates = self.waiting[: self.slots.n_free]
        for n_admitted, sequence in enumerate(candidates):
            n_positions += self._n_to_encode(sequence)
            if self._max_positions is not None and n_positions > self._max_positions and n_admitted:
                return n_admitted
        return len(candidates)

    def _n_to_encode(self, sequence: Sequence) -> int:
        """Return how many positions of the sequence's window are not in a row, were it admitted now."""
        if sequence.full_context:
            return MAX_WINDOW_SAMPLES // POSITION_SAMPLES
        row = self._held_row(sequence)
        window = sequence.request.window
        first = self._first_position(sequence.request, None if row is None else self._held[row])
        return (window.end - window.start) // POSITION_SAMPLES - first

    def _held_row(self, sequence: Sequence) -> int | None:
        """Return the free row that holds the beginning of the sequence's window."""
        row = self._rows.get(_beginning(sequence.request))
        return row if row is not None and self.slots.is_free(row) else None

    def _place(self, sequence: Sequence) -> None:
        """Give a sequence its slot, and find out what of its window is to be encoded."""
        request = sequence.request
        row = self._held_row(sequence)
        held = self._held[row] if row is not None else None
        sequence.slot = self.slots.acquire(row)
        if sequence.full_context:
            held = None
        if held and held.window == request.window and held.suits(request):
            sequence.status = Status.ENCODED
            return
        sequence.status = Status.ENCODING
        sequence.first_position = self._first_position(request, held)
        self._hold(sequence)

    def _first_position(self, request: Request, held: Held | None) -> int:
        """Return how many positions of the row may stay as they are."""
        if held is None or held.window.end > request.window.end:
            return 0
        return min(held.n_frozen, request.n_final_positions) if request.wants_whole else held.n_frozen

    def _hold(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        request, row = sequence.request, sequence.slot.index
        for stale in (row, self._rows.get(_beginning(request))):
            if stale in self._held:
                self._forget_row(stale)
        # Windows of a session begin ever later: one that began before is asked for again only if it is in use now.
        self._forget(request.session_id, before=request.window.start)
        settled = request.window.end - request.window.start - self._freeze_after
        n_frozen = max(0, settled // POSITION_SAMPLES) if self._freeze_after else 0
        self._held[row] = Held(request.session_id, request.window, n_frozen, sequence.first_position)
        self._rows[_beginning(request)] = row

    def _forget(self, session_id: str, before: float = math.inf) -> None:
        """What the session's free rows hold of windows that begin before a sample is worth nothing any more."""
        for row, held in list(self._held.items()):
            if held.session_id == session_id and held.window.start < before and self.slots.is_free(row):
                self._forget_row(row)

    def _forget_row(self, row: int) -> None:
        held = self._held.pop(row)
        del self._rows[held.session_id, held.window.start]
        self.slots.offer_first(row)

    def _evict(self, matches: Callable[[Request], bool]) -> None:
        self.waiting = [s for s in self.waiting if not matches(s.request)]
        self.release([s for s in self.running if matches(s.request)])

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self.slots.release(sequence.slot)
        sequence.slot = None
        sequence.status = Status.FINISHED


def _utterance(request: Request) -> tuple[str, int]:
    return request.session_id, request.utterance_id


def _beginning(request: Request) -> tuple[str, int]:
    return request.session_id, request.window.start


def _enter(sequence: Sequence, gain: Gain) -> None:
    """Add what was gained, token by token, so that a draft is broken off where plain decoding would be."""
    for token, logprob in zip(gain.tokens, gain.logprobs, strict=False):
        sequence.logprob_sum += logprob
        sequence.n_scored += 1
        if len(sequence.tokens) < sequence.max_tokens:
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
        if loop_period(sequence.tokens):
            n_prefix = len(sequence.request.prefix)
            sequence.tokens = without_loop(sequence.tokens, n_kept=n_prefix)
            del sequence.logprobs[len(sequence.tokens) - n_prefix :]
            sequence.finish_reason = FinishReason.LOOP
            return
        if len(sequence.tokens) >= sequence.max_tokens:
            sequence.finish_reason = FinishReason.TOKEN_LIMIT
            return
    if gain.ended:
        sequence.logprob_sum += gain.logprobs[-1]
        sequence.n_scored += 1
        sequence.finish_reason = FinishReason.END_OF_TEXT
