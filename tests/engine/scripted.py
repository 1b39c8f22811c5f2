"""Stand-ins for the slow parts of the engine: recordings whose words are known, and a detector and decoders that read
them off. Sessions, scheduler and engine around them are the real ones.

In a scripted recording the level of the samples is the probability of speech, and one token is one word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.compute.runner import EncoderWork
from engine.decode.sampling import verify
from engine.decode.scheduler import Prefilled, Round, RoundOutput
from engine.decode.scheduler import Sequence as Running
from engine.decode.sequence import Status, StepTokens
from engine.session.endpoint import BLOCK_SAMPLES
from engine.session.requests import FinishReason, Hypothesis, Request, Window
from engine.types import SAMPLE_RATE, Samples, Word

END_OF_TEXT = -1
MISHEARD = 10_000  # added to the token of a word that its window cuts off

_LEVEL = 0.9


def ms(milliseconds: int) -> int:
    """Samples in so many milliseconds."""
    return milliseconds * SAMPLE_RATE // 1000


class WordVocabulary:
    """Token n is the word " wn"; every tenth ends a sentence."""

    def encode(self, text: str) -> list[int]:
        return [int(word.strip("w.")) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f" w{token}." if token % 10 == 9 else f" w{token}" for token in tokens)

    def split_words(self, tokens: Sequence[int], language: str | None) -> list[list[int]]:
        return [[token] for token in tokens]


# ---------------------------------------------------------------------------------------------- recordings


@dataclass(frozen=True, slots=True)
class Spoken:
    """One word of a recording, in samples."""

    token: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Audio and what is said in it."""

    samples: Samples
    spoken: tuple[Spoken, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(word.token for word in self.spoken)

    @property
    def text(self) -> str:
        return WordVocabulary().decode(self.tokens).strip()


@dataclass(frozen=True, slots=True)
class Phrase:
    """Silence, then words without a gap."""

    silence_ms: int
    words_ms: tuple[int, ...]


def record(phrases: Sequence[Phrase], *, trailing_ms: int = 0, first_token: int = 0) -> Recording:
    """Speak the phrases one after another."""
    spoken = []
    clock = 0
    for phrase in phrases:
        clock += ms(phrase.silence_ms)
        for duration in phrase.words_ms:
            spoken.append(Spoken(first_token + len(spoken), clock, clock + ms(duration)))
            clock = spoken[-1].end
    samples = np.zeros(clock + ms(trailing_ms), dtype=np.float32)
    for word in spoken:
        samples[word.start : word.end] = _LEVEL
    samples += 0.02 * np.sin(np.arange(len(samples), dtype=np.float32))  # no two stretches are alike
    return Recording(samples, tuple(spoken))


def steady_speech(n_words: int, *, word_ms: int = 400, trailing_ms: int = 0, first_token: int = 0) -> Recording:
    """One speaker who never pauses, after half a second of silence."""
    return record([Phrase(500, (word_ms,) * n_words)], trailing_ms=trailing_ms, first_token=first_token)


@st.composite
def recordings(draw: st.DrawFn, *, max_phrase_words: int = 12, max_phrases: int = 4) -> Recording:
    """Phrases with pauses short and long between them, and an end anywhere."""
    words = st.lists(st.integers(200, 600), min_size=1, max_size=12) | st.builds(
        lambda word_ms, n_words: [word_ms] * n_words, st.integers(200, 600), st.integers(1, max_phrase_words)
    )
    phrases = draw(
        st.lists(
            st.builds(Phrase, st.integers(0, 1500), words.map(tuple)),
            max_size=max_phrases,
        )
    )
    return record(phrases, trailing_ms=draw(st.integers(0, 1500)))


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a stream comes in: in steady steps from a microphone, or cut anywhere."""

    step_ms: int = 0
    cuts: tuple[float, ...] = ()  # shares of the whole, where there is no step

    def split(self, samples: Samples) -> list[Samples]:
        if self.step_ms:
            return np.split(samples, range(ms(self.step_ms), len(samples), ms(self.step_ms)))
        return np.split(samples, sorted(int(cut * len(samples)) for cut in self.cuts))


chunkings = st.builds(Chunking, step_ms=st.integers(80, 4000)) | st.builds(
    Chunking, cuts=st.lists(st.floats(0, 1), max_size=40).map(tuple)
)


# ---------------------------------------------------------------------------------------------- speech detector


class LevelDetector:
    """Takes the mean of a block for its speech probability."""

    def new_state(self) -> None:
        return None

    def probabilities(self, states: Sequence[None], audio: Sequence[Samples]) -> list[NDArray[np.float32]]:
        assert len(states) == len(audio)
        return [self.hear(samples) for samples in audio]

    def hear(self, samples: Samples) -> NDArray[np.float32]:
        return samples.reshape(-1, BLOCK_SAMPLES).mean(axis=1)


# ---------------------------------------------------------------------------------------------- decoders


Listen = Callable[[Window], list[Spoken]]


@dataclass(frozen=True, slots=True, eq=False)
class ScriptedDecoder:
    """Says the words that begin inside the window; one that the window cuts off is misheard, each time differently."""

    recording: Recording

    def listen(self, window: Window) -> list[Spoken]:
        heard = [word for word in self.recording.spoken if window.start <= word.start < window.end]
        if heard and heard[-1].end > window.end:
            heard[-1] = Spoken(heard[-1].token + MISHEARD + window.end, heard[-1].start, window.end)
        return heard

    def tokens(self, request: Request) -> list[int]:
        """All text tokens of the window; the forced prefix must be right, because it was committed."""
        tokens = [word.token for word in self.listen(request.window)]
        assert tuple(tokens[: len(request.prefix)]) == request.prefix, f"{request.prefix} was committed too early"
        return tokens

    def words(self, request: Request) -> tuple[Word, ...]:
        """Words with times, for requests that want them."""
        if not request.wants_words:
            return ()
        text = WordVocabulary().decode
        return tuple(Word(text([w.token]), (w.token,), w.start, w.end, 0.9) for w in self.listen(request.window))

    def hypothesis(self, request: Request) -> Hypothesis:
        tokens = tuple(self.tokens(request))
        return Hypothesis(tokens, -0.1, 0.01, "en", FinishReason.END_OF_TEXT, self.words(request))


class DoneEncoding:
    """The encoder is done at once."""

    is_done = True

    def __init__(self, n_windows: int) -> None:
        self._n_windows = n_windows

    def join(self) -> EncoderWork:
        return EncoderWork(windows=self._n_windows, runs=bool(self._n_windows), positions=1500 * self._n_windows)


@dataclass(slots=True, eq=False)
class ScriptedRunner:
    """Decodes each session by its own script, one token per round, drafts verified as the real one does.

    Attributes:
        decoders: by session id.
        admitted: everybody who was admitted, tick by tick.
        fault: raised by the next round.
    """

    decoders: Mapping[str, ScriptedDecoder]
    admitted: list[list[Running]] = field(default_factory=list)
    fault: Exception | None = None

    max_positions = None

    def encode(self, admitted: list[Running]) -> DoneEncoding:
        self.admitted.append(admitted)
        return DoneEncoding(sum(sequence.status is Status.ENCODING for sequence in admitted))

    def decode(self, round_: Round) -> RoundOutput:
        if self.fault is not None:
            raise self.fault
        decoded = tuple(self._gain(sequence, ()) for sequence in round_.decode)
        prefilled = tuple(
            self._gain(s, s.request.draft[: max(0, s.max_tokens - len(s.tokens) - 1)]) for s in round_.prefill
        )
        known = tuple(Prefilled(s.request.language or "en", 0.01) for s in round_.prefill)
        return RoundOutput(known, prefilled, decoded)

    def warm_up(self) -> None:
        return None

    def rescore(self, finished: list[Running]) -> int:
        return 0

    def align(self, finished: list[Running]) -> None:
        for sequence in finished:
            sequence.words = self.decoders[sequence.request.session_id].words(sequence.request)

    def _gain(self, sequence: Running, draft: tuple[int, ...]) -> StepTokens:
        said = self.decoders[sequence.request.session_id].tokens(sequence.request)
        rest = [*said[len(sequence.tokens) :], *[END_OF_TEXT] * (len(draft) + 1)]
        choices = rest[: len(draft) + 1]
        return verify(draft, choices, [-0.1] * len(choices), END_OF_TEXT)
