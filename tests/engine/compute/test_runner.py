"""Plans become the tokens that plain greedy decoding of each window alone would give."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.compute.runner import ModelRunner, choose_device, default_slots
from engine.config import Context, Device, EncoderMode
from engine.decode.sequence import Sequence
from engine.errors import ConfigError
from engine.models.whisper.checkpoint import Checkpoint
from engine.models.whisper.tokenizer import Tokenizer
from engine.session.history import MAX_HISTORY_TOKENS
from engine.session.hotwords import Hotwords, hotwords_of
from engine.session.requests import FinishReason, Hypothesis, Request
from engine.types import SAMPLE_RATE, Samples, Task
from tests.conftest import Clip, LoadClip
from tests.engine.conftest import Spoken
from tests.engine.real_models import Transcriber, make_request, make_runner, random_checkpoint

N_WORDS = 30  # what the random model may say


@pytest.fixture(scope="module")
def said(runner: ModelRunner, spoken: Spoken) -> list[Hypothesis]:
    """All recordings in one batch, with words."""
    return Transcriber(runner)([make_request(audio, wants_words=True) for audio in spoken.audio])


@pytest.fixture(scope="module")
def tail_runner(tiny_en: Checkpoint, tokenizer: Tokenizer) -> ModelRunner:
    return make_runner(tiny_en, tokenizer, context=Context.TAIL)


def tokens_of(hypotheses: list[Hypothesis]) -> list[tuple[int, ...]]:
    return [hypothesis.tokens for hypothesis in hypotheses]


def assert_alike(left: Hypothesis, right: Hypothesis) -> None:
    """The same text, and as good as the same numbers."""
    assert left.tokens == right.tokens
    assert (left.finish_reason, left.language) == (right.finish_reason, right.language)
    assert left.avg_logprob == pytest.approx(right.avg_logprob, abs=1e-3)
    assert left.no_speech_prob == pytest.approx(right.no_speech_prob, abs=1e-3)


# ------------------------------------------------------------------------------------------------ batches


def test_greedy_tokens_equal_the_reference(said: list[Hypothesis], spoken: Spoken) -> None:
    assert tokens_of(said) == spoken.tokens
    assert {hypothesis.finish_reason for hypothesis in said} == {FinishReason.END_OF_TEXT}


@pytest.mark.parametrize("index", [0, 2])
def test_a_batch_of_one_equals_a_batch_of_many(
    runner: ModelRunner, said: list[Hypothesis], spoken: Spoken, index: int
) -> None:
    (alone,) = Transcriber(runner)([make_request(spoken.audio[index])])
    assert_alike(alone, said[index])


def test_rows_that_join_at_any_tick_and_are_used_again_say_the_same(
    runner: ModelRunner, said: list[Hypothesis], spoken: Spoken
) -> None:
    """Two rows for four windows: the shortest ends first, and its row goes to a longer one."""
    answers = Transcriber(runner, n_slots=2)([make_request(audio) for audio in spoken.audio], together=1)
    for answer, expected in zip(answers, said, strict=True):
        assert_alike(answer, expected)


@pytest.mark.parametrize("context", list(Context))
def test_the_encoder_says_the_same_window_by_window_and_all_at_once(
    tiny_en: Checkpoint, tokenizer: Tokenizer, spoken: Spoken, context: Context
) -> None:
    n_windows = 3
    found = []
    for mode, n_runs in ((EncoderMode.SEQUENTIAL, n_windows), (EncoderMode.BATCHED, 1)):
        transcribe = Transcriber(make_runner(tiny_en, tokenizer, n_slots=n_windows, encoder=mode, context=context))
        found.append(transcribe([make_request(audio) for audio in spoken.audio[:n_windows]]))
        first, *rest = transcribe.efforts
        assert (first.encoder.windows, first.encoder.runs) == (n_windows, n_runs)
        assert not any(effort.encoder.runs for effort in rest)
    for one_by_one, at_once in zip(*found, strict=True):
        assert_alike(one_by_one, at_once)


def test_the_silence_tail_computes_less_and_says_nearly_the_same(
    tail_runner: ModelRunner, said: list[Hypothesis], spoken: Spoken
) -> None:
    transcribe = Transcriber(tail_runner)
    answers = transcribe([make_request(audio) for audio in spoken.audio])
    n_positions = sum(len(audio) for audio in spoken.audio) // 320
    assert n_positions < transcribe.efforts[0].encoder.positions < 2 * n_positions
    differ = sum(len(set(a.tokens) ^ set(b.tokens)) for a, b in zip(answers, said, strict=True))
    assert differ <= 0.1 * sum(len(hypothesis.tokens) for hypothesis in said)


def test_a_window_that_is_held_is_not_encoded_again(tail_runner: ModelRunner, spoken: Spoken) -> None:
    transcribe = Transcriber(tail_runner)
    first = transcribe([make_request(spoken.audio[0], session_id="a")])
    n_ticks = len(transcribe.efforts)
    again = transcribe([make_request(spoken.audio[0], session_id="a")])
    assert tokens_of(again) == tokens_of(first)
    assert sum(effort.encoder.windows for effort in transcribe.efforts[n_ticks:]) == 0


# ------------------------------------------------------------------------------------------------ prefix and draft


def test_a_draft_changes_the_cost_and_not_the_text(tail_runner: ModelRunner, spoken: Spoken) -> None:
    transcribe = Transcriber(tail_runner)
    (plain,) = transcribe([make_request(spoken.audio[0], session_id="a")])
    text = list(plain.tokens)
    random = np.random.default_rng(0).integers(0, 50_000, 9).tolist()
    drafts = {
        "right": text,
        "truncated": text[: len(text) // 2],
        "too long": [*text, 11, 12],
        "wrong at once": [11, *text[1:]],
        "wrong in the middle": [*text[:5], 11, *text[6:]],
        "one word left out": [*text[:5], *text[6:]],
        "random": random,
        "longer than a row": random * 100,
    }
    n_ticks = {}
    for name, draft in drafts.items():
        before = len(transcribe.efforts)
        (answer,) = transcribe([make_request(spoken.audio[0], session_id="a", draft=draft)])
        assert_alike(answer, plain)
        n_ticks[name] = len(transcribe.efforts) - before
    assert n_ticks["right"] == n_ticks["too long"] == 1
    assert n_ticks["random"] == len(text) + 1, "one per token, and one for the end"
    assert n_ticks["truncated"] == len(text) + 1 - len(text) // 2


def test_a_forced_prefix_is_kept_whatever_it_is(tail_runner: ModelRunner, spoken: Spoken) -> None:
    transcribe = Transcriber(tail_runner)
    (plain,) = transcribe([make_request(spoken.audio[0], session_id="a")])
    (same,) = transcribe([make_request(spoken.audio[0], session_id="a", prefix=plain.tokens[:4])])
    assert same.tokens == plain.tokens
    other = (11, 12, 13)
    (forced,) = transcribe([make_request(spoken.audio[0], session_id="a", prefix=other, draft=plain.tokens)])
    assert forced.tokens[:3] == other and len(forced.tokens) > 3


class Nonsense:
    """A random model behind a runner, and some noise for it to hear."""

    def __init__(self, like: Checkpoint, tokenizer: Tokenizer, *, seed: int) -> None:
        checkpoint = random_checkpoint(like, seed=seed, n_words=N_WORDS)
        self.vocabulary = sorted({*range(tokenizer.eot)} - {*checkpoint.suppress_tokens})
        self.transcribe = Transcriber(make_runner(checkpoint, tokenizer, n_slots=2), n_slots=2)

    def request(self, seed: int, *, draft: tuple[int, ...] = (), prefix: tuple[int, ...] = ()) -> Request:
        """The draft and the prefix are indices into the vocabulary."""
        noise: Samples = np.random.default_rng(seed).standard_normal(SAMPLE_RATE // 4).astype(np.float32) / 10
        return make_request(
            noise,
            session_id=str(seed),
            draft=[self.vocabulary[i] for i in draft],
            prefix=[self.vocabulary[i] for i in prefix],
        )

    def indices(self, hypothesis: Hypothesis) -> list[int]:
        return [self.vocabulary.index(token) for token in hypothesis.tokens]


@pytest.fixture(scope="module")
def nonsense(tiny_en: Checkpoint, tokenizer: Tokenizer) -> Nonsense:
    return Nonsense(tiny_en, tokenizer, seed=5)


words = st.lists(st.integers(0, N_WORDS - 1), max_size=20).map(tuple)


@given(audio_seed=st.integers(0, 1), prefix=words.map(lambda w: w[:5]), n_right=st.integers(0, 20), rest=words)
@settings(max_examples=15)
def test_any_draft_gives_what_no_draft_gives(
    nonsense: Nonsense, audio_seed: int, prefix: tuple[int, ...], n_right: int, rest: tuple[int, ...]
) -> None:
    (plain,) = nonsense.transcribe([nonsense.request(audio_seed, prefix=prefix)])
    right = nonsense.indices(plain)[len(prefix) :]
    draft = (*right[:n_right], *rest)
    (drafted,) = nonsense.transcribe([nonsense.request(audio_seed, prefix=prefix, draft=draft)])
    assert_alike(drafted, plain)


@given(
    audio_seed=st.integers(0, 1),
    hot=st.lists(words.filter(len), min_size=1, max_size=3),
    n_right=st.integers(0, 20),
    rest=words,
)
@settings(max_examples=10)
def test_hotwords_change_the_text_and_a_draft_does_not(
    nonsense: Nonsense, audio_seed: int, hot: list[tuple[int, ...]], n_right: int, rest: tuple[int, ...]
) -> None:
    hotwords = Hotwords([[nonsense.vocabulary[i] for i in path] for path in hot])
    request = nonsense.request(audio_seed)
    (plain,) = nonsense.transcribe([replace(request, hotwords=hotwords)])
    draft = (*nonsense.indices(plain)[:n_right], *rest)
    (drafted,) = nonsense.transcribe([replace(nonsense.request(audio_seed, draft=draft), hotwords=hotwords)])
    assert_alike(drafted, plain)


def test_a_draft_as_long_as_the_limit_ends_there_too(nonsense: Nonsense) -> None:
    """It once gained one choice more than plain decoding, which changed its end and its probability."""
    looping = next(
        (prefix, plain)
        for n in itertools.count()
        for prefix in [(n % N_WORDS, n // N_WORDS)]
        for plain in nonsense.transcribe([nonsense.request(0, prefix=prefix)])
        if plain.finish_reason is FinishReason.TOKEN_LIMIT
    )
    prefix, plain = looping
    (drafted,) = nonsense.transcribe(
        [nonsense.request(0, prefix=prefix, draft=tuple(nonsense.indices(plain)[len(prefix) :]))]
    )
    assert_alike(drafted, plain)


def test_nothing_but_text_is_written(nonsense: Nonsense, tokenizer: Tokenizer) -> None:
    """Whatever a checkpoint's lists leave out: words and agreement are made of text tokens."""
    for seed in range(3):
        (hypothesis,) = nonsense.transcribe([nonsense.request(seed)])
        assert all(token < tokenizer.eot for token in hypothesis.tokens)


