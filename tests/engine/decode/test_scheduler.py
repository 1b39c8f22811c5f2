"""Laws of the scheduler, which never sees a tensor."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from engine.decode.scheduler import Prefilled, Round, RoundOutput, Scheduler
from engine.decode.sequence import Sequence, Status, StepTokens
from engine.session.requests import FinishReason, Request, Window
from engine.types import POSITION_SAMPLES, SAMPLE_RATE

END = StepTokens((), (-0.1,), ended=True)
MORE = StepTokens((7,), (-0.2,), ended=False)


def make_request(
    session_id: str = "s",
    utterance_id: int = 0,
    *,
    window: Window | None = None,
    prefix: tuple[int, ...] = (),
    draft: tuple[int, ...] = (),
    is_final: bool = False,
    wants_words: bool = False,
    ready_at: float = 0.0,
    own_start: int = 0,
) -> Request:
    return Request(
        session_id=session_id,
        utterance_id=utterance_id,
        window=window or Window(0, 2 * SAMPLE_RATE),
        audio=np.zeros(1, dtype=np.float32),
        prefix=prefix,
        draft=draft,
        language="en",
        wants_words=is_final or wants_words,
        is_final=is_final,
        ready_at=ready_at,
        own_start=own_start,
    )


def make_output(round_: Round, gain: StepTokens) -> RoundOutput:
    """Every row gains the same."""
    known = tuple(Prefilled("en", 0.1) for _ in round_.prefill)
    return RoundOutput(known, (gain,) * len(round_.prefill), (gain,) * len(round_.decode))


def admit(scheduler: Scheduler) -> tuple[list[Sequence], Round]:
    """Encode who is admitted; return them, and what can be decoded then."""
    admitted = scheduler.admit()
    scheduler.mark_encoded()
    return admitted, scheduler.next_round()


def tick(scheduler: Scheduler, *, ended: bool = True) -> tuple[Round, list[Sequence]]:
    """Admit, encode, and one round in which every row gains one token, or ends."""
    _, round_ = admit(scheduler)
    finished = scheduler.update(round_, make_output(round_, END if ended else MORE))
    scheduler.release(finished)
    return round_, finished


def n_to_encode(scheduler: Scheduler) -> int:
    """Admit, and count the windows that the encoder has to see."""
    return sum(s.status is Status.ENCODING for s in scheduler.admit())


def keys(sequences: tuple[Sequence, ...] | list[Sequence]) -> list[str]:
    return [sequence.request.session_id for sequence in sequences]


def utterance_of(sequence: Sequence) -> tuple[str, int]:
    return sequence.request.session_id, sequence.request.utterance_id


@dataclass(slots=True)
class Row:
    """What the encoder has written into a row of the cache.

    Attributes:
        ends: (n_positions,) int64: per position the end of the window that was in view when it was encoded.
    """

    session: str
    window: Window
    ends: NDArray[np.int64]

    def n_kept(self, request: Request, freeze_after: int) -> int:
        """Leading positions that need not be encoded again."""
        own = self.ends[request.n_final_positions :]
        is_whole = bool((own == self.window.end).all())
        if self.window == request.window and (is_whole or not request.wants_whole):
            return len(self.ends)
        if self.window.end > request.window.end or not freeze_after:
            return 0
        position_ends = self.window.start + POSITION_SAMPLES * (1 + np.arange(len(self.ends)))
        n_frozen = int((self.window.end - position_ends >= freeze_after).cumprod().sum())
        return min(n_frozen, request.n_final_positions) if request.wants_whole else n_frozen


def beginning(row: Row) -> tuple[str, int]:
    return row.session, row.window.start


def beginning_of(sequence: Sequence) -> tuple[str, int]:
    return sequence.request.session_id, sequence.request.window.start


class AnyOrder(RuleBasedStateMachine):
    """Requests come and go in any order; the machine knows what the encoder wrote into each row."""

    @initialize(n_slots=st.integers(1, 4), freeze_after=st.sampled_from([0, SAMPLE_RATE, 2 * SAMPLE_RATE]))
    def start(self, n_slots: int, freeze_after: int) -> None:
        self.scheduler = Scheduler(n_slots, freeze_after=freeze_after)
        self.freeze_after = freeze_after
        self.rows: dict[int, Row] = {}
        self.everything: dict[Sequence, None] = {}
        self.clock = itertools.count()

    @rule(
        session=st.sampled_from("abc"),
        utterance=st.integers(0, 1),
        is_final=st.booleans(),
        wants_words=st.booleans(),
        start_s=st.sampled_from([0, 9]),
        seconds=st.integers(1, 6),
        lead_s=st.integers(0, 4),
    )
    def submit(
        self, session: str, utterance: int, is_final: bool, wants_words: bool, start_s: int, seconds: int, lead_s: int
    ) -> None:
        start = start_s * SAMPLE_RATE
        request = make_request(
            session,
            utterance,
            window=Window(start, start + seconds * SAMPLE_RATE),
            is_final=is_final,
            wants_words=wants_words,
            ready_at=next(self.clock),
            own_start=start + lead_s * SAMPLE_RATE,
        )
        self.scheduler.submit(request)
        mine = [s.request for s in self.live() if utterance_of(s) == (session, utterance)]
        assert mine == [request], "an older request of the utterance is evicted"

    @rule(session=st.sampled_from("abc"))
    def abort(self, session: str) -> None:
        self.scheduler.abort(session)
        assert session not in keys(self.live())
        self.rows = {index: row for index, row in self.rows.items() if row.session != session}

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def tick(self, data: st.DataObject) -> None:
        waiting, n_free = list(self.scheduler.waiting), self.scheduler.slots.n_free
        lent = {s.slot.index for s in self.scheduler.running if s.slot}
        held = self.held(lent)
        admitted = self.scheduler.admit()
        assert len(admitted) == min(len(waiting), n_free)
        self.check_admission(admitted, waiting)
        for sequence in sorted(admitted, key=lambda s: beginning_of(s) not in held):
            assert sequence.slot is not None
            row = self.held(lent).get(beginning_of(sequence))
            lent.add(sequence.slot.index)
            self.encode(sequence, row, lent)
        for _ in range(data.draw(st.integers(0, 3))):  # while the encoder is at work
            self.decode(data)
        self.scheduler.mark_encoded()
        assert not any(s.status is Status.ENCODING for s in self.scheduler.running)

    def decode(self, data: st.DataObject) -> None:
        """One round of all that is encoded."""
        round_ = self.scheduler.next_round()
        ready = [s for s in self.scheduler.running if s.status is not Status.ENCODING]
        assert sorted(map(id, round_.prefill + round_.decode)) == sorted(map(id, ready))
        assert all(not s.tokens[len(s.request.prefix) :] for s in round_.prefill)
        gains = st.sampled_from([END, MORE])
        prefill_tokens = tuple(data.draw(gains) for _ in round_.prefill)
        decode_tokens = tuple(data.draw(gains) for _ in round_.decode)
        output = RoundOutput(tuple(Prefilled("en", 0.1) for _ in round_.prefill), prefill_tokens, decode_tokens)
        finished = self.scheduler.retry(self.scheduler.update(round_, output))
        assert all(s.slot is not None and self.scheduler.slots.holds(s.slot) for s in finished)
        self.scheduler.release(finished)
        assert all(s.status is Status.FINISHED for s in finished)

    def check_admission(self, admitted: list[Sequence], waiting: list[Sequence]) -> None:
        """Finals, and what may become one, before partials; then whoever has waited longest."""
        order = [(not s.request.wants_whole, s.request.ready_at) for s in admitted]
        left = [(not s.request.wants_whole, s.request.ready_at) for s in waiting if s not in admitted]
        assert order == sorted(order)
        assert not order or not left or order[-1] <= min(left)

    def held(self, lent: set[int]) -> dict[tuple[str, int], Row]:
        """What can be found in rows that are free."""
        return {beginning(row): row for index, row in self.rows.items() if index not in lent}

    def encode(self, sequence: Sequence, held: Row | None, lent: set[int]) -> None:
        """Write what is to be encoded into the sequence's row: all that the request needs, and nothing twice."""
        request = sequence.request
        assert sequence.slot is not None
        n_positions = (request.window.end - request.window.start) // POSITION_SAMPLES
        n_kept = held.n_kept(request, self.freeze_after) if held and not sequence.full_context else 0
        ends = np.full(n_positions, request.window.end)
        if held and n_kept:
            assert self.rows.get(sequence.slot.index) is held, "what is kept lies in the row that was lent"
            ends[:n_kept] = held.ends[:n_kept]
        assert (sequence.status is Status.ENCODING) == (n_kept < n_positions)
        assert sequence.status is not Status.ENCODING or sequence.first_position == n_kept
        if sequence.status is Status.ENCODING:  # nobody asks again for what began before, unless it is in use
            begins = {i: beginning(row) for i, row in self.rows.items()}
            mine = beginning_of(sequence)
            stale = {i for i, at in begins.items() if at[0] == mine[0] and at[1] < mine[1] and i not in lent}
            stale |= {i for i, at in begins.items() if at == mine}
            self.rows = {i: row for i, row in self.rows.items() if i not in stale}
        self.rows[sequence.slot.index] = Row(request.session_id, request.window, ends)

    def live(self) -> list[Sequence]:
        live = self.scheduler.waiting + self.scheduler.running
        self.everything.update(dict.fromkeys(live))
        return live

    @invariant()
    def a_sequence_is_in_one_state_and_holds_a_slot_exactly_while_it_runs(self) -> None:
        live = self.live()
        assert len(live) == len(set(live))
        for sequence in self.scheduler.waiting:
            assert sequence.status is Status.WAITING and sequence.slot is None
        for sequence in self.scheduler.running:
            assert sequence.status in (Status.ENCODING, Status.ENCODED, Status.DECODING)
            assert sequence.slot is not None and self.scheduler.slots.holds(sequence.slot)
        for sequence in self.everything.keys() - set(live):
            assert sequence.slot is None
        assert self.scheduler.slots.n_used == len(self.scheduler.running)
        assert self.scheduler.has_work == bool(live)


