"""What the engine does in a tick: who is admitted, who decodes, who is done.

Stands between the sessions (which ask by `Request`) and the runner (which turns a `Plan` into tensors). Pure: no torch,
no clock, no threads; integers and tokens only.

There is no prefill phase and no decode phase. A sequence waits, is admitted as soon as a slot is free (its window is
encoded and its prompt prefilled in that tick, together with everybody else's who was admitted), and from then on gains
tokens in every tick until it ends. Rows join and leave the running batch at any tick.

Order of admission: finals before partials, then whoever has waited longest. A partial whose utterance asks for its
final meanwhile is worthless; it is evicted when the final is submitted.

Law: a sequence is in exactly one of waiting, running, finished; it holds a slot exactly while it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from engine.slots import Slot, SlotPool
from engine.types import SAMPLE_RATE, FinishReason, Hypothesis, Request, Window, Word

_MAX_TEXT_TOKENS = 224  # half of Whisper's 448 text positions, as in openai/whisper
_TOKENS_PER_SECOND = 14  # fast speech in the scripts that need most tokens per sound stays below
_FREE_TOKENS = 16


class Status(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its way through the decoder.

    Attributes:
        tokens: text tokens so far, beginning with the forced prefix.
        logprob_sum, n_scored: over the tokens that the model chose, end-of-text included.
    """

    request: Request
    status: Status = Status.WAITING
    slot: Slot | None = None
    tokens: list[int] = field(default_factory=list)
    logprob_sum: float = 0.0
    n_scored: int = 0
    no_speech_prob: float = 0.0
    language: str = ""
    finish_reason: FinishReason | None = None
    words: tuple[Word, ...] = ()

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prefix)

    @property
    def max_tokens(self) -> int:
        """Most text tokens, so that a loop ends: so many per second of audio, and no more than the cache holds."""
        seconds = (self.request.window.end - self.request.window.start) / SAMPLE_RATE
        return min(_MAX_TEXT_TOKENS, _FREE_TOKENS + int(_TOKENS_PER_SECOND * seconds))

    def to_hypothesis(self) -> Hypothesis:
        """Return the result of a finished sequence."""
        assert self.finish_reason is not None
        return Hypothesis(
            tokens=tuple(self.tokens),
            avg_logprob=self.logprob_sum / max(1, self.n_scored),
            no_speech_prob=self.no_speech_prob,
            language=self.language,
            finish_reason=self.finish_reason,
            words=self.words,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What the runner is to do in this tick.

    Attributes:
        encode: those of `prefill` whose window the encoder has to see; the row of the others still holds its output.
        prefill: admitted now: prefill prompt, prefix and draft; every one has a slot.
        decode: running since an earlier tick: one token each.
    """

    encode: tuple[Sequence, ...]
    prefill: tuple[Sequence, ...]
    decode: tuple[Sequence, ...]

    @property
    def is_empty(self) -> bool:
        """Nothing to run."""
        return not (self.prefill or self.decode)


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


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What the runner found; the lists run parallel to those of the plan."""

    prefilled: tuple[Prefilled, ...]
    prefill_gains: tuple[Gain, ...]
    decode_gains: tuple[Gain, ...]


class Scheduler:
    """Call `submit` and `abort` between ticks; per tick `schedule`, run the plan, `update`, `release`."""

    def __init__(self, n_slots: int) -> None:
        self.slots = SlotPool(n_slots)
        self._encoded: dict[tuple[str, Window], int] = {}  # window -> the row that was last filled with it
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        """Something waits or runs."""
        return bool(self.waiting or self.running)

    def submit(self, request: Request) -> None:
        """Queue a request; an older one of the same utterance is evicted."""
        self._evict(lambda s: (s.session_id, s.utterance_id) == (request.session_id, request.utterance_id))
        self.waiting.append(Sequence(request))

    def abort(self, session_id: str) -> None:
        """Drop everything of a session, so that another one may have its name."""
        self._evict(lambda request: request.session_id == session_id)
        self._encoded = {window: row for window, row in self._encoded.items() if window[0] != session_id}

    def schedule(self) -> Plan:
        """Admit as many as there are free slots and return the plan of this tick."""
        decode = tuple(self.running)
        self.waiting.sort(key=lambda s: (not s.request.is_final, s.request.ready_at))
        n_admitted = min(len(self.waiting), self.slots.n_free)
        prefill, self.waiting = self.waiting[:n_admitted], self.waiting[n_admitted:]
        encode = []
        for sequence in sorted(prefill, key=self._held_row, reverse=True):  # held rows first, before others take them
            row = self._held_row(sequence)
            sequence.slot = self.slots.acquire(row if row >= 0 else None)
            sequence.status = Status.RUNNING
            if row < 0:
                encode.append(sequence)
                self._remember(sequence, sequence.slot.index)
        self.running += prefill
        return Plan(tuple(encode), tuple(prefill), decode)

    def update(self, plan: Plan, output: StepOutput) -> list[Sequence]:
        """Enter what the runner found; return the sequences that are now finished (they still hold their slots)."""
        for sequence, prefilled in zip(plan.prefill, output.prefilled, strict=True):
            sequence.language = prefilled.language
            sequence.no_speech_prob = prefilled.no_speech_prob
        gains = output.decode_gains + output.prefill_gains
        finished = []
        for sequence, gain in zip(plan.decode + plan.prefill, gains, strict=True):
            _enter(sequence, gain)
            if sequence.finish_reason is not None:
                finished.append(sequence)
        return finished

    def release(self, finished: list[Sequence]) -> None:
        """Give the slots of finished sequences back."""
        for sequence in finished:
            self._leave(sequence)
        self.running = [s for s in self.running if s.status is Status.RUNNING]

    def _held_row(self, sequence: Sequence) -> int:
        """Return the free row that still holds the encoder output of the sequence's window, or -1."""
        row = self._encoded.get((sequence.request.session_id, sequence.request.window), -1)
        return row if row >= 0 and self.slots.is_free(row) else -1

    def _remember(self, sequence: Sequence, row: int) -> None:
        self._encoded = {window: held for window, held in self._encoded.items() if held != row}
        self._encoded[(sequence.request.session_id, sequence.request.window)] = row

    def _evict(self, matches: Callable[[Request], bool]) -> None:
        self.waiting = [s for s in self.waiting if not matches(s.request)]
        self.release([s for s in self.running if matches(s.request)])

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.slot is not None and sequence.status is Status.RUNNING
        self.slots.release(sequence.slot)
        sequence.slot = None
        sequence.status = Status.FINISHED


def _enter(sequence: Sequence, gain: Gain) -> None:
    room = sequence.max_tokens - len(sequence.tokens)
    sequence.tokens += gain.tokens[:room]
    sequence.logprob_sum += sum(gain.logprobs)
    sequence.n_scored += len(gain.logprobs)
    if gain.ended:
        sequence.finish_reason = FinishReason.END_OF_TEXT
    elif len(sequence.tokens) >= sequence.max_tokens:
        sequence.finish_reason = FinishReason.TOKEN_LIMIT