# ------------------------------------------------------------------------------------------------ hotwords, history


def test_hotwords_of_one_row_touch_no_other(tail_runner: ModelRunner, tokenizer: Tokenizer, spoken: Spoken) -> None:
    hotwords = hotwords_of(["Quilter", "Kwilter"], tokenizer.encode)
    plain = Transcriber(tail_runner)([make_request(audio) for audio in spoken.audio])
    requests = [make_request(audio) for audio in spoken.audio]
    requests[2] = replace(requests[2], hotwords=hotwords)
    mixed = Transcriber(tail_runner)(requests)
    for index in (0, 1, 3):
        assert_alike(mixed[index], plain[index])


def test_what_was_said_before_changes_neither_the_audio_nor_the_measure_of_no_speech(
    tail_runner: ModelRunner, tokenizer: Tokenizer, spoken: Spoken
) -> None:
    history = tuple(tokenizer.encode(" Harvard sentences, read aloud by many speakers."))
    plain = make_request(spoken.audio[0], wants_words=True)
    (without,) = Transcriber(tail_runner)([plain])
    (told,) = Transcriber(tail_runner)([replace(plain, history=history)])
    assert tokenizer.decode(told.tokens).lower().split() == tokenizer.decode(without.tokens).lower().split()
    assert_in_order(told, plain)
    assert without.no_speech_prob < 0.1 and told.no_speech_prob < 0.1