TestAnyOrder = AnyOrder.TestCase


def test_rows_join_and_leave_the_running_batch_at_any_tick() -> None:
    scheduler = Scheduler(4)
    scheduler.submit(make_request("a"))
    tick(scheduler, ended=False)
    scheduler.submit(make_request("b"))
    round_, _ = tick(scheduler, ended=False)
    assert (keys(round_.decode), keys(round_.prefill)) == (["a"], ["b"])
    round_, finished = tick(scheduler)
    assert keys(round_.decode) == ["a", "b"] and keys(finished) == ["a", "b"]
    assert not scheduler.has_work and not scheduler.next_round()


def test_running_rows_go_on_while_others_are_encoded() -> None:
    scheduler = Scheduler(4)
    scheduler.submit(make_request("a"))
    tick(scheduler, ended=False)
    scheduler.submit(make_request("b"))
    assert keys(scheduler.admit()) == ["b"]
    for _ in range(3):
        round_ = scheduler.next_round()
        assert (keys(round_.decode), round_.prefill) == (["a"], ())
        scheduler.update(round_, make_output(round_, MORE))
    scheduler.mark_encoded()
    assert keys(scheduler.next_round().prefill) == ["b"]


def test_finals_go_first() -> None:
    scheduler = Scheduler(1)
    scheduler.submit(make_request("partial", ready_at=1.0))
    scheduler.submit(make_request("final", is_final=True, ready_at=2.0))
    assert [keys(tick(scheduler)[0].prefill) for _ in range(2)] == [["final"], ["partial"]]


