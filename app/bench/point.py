"""One measurement: N speakers at once, what they got and how late. Pure.

Shared by `bench capacity` and `bench peers`, so that every server is judged by the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.bench.delays import Distribution, Update, drift_s_per_min, first_seen, phrase_delays, word_delays
from app.bench.load import Trace
from app.bench.scoring import word_error_rate
from app.bench.streams import Stream

MAX_LATENESS_S = 0.05  # of the load generator's own, at p99; beyond it the measurement is void


@dataclass(frozen=True, slots=True)
class Heard:
    """What a speaker got: the updates of its text, and why it ended early (None: it did not)."""

    updates: Sequence[Update]
    fault: str | None

    @property
    def text(self) -> str:
        """What stood there in the end; some servers never call their last words final."""
        return self.updates[-1].shown if self.updates else ""


@dataclass(frozen=True, slots=True)
class Quality:
    """How well N speakers were served; delays in seconds, from the scheduled time of the sound.

    Attributes:
        word: from the end of a word to its first showing.
        word_committed, word_final: until it stood in text that is not revised any more, in final text.
        phrase_shown, phrase_final: from the end of a recording's speech until all words of it that were ever right
            were shown, were final.
        drift_s_per_min: growth of the word delay.
        words_shown: share of the words of the offline decoding that were shown at some time.
        wer, offline_wer: of the text in the end, and of the padded offline decoding of the same recordings.
        lateness: of the load generator itself.
        held_up_s: longest time that a server took to accept a packet.
        faults: why conversations ended early.
        lost_phrases: recordings of which nothing at all is in the text in the end.
    """

    word: Distribution
    word_committed: Distribution
    word_final: Distribution
    phrase_shown: Distribution
    phrase_final: Distribution
    drift_s_per_min: float
    words_shown: float
    wer: float
    offline_wer: float
    lateness: Distribution
    held_up_s: float
    faults: tuple[str, ...]
    lost_phrases: tuple[str, ...]

    @property
    def is_void(self) -> bool:
        """The load generator was late itself: the measurement says nothing of the server."""
        return self.lateness.p99 > MAX_LATENESS_S


def judge(streams: Sequence[Stream], traces: Sequence[Trace], heard: Sequence[Heard], *, warm_up_s: float) -> Quality:
    """Compute everything from the traces.

    Args:
        streams: what was said.
        traces: how the load generator kept its schedule.
        heard: what came back, one per stream.
        warm_up_s: delays of what was said before are left out.
    """
    words, committed, final = list[tuple[float, float]](), list[float](), list[float]()
    phrase_shown, phrase_final, lost = list[float](), list[float](), list[str]()
    n_words = n_shown = 0
    for stream, one in zip(streams, heard, strict=True):
        shown_at = first_seen(stream.words, ((u.at_s, u.shown) for u in one.updates))
        committed_at = first_seen(stream.words, ((u.at_s, u.committed) for u in one.updates))
        final_at = first_seen(stream.words, ((u.at_s, u.final) for u in one.updates))
        n_words += len(shown_at)
        n_shown += sum(at is not None for at in shown_at)
        words += word_delays(stream.words, shown_at, since_s=warm_up_s)
        committed += [late for _, late in word_delays(stream.words, committed_at, since_s=warm_up_s)]
        final += [late for _, late in word_delays(stream.words, final_at, since_s=warm_up_s)]
        phrase_shown += phrase_delays(stream.phrases, shown_at, since_s=warm_up_s)[0]
        phrase_final += phrase_delays(stream.phrases, final_at, since_s=warm_up_s)[0]
        lost += phrase_delays(stream.phrases, first_seen(stream.words, [(math.inf, one.text)]), since_s=0)[1]
    texts = [one.text for one in heard]
    references = [stream.reference for stream in streams]
    return Quality(
        word=Distribution.of(late for _, late in words),
        word_committed=Distribution.of(committed),
        word_final=Distribution.of(final),
        phrase_shown=Distribution.of(phrase_shown),
        phrase_final=Distribution.of(phrase_final),
        drift_s_per_min=drift_s_per_min(words),
        words_shown=n_shown / n_words if n_words else math.nan,
        wer=word_error_rate(references, texts),
        offline_wer=word_error_rate(references, [stream.offline for stream in streams]),
        lateness=Distribution.of(late for trace in traces for late in trace.lateness_s),
        held_up_s=max((trace.held_up_s for trace in traces), default=0.0),
        faults=tuple(one.fault for one in heard if one.fault),
        lost_phrases=tuple(lost),
    )