def test_the_longest_history_leaves_room_for_the_longest_text(
    tail_runner: ModelRunner, tokenizer: Tokenizer, spoken: Spoken
) -> None:
    history = tuple(tokenizer.encode(" word" * MAX_HISTORY_TOKENS))
    assert len(history) == MAX_HISTORY_TOKENS
    long = make_request(np.tile(spoken.audio[0], 12)[: 30 * SAMPLE_RATE], wants_words=True)
    most = Sequence(long).max_tokens
    prefix = tuple(tokenizer.encode(" no" * most))[: most - 1]
    (hypothesis,) = Transcriber(tail_runner)([replace(long, history=history, prefix=prefix)])
    assert len(hypothesis.tokens) >= most - 1
    multilingual_prompt = 4
    assert 1 + MAX_HISTORY_TOKENS + multilingual_prompt + most <= 448


# ------------------------------------------------------------------------------------------------ words


def assert_in_order(hypothesis: Hypothesis, request: Request) -> None:
    """Words are the text, in order of time, inside the window."""
    assert [token for word in hypothesis.words for token in word.tokens] == list(hypothesis.tokens)
    times = [time for word in hypothesis.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert request.window.start <= times[0] and times[-1] <= request.window.end
    assert all(0 < word.probability <= 1 for word in hypothesis.words)


def test_word_times_are_in_order_inside_the_window(said: list[Hypothesis], spoken: Spoken) -> None:
    for hypothesis, audio in zip(said, spoken.audio, strict=True):
        assert_in_order(hypothesis, make_request(audio))


def test_word_times_are_on_the_clock_of_the_session(
    runner: ModelRunner, said: list[Hypothesis], spoken: Spoken
) -> None:
    request = make_request(spoken.audio[0], start=12_345, wants_words=True)
    (hypothesis,) = Transcriber(runner)([request])
    assert_in_order(hypothesis, request)
    assert [word.start - 12_345 for word in hypothesis.words] == [word.start for word in said[0].words]


@pytest.mark.parametrize("context", list(Context))
def test_words_after_a_silence_start_after_it(
    runner: ModelRunner, tail_runner: ModelRunner, said: list[Hypothesis], spoken: Spoken, context: Context
) -> None:
    first, second = spoken.audio[0], spoken.audio[2]
    joined = np.concatenate([first, np.zeros(SAMPLE_RATE, dtype=np.float32), second])
    transcribe = Transcriber(runner if context is Context.FULL else tail_runner)
    (hypothesis,) = transcribe([make_request(joined, wants_words=True)])
    n_first = len(said[0].words)
    before, after = hypothesis.words[:n_first], hypothesis.words[n_first:]
    assert [word.text for word in before] == [word.text for word in said[0].words]
    assert [word.text for word in after] == [word.text for word in said[2].words]
    margin = SAMPLE_RATE // 2  # a word owns the silence around it up to the middle of the next one's attention
    assert all(word.start < len(first) for word in before)
    assert after[0].start > len(first) - margin
    assert all(word.start > len(first) + SAMPLE_RATE for word in after[1:])


def test_only_who_asks_gets_words(tail_runner: ModelRunner, spoken: Spoken) -> None:
    with_words, without = Transcriber(tail_runner)(
        [make_request(spoken.audio[0], wants_words=True), make_request(spoken.audio[0])]
    )
    assert with_words.words and not without.words
    assert with_words.tokens == without.tokens


# ------------------------------------------------------------------------------------------------ languages, devices


def test_languages_are_detected_window_by_window(
    base: Checkpoint, audio_manifest: tuple[Clip, ...], load_clip: LoadClip
) -> None:
    clips = {clip.language: clip for clip in audio_manifest if clip.kind == "utterance"}
    runner = make_runner(base, Tokenizer(base), context=Context.TAIL)
    requests = [make_request(load_clip(clip.name), language=None) for clip in clips.values()]
    given_language = make_request(load_clip(clips["de"].name), language="de")
    *found, given_too = Transcriber(runner)([*requests, given_language])
    assert [hypothesis.language for hypothesis in found] == list(clips)
    assert all(0.3 < hypothesis.language_prob <= 1 for hypothesis in found) and given_too.language_prob == 1
    assert given_too.tokens == found[list(clips).index("de")].tokens


def test_a_second_of_speech_does_not_turn_the_language_over(
    base: Checkpoint, audio_manifest: tuple[Clip, ...], load_clip: LoadClip
) -> None:
    (clip,) = [clip for clip in audio_manifest if clip.kind == "utterance" and clip.language == "de"]
    transcribe = Transcriber(make_runner(base, Tokenizer(base), context=Context.TAIL))
    request = make_request(load_clip(clip.name), language=None)
    for likely, odds, language in ((None, 1.0, "de"), ("fr", 1.0, "de"), ("fr", 1e9, "fr"), ("de", 1e9, "de")):
        (hypothesis,) = transcribe([replace(request, likely_language=likely, language_odds=odds)])
        assert hypothesis.language == language


def test_a_multilingual_model_translates(
    base: Checkpoint, audio_manifest: tuple[Clip, ...], load_clip: LoadClip
) -> None:
    (clip,) = [clip for clip in audio_manifest if clip.kind == "utterance" and clip.language == "fr"]
    tokenizer = Tokenizer(base)
    request = replace(make_request(load_clip(clip.name), language="fr"), task=Task.TRANSLATE)
    (hypothesis,) = Transcriber(make_runner(base, tokenizer, context=Context.TAIL))([request])
    english = tokenizer.decode(hypothesis.tokens).lower()
    assert " the " in english and " sont " not in english, english


def test_the_device_must_be_there() -> None:
    assert choose_device(Device.CPU) == torch.device("cpu")
    if torch.cuda.is_available():
        assert choose_device(Device.AUTO).type == choose_device(Device.CUDA).type == "cuda"
    else:
        assert choose_device(Device.AUTO).type == "cpu"
        with pytest.raises(ConfigError, match="--device cpu"):
            choose_device(Device.CUDA)


def test_the_parameters_are_counted(runner: ModelRunner, tiny_en: Checkpoint) -> None:
    n_weights = sum(weight.numel() for weight in tiny_en.weights.values())
    assert n_weights < runner.n_parameters < 1.001 * n_weights, "only the key projections' zero biases come on top"


@pytest.mark.parametrize(("gb", "n_slots"), [(0.01, 1), (4, 21), (80, 32)])
def test_a_cpu_has_as_many_slots_as_fit_a_quarter_of_its_memory(
    tiny_en: Checkpoint, monkeypatch: pytest.MonkeyPatch, gb: float, n_slots: int
) -> None:
    monkeypatch.setattr("engine.compute.runner.physical_bytes", lambda: int(gb * 1e9))
    assert default_slots(tiny_en.dimensions, torch.device("cpu"), torch.float32) == n_slots


@pytest.mark.parametrize(("free_gb", "n_slots"), [(0.01, 1), (2, 21), (80, 256)])
def test_a_gpu_has_as_many_slots_as_fit_a_quarter_of_its_free_memory(
    tiny_en: Checkpoint, monkeypatch: pytest.MonkeyPatch, free_gb: float, n_slots: int
) -> None:
    monkeypatch.setattr("engine.compute.runner.free_bytes", lambda device: int(free_gb * 1e9))
    assert default_slots(tiny_en.dimensions, torch.device("cuda"), torch.float16) == n_slots
