"""One tick of continuous batching: the encoder beside rounds of the decoder.

The engine moves scheduler and runner on by this and hands the results to its sessions; benchmarks and tests do the same
without sessions. The windows that are encoded in a tick are prefilled in the first round of the next one, which begins
as soon as the encoder is done, so that neither waits for the other: the encoder goes on with what was admitted next
while the decoder has the windows before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from engine.decode.scheduler import Round, RoundOutput, Scheduler
from engine.decode.sequence import Sequence


@dataclass(frozen=True, slots=True)
class EncoderWork:
    """What the encoder had to do; `TickStats` explains the fields."""

    windows: int = 0
    runs: int = 0
    positions: int = 0
    ms: float = 0.0


class Encoding(Protocol):
    """The encoder at work."""

    @property
    def is_done(self) -> bool:
        """`join` would not wait."""
        ...

    def join(self) -> EncoderWork:
        """Wait for the end."""
        ...


class Runner(Protocol):
    """What computes: compute/runner.py, or a script in tests."""

    @property
    def max_positions(self) -> int | None:
        """Encoder positions that are worth admitting at once; None is no bound."""
        ...

    def warm_up(self) -> None:
        """Compute what is kept for ever."""
        ...

    def encode(self, admitted: list[Sequence]) -> Encoding:
        """Start to encode the windows of those that are ENCODING."""
        ...

    def decode(self, round_: Round) -> RoundOutput:
        """Prefill and one step."""
        ...

    def rescore(self, finished: list[Sequence]) -> int:
        """Give a likelier text to those that want words, where there is one; return the passes that took."""
        ...

    def align(self, finished: list[Sequence]) -> None:
        """Set the words of those that want them."""
        ...


@dataclass(slots=True)
class TickWork:
    """What a tick cost and gained; `TickStats` explains the fields.

    Attributes:
        retried: what was decoded but looked wrong, and waits to be decoded again.
    """

    encoder: EncoderWork = field(default_factory=EncoderWork)
    decode_ms: float = 0.0
    decode_rows: int = 0
    retried: list[Sequence] = field(default_factory=list)
    tokens: int = 0
    passes: int = 0
    greedy_passes: int = 0


def run_tick(
    scheduler: Scheduler, runner: Runner, admitted: list[Sequence], on_finished: Callable[[Sequence], None]
) -> TickWork:
    """Encode what was admitted, and decode beside it: one round, and on until the encoder is done or every row is.

    Args:
        admitted: what `scheduler.admit` returned.
        on_finished: called with each result; the sequence has given its slot back.
    """
    work = TickWork()
    encoding = runner.encode(admitted)
    while round_ := scheduler.next_round():
        _run_round(scheduler, runner, round_, on_finished, work)
        if encoding.is_done:
            break
    work.encoder = encoding.join()
    scheduler.mark_encoded()
    return work


def _run_round(
    scheduler: Scheduler, runner: Runner, round_: Round, on_finished: Callable[[Sequence], None], work: TickWork
) -> None:
    started = time.perf_counter()
    output = runner.decode(round_)
    work.decode_rows = max(work.decode_rows, len(round_.prefill) + len(round_.decode))
    work.passes += bool(round_.prefill) + bool(round_.decode)
    work.tokens += sum(len(gain.tokens) for gain in output.prefill_tokens + output.decode_tokens)
    ended = scheduler.update(round_, output)
    finished = scheduler.retry(ended)
    work.passes += runner.rescore(finished)
    work.decode_ms += 1000 * (time.perf_counter() - started)
    runner.align(finished)
    scheduler.release(finished)
    work.retried += [sequence for sequence in ended if sequence not in finished]
    work.greedy_passes += sum(len(sequence.tokens) + 1 for sequence in finished)
    for sequence in finished:
        on_finished(sequence)


def run_to_end(scheduler: Scheduler, runner: Runner) -> list[Sequence]:
    """Tick until nothing waits or runs; return the results in the order in which they came."""
    finished: list[Sequence] = []
    while scheduler.has_work:
        run_tick(scheduler, runner, scheduler.admit(), finished.append)
    return finished
