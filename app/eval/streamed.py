"""Recordings as live speech: through a server's WebSocket at a given pace, a few at once, each a session of its own."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.bench import native
from app.bench.clips import Entry
from app.bench.delays import first_seen, word_delays
from app.bench.load import Message, Trace, speak_alone
from app.bench.process import free_port, running
from app.bench.reference import TimedWord
from app.bench.streams import ROOM_NOISE
from app.eval.measures import Revisions, SpokenWord, count_revisions, units
from app.eval.offline import Transcript
from engine.config import EngineConfig
from engine.types import SAMPLE_RATE, Samples, Stability
from tickscribe.messages import FinalMessage, PartialMessage, decode_server_message

_TAIL_S = 2.0  # quiet behind a recording, so that its last utterance ends by the pause
_SPARE_SESSIONS = 8


@dataclass(frozen=True, slots=True)
class Timing:
    """When one speaker could read what; seconds on the wall clock.

    Attributes:
        first_text_s: from the beginning of speech to the first text; None where there was no speech or no text.
        word_s: from the end of each word to its first showing, of those that were ever shown.
        n_words: words that could have been shown.
        final_s: from when the pause rule could fire to the final, for each utterance that a pause ended.
        late_s: of each packet, by how much the speaker missed its time; that is not the server's doing.
    """

    first_text_s: float | None
    word_s: tuple[float, ...]
    n_words: int
    final_s: tuple[float, ...]
    revisions: Revisions
    late_s: tuple[float, ...]


@contextmanager
def serving(engine: EngineConfig, *, n_streams: int) -> Iterator[str]:
    """Run a server in a process of its own; gives the address of its WebSocket.

    Raises:
        ServerFailed: it did not come up.
    """
    port = free_port()
    command = native.serve_command(engine, port, max_sessions=n_streams + _SPARE_SESSIONS)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(command, log=Path(folder) / "server.log", ready_url=f"http://127.0.0.1:{port}/readyz"),
    ):
        yield f"ws://127.0.0.1:{port}/v1/stream"


def stream_all(
    url: str,
    entries: Sequence[Entry],
    *,
    pace: float,
    n_streams: int,
    stability: Stability,
    on_done: Callable[[], None],
) -> list[Trace]:
    """Let recordings be spoken, so many at once; gives what was heard, in the order of the recordings.

    Raises:
        MediaError: a recording cannot be read.
    """

    async def speak_all() -> list[Trace]:
        places = asyncio.Semaphore(n_streams)

        async def speak(entry: Entry) -> Trace:
            async with places:
                audio = with_tail(await asyncio.to_thread(entry.load))
                trace = await speak_alone(native.NativeDialect(url, entry.language, stability), audio, pace=pace)
            on_done()
            return trace

        return await asyncio.gather(*(speak(entry) for entry in entries))

    return asyncio.run(speak_all())


def with_tail(audio: Samples) -> Samples:
    """Append the quiet of a room."""
    quiet = np.random.default_rng(1).normal(0, ROOM_NOISE, int(_TAIL_S * SAMPLE_RATE))
    return np.concatenate([audio, quiet.astype(np.float32)])


def to_transcript(trace: Trace) -> Transcript:
    """What is final in the end."""
    finals = [final for final in map(_decoded, trace.messages) if isinstance(final, FinalMessage)]
    return Transcript(
        text=" ".join(final.text.strip() for final in finals if final.text.strip()),
        words=tuple(SpokenWord(word.word, word.start, word.end) for final in finals for word in final.words),
        fault=trace.fault or native.fault(trace.messages),
    )


def judge(
    trace: Trace,
    *,
    language: str | None,
    words: Sequence[TimedWord],
    onset_s: float | None,
    pace: float,
    pause_s: float,
) -> Timing:
    """Compute all delays of one speaker; the messages' times are on the speaker's clock.

    Args:
        words: what is said, in order of their ends.
        onset_s: beginning of speech; None where there is none.
        pause_s: silence that ends an utterance.
    """
    updates = native.to_updates(trace.messages)
    seen = first_seen(words, ((update.at_s, update.shown) for update in updates))
    first = next((update.at_s for update in updates if update.shown.strip()), None)
    return Timing(
        first_text_s=None if first is None or onset_s is None else (first - onset_s) / pace,
        word_s=tuple(late / pace for _, late in word_delays(words, seen, since_s=0)),
        n_words=len(words),
        final_s=tuple((late - pause_s) / pace for _, late in native.finalisation_s(trace.messages)),
        revisions=_revisions(trace.messages, language),
        late_s=tuple(trace.lateness_s),
    )


def _revisions(messages: Sequence[Message], language: str | None) -> Revisions:
    """Over all utterances; one without a final has lost all that it showed."""
    partials: dict[int, list[list[str]]] = {}
    finals: dict[int, list[str]] = {}
    for message in map(_decoded, messages):
        match message:
            case PartialMessage(utterance=utterance, committed=committed, tentative=tentative):
                partials.setdefault(utterance, []).append(units(committed + tentative, language))
            case FinalMessage(utterance=utterance, text=text):
                finals[utterance] = units(text, language)
    counted = (count_revisions(texts, finals.get(utterance, [])) for utterance, texts in partials.items())
    return sum(counted, Revisions())


def _decoded(message: Message) -> object:
    return decode_server_message(message.text)
