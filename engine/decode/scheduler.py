"""What the engine does in a tick: who is admitted, who decodes, who is done.

Stands between the sessions (which ask by `Request`) and the runner (which turns a `Round` into tensors). Pure: no
torch, no clock, no threads; integers and tokens only.

There is no prefill phase and no decode phase. A sequence waits, is admitted when a slot is free, has its window encoded
together with those of everybody who was admitted, and from the next round on gains tokens until it ends. Rows join and
leave the running batch in any round; the rounds of the running rows go on beside the encoder.

Order of admission: finals, and what may become one, before partials; then whoever has waited longest. A partial whose
utterance asks for its final meanwhile is worthless; it is evicted when the final is submitted.

A row keeps what was encoded into it after its sequence is done. When its session asks again for a window that begins
there, the same row is lent: the same window is not encoded again, and of a longer one only what is not frozen
(`CachedWindow`).

Law: a sequence is in exactly one of waiting, running, finished; it holds a slot exactly while it runs (Status says how
far it is).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from engine.decode.sequence import Sequence, Status, StepTokens
from engine.decode.slots import SlotPool
from engine.session.requests import Request, Window
from engine.types import MAX_WINDOW_SAMPLES, POSITION_SAMPLES


@dataclass(frozen=True, slots=True)
class CachedWindow:
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
class Prefilled:
    """What is known about a window once its prompt has been prefilled."""

    language: str
    no_speech_prob: float
    language_prob: float = 1.0


@dataclass(frozen=True, slots=True)
class RoundOutput:
    """What the runner found; the lists run parallel to those of the round."""

    prefilled: tuple[Prefilled, ...]
    prefill_tokens: tuple[StepTokens, ...]
    decode_tokens: tuple[StepTokens, ...]


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
        self._cached: dict[int, CachedWindow] = {}  # by row
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
        for sequence in sorted(admitted, key=lambda s: self._cached_row(s) is None):
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
        steps = output.decode_tokens + output.prefill_tokens
        for sequence, step in zip(round_.decode + round_.prefill, steps, strict=True):
            sequence.enter(step)
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
        row = self._cached_row(sequence)
        window = sequence.request.window
        first = self._first_position(sequence.request, None if row is None else self._cached[row])
        return (window.end - window.start) // POSITION_SAMPLES - first

    def _cached_row(self, sequence: Sequence) -> int | None:
        """Return the free row that holds the beginning of the sequence's window."""
        row = self._rows.get(_beginning(sequence.request))
        return row if row is not None and self.slots.is_free(row) else None

    def _place(self, sequence: Sequence) -> None:
        """Give a sequence its slot, and find out what of its window is to be encoded."""
        request = sequence.request
        row = self._cached_row(sequence)
        held = self._cached[row] if row is not None else None
        sequence.slot = self.slots.acquire(row)
        if sequence.full_context:
            held = None
        if held and held.window == request.window and held.suits(request):
            sequence.status = Status.ENCODED
            return
        sequence.status = Status.ENCODING
        sequence.first_position = self._first_position(request, held)
        self._keep(sequence)

    def _first_position(self, request: Request, held: CachedWindow | None) -> int:
        """Return how many positions of the row may stay as they are."""
        if held is None or held.window.end > request.window.end:
            return 0
        return min(held.n_frozen, request.n_final_positions) if request.wants_whole else held.n_frozen

    def _keep(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        request, row = sequence.request, sequence.slot.index
        for stale in (row, self._rows.get(_beginning(request))):
            if stale in self._cached:
                self._forget_row(stale)
        # Windows of a session begin ever later: one that began before is asked for again only if it is in use now.
        self._forget(request.session_id, before=request.window.start)
        settled = request.window.end - request.window.start - self._freeze_after
        n_frozen = max(0, settled // POSITION_SAMPLES) if self._freeze_after else 0
        self._cached[row] = CachedWindow(request.session_id, request.window, n_frozen, sequence.first_position)
        self._rows[_beginning(request)] = row

    def _forget(self, session_id: str, before: float = math.inf) -> None:
        """What the session's free rows hold of windows that begin before a sample is worth nothing any more."""
        for row, held in list(self._cached.items()):
            if held.session_id == session_id and held.window.start < before and self.slots.is_free(row):
                self._forget_row(row)

    def _forget_row(self, row: int) -> None:
        held = self._cached.pop(row)
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