def test_a_final_evicts_the_partial_of_its_utterance() -> None:
    scheduler = Scheduler(1)
    scheduler.submit(make_request("a"))
    tick(scheduler, ended=False)
    scheduler.submit(make_request("a", is_final=True, window=Window(0, 3 * SAMPLE_RATE)))
    round_, finished = tick(scheduler)
    assert round_.decode == ()
    assert [s.request.is_final for s in finished] == [True]


def test_utterances_of_a_session_run_side_by_side() -> None:
    scheduler = Scheduler(2)
    scheduler.submit(make_request(utterance_id=0, is_final=True))
    scheduler.submit(make_request(utterance_id=1, window=Window(80_000, 90_000)))
    assert len(tick(scheduler)[0].prefill) == 2


@given(n_sessions=st.integers(1, 12), n_slots=st.integers(1, 4), length=st.integers(0, 3), is_final=st.booleans())
def test_everybody_is_admitted_within_one_round_of_all_sessions(
    n_sessions: int, n_slots: int, length: int, is_final: bool
) -> None:
    """Each session asks again as soon as it is answered; none waits for more than one answer of every other."""
    scheduler = Scheduler(n_slots)
    clock = itertools.count()
    for session in range(n_sessions):
        scheduler.submit(make_request(str(session), is_final=is_final, ready_at=next(clock)))
    most_ticks = -(-n_sessions // n_slots) * (length + 1) + 1
    waited = dict.fromkeys(map(str, range(n_sessions)), 0)
    for _ in range(5 * most_ticks):
        admitted, round_ = admit(scheduler)
        for session in waited:
            waited[session] = 0 if session in keys(admitted) else waited[session] + 1
        assert max(waited.values()) <= most_ticks
        gains = [END if len(s.tokens) >= length else MORE for s in (*round_.prefill, *round_.decode)]
        known = tuple(Prefilled("en", 0.1) for _ in round_.prefill)
        split = len(round_.prefill)
        finished = scheduler.update(round_, RoundOutput(known, tuple(gains[:split]), tuple(gains[split:])))
        scheduler.release(finished)
        for sequence in finished:
            scheduler.submit(make_request(sequence.request.session_id, is_final=is_final, ready_at=next(clock)))


def test_a_window_that_is_asked_for_again_is_not_encoded_again() -> None:
    scheduler = Scheduler(3)
    scheduler.submit(make_request("other"))
    scheduler.submit(make_request("a"))
    tick(scheduler)
    scheduler.submit(make_request("new", is_final=True))
    scheduler.submit(make_request("a", is_final=True))
    admitted = scheduler.admit()
    assert sorted(keys(admitted)) == ["a", "new"]
    assert {s.request.session_id: s.status for s in admitted} == {"new": Status.ENCODING, "a": Status.ENCODED}
    assert keys(scheduler.next_round().prefill) == ["a"], "it need not wait for the encoder"


def test_a_longer_window_is_encoded() -> None:
    scheduler = Scheduler(1)
    scheduler.submit(make_request())
    tick(scheduler)
    scheduler.submit(make_request(window=Window(0, 2 * SAMPLE_RATE + 1)))
    assert n_to_encode(scheduler) == 1


def test_a_new_session_with_an_old_name_gets_its_own_audio() -> None:
    scheduler = Scheduler(1)
    scheduler.submit(make_request())
    tick(scheduler)
    scheduler.abort("s")
    scheduler.submit(make_request())
    assert n_to_encode(scheduler) == 1


def test_the_result_carries_what_was_gained() -> None:
    scheduler = Scheduler(1)
    scheduler.submit(make_request(prefix=(1, 2)))
    _, round_ = admit(scheduler)
    known = (Prefilled("de", 0.25),)
    assert scheduler.update(round_, RoundOutput(known, (StepTokens((3, 4), (-1.0, -2.0), ended=False),), ())) == []
    round_ = scheduler.next_round()
    (sequence,) = scheduler.update(round_, RoundOutput((), (), (StepTokens((), (-3.0,), ended=True),)))
    hypothesis = sequence.to_hypothesis()
    assert hypothesis.tokens == (1, 2, 3, 4)
    assert hypothesis.avg_logprob == pytest.approx(-2.0)
    assert (hypothesis.language, hypothesis.no_speech_prob) == ("de", 0.25)
    assert hypothesis.finish_reason is FinishReason.END_OF_TEXT


@given(seconds=st.integers(1, 30), gained=st.integers(1, 40))
def test_a_loop_ends_at_the_token_limit(seconds: int, gained: int) -> None:
    scheduler = Scheduler(1)
    scheduler.submit(make_request(window=Window(0, seconds * SAMPLE_RATE)))
    words = itertools.count()  # no two alike: nothing repeats
    finished: list[Sequence] = []
    while not finished:
        _, round_ = admit(scheduler)
        gain = StepTokens(tuple(next(words) for _ in range(gained)), (-0.1,) * gained, ended=False)
        finished = scheduler.update(round_, make_output(round_, gain))
    (sequence,) = finished
    assert sequence.finish_reason is FinishReason.TOKEN_LIMIT
    assert len(sequence.tokens) == sequence.max_tokens <= 224


@given(words=st.lists(st.integers(0, 2), max_size=24), cut=st.integers(0, 24))
def test_a_draft_is_broken_off_where_plain_decoding_is(words: list[int], cut: int) -> None:
    """All tokens gained in two ticks, and one by one."""
    results = []
    for gains in ([words[:cut], words[cut:]], [[word] for word in words]):
        scheduler = Scheduler(1)
        scheduler.submit(make_request())
        finished: list[Sequence] = []
        for gained in [gain for gain in gains if gain] + [[]]:
            _, round_ = admit(scheduler)
            gain = StepTokens(tuple(gained), (-0.1,) * len(gained or [0]), ended=not gained)
            finished = scheduler.update(round_, make_output(round_, gain))
            if finished:
                break
        results.append(finished[0].to_hypothesis())
    assert results[0].tokens == results[1].tokens
    assert results[0].finish_reason == results[1].finish_reason
    assert results[0].avg_logprob == pytest.approx(results[1].avg_logprob)


def test_a_loop_takes_no_committed_text_back() -> None:
    scheduler = Scheduler(1)
    scheduler.submit(make_request(prefix=(1, 7, 7, 7, 7)))
    _, round_ = admit(scheduler)
    (sequence,) = scheduler.update(round_, make_output(round_, StepTokens((7,) * 20, (-0.1,) * 20, ended=False)))
    assert sequence.finish_reason is FinishReason.LOOP
    assert sequence.tokens == [1, 7, 7, 7, 7]


def growing(seconds: float, session_id: str = "s", *, is_final: bool = False) -> Request:
    return make_request(session_id, window=Window(0, int(seconds * SAMPLE_RATE)), is_final=is_final)


def row_and_first(scheduler: Scheduler, request: Request) -> tuple[int, int]:
    """Run one request to its end; tell its row and from which position it was encoded."""
    scheduler.submit(request)
    (sequence,), round_ = admit(scheduler)
    assert sequence.slot is not None
    row = sequence.slot.index
    scheduler.release(scheduler.update(round_, make_output(round_, END)))
    return row, sequence.first_position


def test_of_a_growing_window_only_what_is_not_frozen_is_encoded() -> None:
    scheduler = Scheduler(2, freeze_after=2 * SAMPLE_RATE)
    firsts = [row_and_first(scheduler, growing(seconds))[1] for seconds in (1.5, 3, 5)]
    assert firsts == [0, 0, 50], "50 positions a second: at 3 s the first second was frozen"


def test_without_freezing_every_window_is_encoded_whole() -> None:
    scheduler = Scheduler(2)
    assert [row_and_first(scheduler, growing(seconds))[1] for seconds in (3, 5, 9)] == [0, 0, 0]


def test_what_may_become_final_is_encoded_whole() -> None:
    scheduler = Scheduler(2, freeze_after=2 * SAMPLE_RATE)
    row_and_first(scheduler, growing(3))
    assert row_and_first(scheduler, growing(5))[1] == 50
    assert row_and_first(scheduler, growing(5, is_final=True))[1] == 0, "a window with a frozen prefix will not do"
    scheduler.submit(growing(5, is_final=True))
    assert n_to_encode(scheduler) == 0


def test_an_utterance_finds_its_row_while_others_are_free() -> None:
    scheduler = Scheduler(3, freeze_after=SAMPLE_RATE)
    rows = {session: row_and_first(scheduler, growing(2, session))[0] for session in "abc"}
    assert len(set(rows.values())) == 3
    for seconds in (3, 4):
        for session in "bca":
            expected = (rows[session], 50 * (seconds - 2))
            assert row_and_first(scheduler, growing(seconds, session)) == expected


def test_the_row_of_a_session_that_is_gone_goes_first() -> None:
    scheduler = Scheduler(2, freeze_after=SAMPLE_RATE)
    for session in "ab":
        row_and_first(scheduler, growing(2, session))
    scheduler.abort("b")
    row_and_first(scheduler, growing(2, "c"))
    assert row_and_first(scheduler, growing(3, "a"))[1] == 50


def test_the_row_of_a_window_that_began_earlier_goes_first() -> None:
    scheduler = Scheduler(3, freeze_after=SAMPLE_RATE)
    row_and_first(scheduler, growing(2, "a"))
    row_and_first(scheduler, growing(2, "b"))
    row_and_first(scheduler, make_request("b", window=Window(SAMPLE_RATE, 4 * SAMPLE_RATE)))
    row_and_first(scheduler, growing(2, "c"))
    assert row_and_first(scheduler, growing(3, "a"))[1] == 50


def test_a_row_in_use_is_kept_though_the_session_goes_on_without_it() -> None:
    """A final that takes its time: meanwhile the next utterance asks without a lead, and then with it."""
    scheduler = Scheduler(3, freeze_after=SAMPLE_RATE)
    scheduler.submit(make_request(window=Window(0, 5 * SAMPLE_RATE), is_final=True))
    admit(scheduler)
    second = {"utterance_id": 1, "own_start": 6 * SAMPLE_RATE}
    scheduler.submit(make_request(window=Window(6 * SAMPLE_RATE, 7 * SAMPLE_RATE), **second))
    tick(scheduler)
    scheduler.submit(make_request(window=Window(0, 8 * SAMPLE_RATE), **second))
    (sequence,) = scheduler.admit()
    assert sequence.first_position == 200


def test_a_second_try_counts_as_a_whole_window() -> None:
    scheduler = Scheduler(4, freeze_after=SAMPLE_RATE, max_positions=600)
    loop = StepTokens((7,) * 40, (-0.1,) * 40, ended=False)
    scheduler.submit(make_request("a", window=Window(0, 5 * SAMPLE_RATE), is_final=True))
    _, round_ = admit(scheduler)
    scheduler.retry(scheduler.update(round_, make_output(round_, loop)))
    scheduler.submit(make_request("b", is_final=True, ready_at=1.0))
    assert keys(scheduler.admit()) == ["a"]


def test_what_leads_to_an_utterance_stays_as_it_was_encoded_for_the_one_before() -> None:
    scheduler = Scheduler(2, freeze_after=SAMPLE_RATE)
    row_and_first(scheduler, growing(5, is_final=True))
    second = {"utterance_id": 1, "own_start": 11 * SAMPLE_RATE // 2}
    begins = [
        row_and_first(scheduler, make_request(window=Window(0, seconds * SAMPLE_RATE), is_final=final, **second))[1]
        for seconds, final in ((7, False), (9, False), (9, True))
    ]
    assert begins == [200, 300, 275], "of the final all that is the utterance's own is encoded whole"
    scheduler.submit(make_request(window=Window(0, 9 * SAMPLE_RATE), is_final=True, **second))
    assert n_to_encode(scheduler) == 0


def test_a_window_whose_text_looks_wrong_is_tried_once_more_with_full_context() -> None:
    scheduler = Scheduler(1)
    scheduler.submit(make_request(is_final=True))
    loop = StepTokens((7,) * 40, (-0.1,) * 40, ended=False)
    contexts = []
    for _ in range(2):
        (sequence,) = scheduler.admit()
        assert sequence.status is Status.ENCODING, "the held output is what went wrong"
        contexts.append(sequence.full_context)
        scheduler.mark_encoded()
        round_ = scheduler.next_round()
        ended = scheduler.update(round_, make_output(round_, loop))
        finished = scheduler.retry(ended)
        scheduler.release(finished)
    assert contexts == [False, True]
    (sequence,) = finished
    assert sequence.finish_reason is FinishReason.LOOP and sequence.tokens == [7]
    assert not scheduler.has_work


def test_no_more_positions_are_admitted_at_once_than_the_bound_but_for_a_window_that_is_longer() -> None:
    scheduler = Scheduler(8, max_positions=200)
    for session, seconds in zip("abcd", (2, 2, 1, 9), strict=True):  # 50 positions a second
        scheduler.submit(growing(seconds, session))
    assert [keys(tick(scheduler)[0].prefill) for _ in range(3)] == [["a", "b"], ["c"], ["d"]]
