"""Turns windows and rounds into tensors and tokens.

Stands between the scheduler (which decides) and the model (which computes). Chooses device, dtype and how batches are
laid out: ragged on a CPU (ragged.py), padded and recorded on a GPU (padded.py, graphs.py). Called
by the engine on its one thread.

Two things go on at once. On a thread of its own the encoder takes the windows that were admitted: features of all of
them, the encoder once, cross-attention keys and values in one product per layer. Beside it the engine thread runs
rounds of the decoder over rows that were encoded before: one prefill of all new prompts, one step of all running rows.
The two never touch the same row of the cache, but for the one that takes a GPU's padding and is read by nobody. That
keeps two cores busy without the barriers of a shared product, where the slower thread stops the faster one a thousand
times a tick; on a GPU the encoder has a stream of its own.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from engine.compute.cache import KVCache
from engine.compute.encoder import WindowEncoder, WindowInput
from engine.compute.encoder_cap import EncoderCap, estimate_cap, free_bytes, is_out_of_memory, physical_bytes
from engine.compute.graphs import EncoderGraphs, StepGraphs
from engine.compute.padded import CHUNK, PaddedTexts
from engine.compute.ragged import RaggedTexts
from engine.config import Device, EncoderMode, EngineConfig, Precision
from engine.decode.alignment import find_silences, token_positions, word_spans
from engine.decode.rescoring import Branch, Scored, best_of, branches_of
from engine.decode.rounds import EncoderWork
from engine.decode.sampling import Sampler, Text, bonuses_of, verify
from engine.decode.scheduler import Prefilled, Round, RoundOutput
from engine.decode.sequence import Sequence, Status, StepTokens
from engine.errors import ConfigError
from engine.models import quantisation
from engine.models.whisper.checkpoint import Checkpoint, Dimensions
from engine.models.whisper.modules import AttentionTap, TextBatch, Whisper
from engine.models.whisper.tokenizer import Tokenizer, n_before_sot
from engine.session.languages import choose_language
from engine.session.requests import FinishReason, Request, Window
from engine.types import POSITION_SAMPLES, Word

logger = logging.getLogger(__name__)

_CPU_POSITIONS = 256  # in one tick: about 0.05 s of one core with tiny.en
_CPU_SLOTS = 32  # a session that finds its row again need not encode again what was said before
_MOST_SLOTS = 256
_CACHE_SHARE = 0.25  # of the memory
_SCORED_AT_ONCE = {"cpu": 16, "cuda": 512}  # states of the decoder; the scores of 16 take 3.3 MB
_MOST_PASSES_OF_BRANCH = 32  # one that has not ended by then is given up
_MOST_THREADS = 4  # the products of a few seconds of audio are too small for more

_DTYPES = {
    Precision.FP32: torch.float32,
    Precision.INT8: torch.float32,  # of everything but the products
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
}


class Encoding:
    """The encoder at work beside the caller."""

    def __init__(self, future: Future[EncoderWork]) -> None:
        self._future = future

    @property
    def is_done(self) -> bool:
        """`join` would not wait."""
        return self._future.done()

    def join(self) -> EncoderWork:
        """Wait for the end; raise what the encoder raised."""
        return self._future.result()


class ModelRunner:
    """Owns weights and cache, which has `n_slots` rows to lend.

    Call `encode` with what was admitted and meanwhile `decode` with rounds of what was encoded before; `align` what has
    finished before its slots are released; `join` the encoding before the next one.
    """

    def __init__(
        self, checkpoint: Checkpoint, tokenizer: Tokenizer, config: EngineConfig, *, padded: bool | None = None
    ) -> None:
        """Load the weights onto the device.

        Args:
            padded: lay batches out as a GPU wants them (compute/padded.py, compute/graphs.py) or as a CPU does
                (compute/ragged.py); None takes what suits the device.
        """
        torch.set_num_threads(config.n_threads or default_threads())
        self.device = choose_device(config.device)
        self.precision = choose_precision(config.dtype, self.device)
        dtype = _DTYPES[self.precision]
        self.tokenizer = tokenizer
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        on_cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if on_cuda else None  # type: ignore[no-untyped-call]
        if on_cuda:
            # It would plan anew for every extent of keys, and biases of -inf are not its strength.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self._padded = on_cuda if padded is None else padded
        self._mode = config.encoder
        self._draft = config.draft
        self._n_branches = config.n_branches
        self._model = Whisper(checkpoint, device=self.device, dtype=dtype)
        self.n_parameters = sum(parameter.numel() for parameter in self._model.parameters())
        if self.precision is Precision.INT8:
            self._model.quantise()
        self.n_slots = config.n_slots or default_slots(checkpoint.dimensions, self.device, dtype)
        n_rows = self.n_slots + self._padded  # one to spare for padding
        in_bf16 = self.precision is Precision.INT8 and quantisation.multiplies_bf16()
        self._cache = KVCache(checkpoint.dimensions, n_rows, device=self.device, dtype=dtype, attends_in_bf16=in_bf16)
        n_vocab = checkpoint.dimensions.n_vocab
        no_text = (*checkpoint.suppress_tokens, *range(tokenizer.eot + 1, n_vocab))  # special and time tokens
        other_case = [*tokenizer.other_cases(), *range(tokenizer.eot, n_vocab)]
        self._choose = Sampler(no_text, checkpoint.begin_suppress_tokens, self.device, other_case)
        self._steps: StepGraphs | None = None
        encoder_graphs: EncoderGraphs | None = None
        if self._padded:
            self._steps = StepGraphs(self._model, self._cache, self._choose, spare_row=self.n_slots)
            encoder_graphs = EncoderGraphs(self._model, self._cache, spare_row=self.n_slots)
        self._encoder = WindowEncoder(self._model, self._cache, config.context, encoder_graphs)
        self._cap = self._estimate_cap()
        self._synchronise()
        self._tap_heads = checkpoint.alignment_heads
        self._languages = tokenizer.languages
        self._language_tokens = torch.tensor(list(tokenizer.language_tokens.values()), device=self.device)

    @property
    def max_positions(self) -> int | None:
        """Encoder positions that are worth admitting at once; None is no bound.

        On a CPU windows that share a run gain nothing but wait for each other; a short run lets finals go first.
        """
        return _CPU_POSITIONS if self.device.type == "cpu" else None

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compute what is kept for ever."""
        self._encoder.warm_up()
        if self._steps is not None:
            self._steps.warm_up()
        self._cap = self._estimate_cap()  # recordings have taken their memory now
        self._synchronise()

    def _estimate_cap(self) -> EncoderCap:
        # Each chunk has a copy of all keys and values of its row.
        gathered = 2 * self._model.dimensions.n_state * self._cache.encoder.n_keys // CHUNK if self._padded else 0
        dtype = self._model.encoder.positions.dtype
        return estimate_cap(self._model.dimensions, device=self.device, dtype=dtype, gathered_per_position=gathered)

    def _synchronise(self) -> None:
        """On a GPU: what was written so far is there for every stream."""
        if self._stream is not None:
            torch.cuda.synchronize(self.device)

    def encode(self, admitted: list[Sequence]) -> Encoding:
        """Start to encode the windows of those that are ENCODING, on the thread beside."""
        windows = [
            WindowInput(_row(s), s.request.audio, s.first_position, s.full_context)
            for s in admitted
            if s.status is Status.ENCODING
        ]
        if windows:
            return Encoding(self._beside.submit(self._encode, windows))
        nothing: Future[EncoderWork] = Future()
        nothing.set_result(EncoderWork())
        return Encoding(nothing)

    @torch.inference_mode()
    def decode(self, round_: Round) -> RoundOutput:
        """Prefill the new rows and run one step of the others."""
        decode_tokens = self._step(round_.decode) if round_.decode else ()
        prefilled, prefill_tokens = self._prefill(round_.prefill) if round_.prefill else ((), ())
        return RoundOutput(prefilled, prefill_tokens, decode_tokens)

    @torch.inference_mode()
    def rescore(self, finished: list[Sequence]) -> int:
        """Give a likelier text to the finished sequences that want words (decode/rescoring.py).

        They must still hold their slots. Hotwords were raised for the choice only, so they would lose again.

        Returns:
            Passes of the decoder that it took.
        """
        weighed = [s for s in finished if self._n_branches and s.request.wants_words and not s.request.hotwords]
        weighed = [s for s in weighed if s.logprobs and s.finish_reason is FinishReason.END_OF_TEXT]
        if not weighed:
            return 0
        heads = [[*self._prompt(s.request, s.language), *s.request.prefix] for s in weighed]
        texts = [Scored(tuple(s.tokens[len(s.request.prefix) :]), _with_end(s)) for s in weighed]
        batch, hidden = self._forward(weighed, [[*head, *text.tokens] for head, text in zip(heads, texts, strict=True)])
        branches = []
        for s, head, text, span in zip(weighed, heads, texts, batch.spans, strict=True):
            states = hidden[span][len(head) - 1 : len(head) - 1 + len(text.tokens)]
            others = self._runner_ups(states, text.tokens, is_beginning=not s.request.prefix)
            branches.append(branches_of(text, others, self._n_branches))
        n_passes = 1
        for abreast in itertools.zip_longest(*branches):
            together = zip(weighed, heads, abreast, strict=True)
            n_passes += self._follow([(s, len(head), branch) for s, head, branch in together if branch is not None])
        for s, text, others_ in zip(weighed, texts, branches, strict=True):
            best = best_of(text, others_)
            if best is not text:
                s.tokens = [*s.request.prefix, *best.tokens]
                s.logprobs = list(best.logprobs[:-1])
                s.logprob_sum, s.n_scored = sum(best.logprobs), len(best.logprobs)
        return n_passes

    def _follow(self, open_: list[tuple[Sequence, int, Branch]]) -> int:
        """Decode a branch of each sequence, before whose text so many tokens lie; return the passes that took."""
        for n_passes in range(_MOST_PASSES_OF_BRANCH):
            open_ = [(s, n, b) for s, n, b in open_ if b.fits(s.max_tokens - len(s.request.prefix))]
            if not open_:
                return n_passes
            rows = [_row(s) for s, _, _ in open_]
            for row, (_, n, branch) in zip(rows, open_, strict=True):
                self._cache.lengths[row] = n + branch.n_seen
            batch = self._batch(rows, [branch.unseen for _, _, branch in open_])
            hidden = self._model.decoder(batch)
            # Of each row the states from its newest token on; on a GPU padding lies between the rows.
            states = torch.cat([hidden[span] for span in batch.spans])
            choices, logprobs = self._choose_all(states, (), [(None, ())] * len(states))
            taken = 0
            for _, _, branch in open_:
                part = slice(taken, taken + len(branch.draft) + 1)
                taken = part.stop
                branch.take(verify(branch.draft, choices[part], logprobs[part], self.tokenizer.eot))
        return _MOST_PASSES_OF_BRANCH

    def _runner_ups(self, states: Tensor, tokens: tuple[int, ...], *, is_beginning: bool) -> list[tuple[int, float]]:
        """Return the likeliest other token at each place of a text, predicted by (n, C) states."""
        found: list[tuple[int, float]] = []
        for part, scores in self._scores(states):
            self._choose(scores, [0] if is_beginning and part.start == 0 else ())
            said = torch.tensor(tokens[part], device=self.device)
            others, logprobs = self._choose.runner_ups(scores, said)
            found += zip(others.tolist(), logprobs.tolist(), strict=True)
        return [(token, logprob if token != self.tokenizer.eot else -math.inf) for token, logprob in found]

    @torch.inference_mode()
    def align(self, finished: list[Sequence]) -> None:
        """Give word times to the finished sequences that want them; they must still hold their slots."""
        wanted = [s for s in finished if s.request.wants_words and s.tokens]
        if not wanted:
            return
        prompts = [self._prompt(s.request, s.language) for s in wanted]
        inputs = [[*prompt, *s.tokens] for prompt, s in zip(prompts, wanted, strict=True)]
        tap = AttentionTap(self._tap_heads)
        batch, hidden = self._forward(wanted, inputs, tap)
        for index, (sequence, prompt) in enumerate(zip(wanted, prompts, strict=True)):
            predicting = slice(len(prompt) - 1, len(prompt) + len(sequence.tokens))
            n_positions = _n_positions(sequence.request.window)
            scores = torch.stack([scores[predicting, :n_positions] for scores in tap.scores[index]])
            weights = scores.float().softmax(-1)  # (n_heads, n_tokens + 1, n_positions)
            positions = token_positions(weights.cpu().numpy())
            states = hidden[batch.spans[index]][predicting]
            logprobs = [*self._logprobs(states, sequence.request.prefix), *sequence.logprobs]
            sequence.words = self._words(sequence, positions, np.exp(logprobs))

    def _logprobs(self, states: Tensor, tokens: tuple[int, ...]) -> list[float]:
        """Return the log-probability of each token, the first of what (n, C) states predict."""
        if not tokens:
            return []
        scores = self._model.decoder.logits(states[: len(tokens)])
        found: list[float] = self._choose.logprobs(scores, torch.tensor(tokens, device=self.device)).tolist()
        return found

    # ------------------------------------------------------------------------------------------- encode

    @torch.inference_mode()
    def _encode(self, windows: list[WindowInput]) -> EncoderWork:
        """Encode all windows in one run, or in as few as the memory allows."""
        started = time.perf_counter()
        n_all, n_runs, n_positions = len(windows), 0, 0
        with self._encoder_stream():
            while windows:
                sizes = [self._encoder.size(window) for window in windows]
                n_windows = 1 if self._mode is EncoderMode.SEQUENTIAL else self._cap.fitting(sizes)
                try:
                    n_positions += self._encoder.encode(windows[:n_windows])
                except RuntimeError as fault:
                    if n_windows == 1 or not is_out_of_memory(fault):
                        raise
                    self._cap.halve(sum(sizes[:n_windows]))
                    logger.warning("out of memory: the encoder takes %d positions at once now", self._cap.n_positions)
                    continue
                n_runs += 1
                windows = windows[n_windows:]
        return EncoderWork(n_all, n_runs, n_positions, 1000 * (time.perf_counter() - started))

    @contextmanager
    def _encoder_stream(self) -> Iterator[None]:
        """On a GPU: work on the encoder's own stream, and wait for it at the end, so that others may read the rows."""
        if self._stream is None:
            yield
            return
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            self._stream.synchronize()

    # ------------------------------------------------------------------------------------------- decode

    def _prefill(self, sequences: tuple[Sequence, ...]) -> tuple[tuple[Prefilled, ...], tuple[StepTokens, ...]]:
        """Run prompt, committed prefix and draft of new rows in one pass and choose what follows."""
        languages = self._detect_languages(sequences)
        heads = [
            [*self._prompt(s.request, language), *s.request.prefix]
            for s, (language, _) in zip(sequences, languages, strict=True)
        ]
        # One token less than there is room for, because the choice beyond the draft is gained as well.
        drafts = [s.request.draft[: max(0, s.max_tokens - len(s.tokens) - 1)] if self._draft else () for s in sequences]
        inputs = [[*head, *draft] for head, draft in zip(heads, drafts, strict=True)]
        batch, hidden = self._forward(sequences, inputs)
        begins = [span.start for span in batch.spans]
        no_speech = self._no_speech_probs(sequences, begins, hidden)
        scored = [range(at + len(head) - 1, at + len(row)) for at, head, row in zip(begins, heads, inputs, strict=True)]
        n_before = accumulate((len(part) for part in scored), initial=0)
        first = [n for n, s in zip(n_before, sequences, strict=False) if not s.request.prefix]
        texts: list[Text] = [
            (s.request.hotwords, [*s.request.prefix, *draft[:n]] if s.request.hotwords else ())
            for s, draft in zip(sequences, drafts, strict=True)
            for n in range(len(draft) + 1)
        ]
        choices, logprobs = self._choose_all(hidden[list(itertools.chain(*scored))], first, texts)
        steps = []
        taken = 0
        for sequence, head, draft in zip(sequences, heads, drafts, strict=True):
            part = slice(taken, taken + len(draft) + 1)
            step = verify(draft, choices[part], logprobs[part], self.tokenizer.eot)
            taken = part.stop
            n_accepted = len(step.logprobs) - 1
            self._cache.lengths[_row(sequence)] = len(head) + n_accepted
            steps.append(step)
        prefilled = tuple(
            Prefilled(language, p, language_prob)
            for (language, language_prob), p in zip(languages, no_speech, strict=True)
        )
        return prefilled, tuple(steps)

    def _step(self, sequences: tuple[Sequence, ...]) -> tuple[StepTokens, ...]:
        """Run one token of every row."""
        recorded = [s for s in sequences if self._steps is not None and not s.request.hotwords]
        others = [s for s in sequences if s not in recorded]
        chosen: dict[int, tuple[int, float]] = {}  # by row
        if self._steps is not None and recorded:
            rows = [_row(s) for s in recorded]
            chosen |= zip(rows, self._steps.step(rows, [s.tokens[-1] for s in recorded]), strict=True)
        if others:
            rows = [_row(s) for s in others]
            hidden = self._model.decoder(self._batch(rows, [s.tokens[-1:] for s in others]))
            choices, logprobs = self._choose_all(hidden, (), [(s.request.hotwords, s.tokens) for s in others])
            chosen |= zip(rows, zip(choices, logprobs, strict=True), strict=True)
        steps = []
        for sequence in sequences:
            token, logprob = chosen[_row(sequence)]
            self._cache.lengths[_row(sequence)] += 1
            ended = token == self.tokenizer.eot
            steps.append(StepTokens(() if ended else (token,), (logprob,), ended=ended))
        return tuple(steps)

    def _choose_all(self, states: Tensor, first: Collection[int], texts: list[Text]) -> tuple[list[int], list[float]]:
        """Choose for (n, C) states."""
        chosen = []
        for part, scores in self._scores(states):
            firsts = [row - part.start for row in first if part.start <= row < part.stop]
            bonuses = bonuses_of(texts[part], self.device)
            chosen.append(self._choose(scores, firsts, bonuses))
        tokens, logprobs = zip(*chosen, strict=True)
        return torch.cat(tokens).tolist(), torch.cat(logprobs).tolist()

    def _scores(self, states: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Score (n, C) states a few at a time, because the scores of many leave the cache; tells which they are."""
        n_at_once = _SCORED_AT_ONCE[self.device.type]
        for at in range(0, len(states), n_at_once):
            part = slice(at, at + n_at_once)
            yield part, self._model.decoder.logits(states[part])

    def _no_speech_probs(self, sequences: tuple[Sequence, ...], begins: list[int], hidden: Tensor) -> list[float]:
        """What each window gives to "no speech", asked after `sot`; 0 once words of it are committed.

        Args:
            begins: where each sequence's states begin in (P, C) `hidden`.
        """
        open_ = [i for i, s in enumerate(sequences) if not s.request.prefix]
        probabilities = [0.0] * len(sequences)
        if open_:
            starts = [begins[i] + n_before_sot(sequences[i].request.history) for i in open_]
            scores = self._model.decoder.logits(hidden[starts])
            for i, value in zip(open_, scores.softmax(-1)[:, self.tokenizer.no_speech].tolist(), strict=True):
                probabilities[i] = value
        return probabilities

    def _forward(
        self, sequences: tuple[Sequence, ...] | list[Sequence], inputs: list[list[int]], tap: AttentionTap | None = None
    ) -> tuple[TextBatch, Tensor]:
        """Run whole rows from their first position; returns how they lie, and (P, C)."""
        rows = [_row(s) for s in sequences]
        for row in rows:
            self._cache.lengths[row] = 0
        batch = self._batch(rows, inputs)
        return batch, self._model.decoder(batch, tap=tap)

    def _batch(self, rows: list[int], tokens: list[list[int]]) -> TextBatch:
        if self._padded:
            return PaddedTexts.of(rows, tokens, self._cache, spare_row=self.n_slots, device=self.device)
        return RaggedTexts(rows, tokens, self._cache)

    def _prompt(self, request: Request, language: str) -> tuple[int, ...]:
        return self.tokenizer.prompt(language, request.task, request.history)

    def _detect_languages(self, sequences: tuple[Sequence, ...]) -> list[tuple[str, float]]:
        """Return each window's language and its probability: as asked for, or by one step after the start token."""
        languages = [(s.request.language or "en", 1.0) for s in sequences]
        unknown = [i for i, s in enumerate(sequences) if s.request.language is None]
        if not self.tokenizer.is_multilingual or not unknown:
            return languages
        starts = [[self.tokenizer.sot]] * len(unknown)
        _, hidden = self._forward([sequences[i] for i in unknown], starts)
        found = self._model.decoder.logits(hidden)[:, self._language_tokens].softmax(-1)
        for i, probabilities in zip(unknown, found.tolist(), strict=True):
            request = sequences[i].request
            likely = self._languages.index(request.likely_language) if request.likely_language else None
            best = choose_language(probabilities, likely, request.language_odds)
            languages[i] = (self._languages[best], probabilities[best])
        return languages

    def _words(self, sequence: Sequence, positions: np.ndarray, probabilities: np.ndarray) -> tuple[Word, ...]:
        """Group tokens into words with times on the session clock."""
        window = sequence.request.window
        words = []
        taken = 0
        groups = self.tokenizer.split_words(sequence.tokens, sequence.language)
        bounds = [int(positions[i]) for i in accumulate((len(group) for group in groups), initial=0)]
        spans = word_spans(bounds, find_silences(sequence.request.audio))
        for group, span in zip(groups, spans, strict=True):
            start, end = (window.start + position * POSITION_SAMPLES for position in span)
            probability = float(np.mean(probabilities[taken : taken + len(group)]))
            text = self.tokenizer.decode(group)
            words.append(Word(text, tuple(group), min(start, window.end), min(end, window.end), probability))
            taken += len(group)
        return tuple(words)


def default_threads() -> int:
    """Return how many threads share the products: one core is left to the event loop and everything else.

    Threads wait for each other at the end of every product; where one of them shares its core with the event loop, all
    stand still meanwhile. Measured on two cores: with two threads a tick took several times as long as with one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST_THREADS, cores - 1))


def default_slots(dimensions: Dimensions, device: torch.device, dtype: torch.dtype) -> int:
    """Return how many windows are decoded at once: what fits a quarter of the host's or a GPU's free memory.

    Rows on a CPU take memory only as far as they are used, so there it is a quarter of all.
    """
    most, n_bytes = (_CPU_SLOTS, physical_bytes()) if device.type == "cpu" else (_MOST_SLOTS, free_bytes(device))
    n_fitting = int(_CACHE_SHARE * n_bytes) // KVCache.row_bytes(dimensions, dtype)
    return max(1, min(most, n_fitting))


def choose_device(device: Device) -> torch.device:
    """Return the device to run on; CUDA when asked for must be there."""
    has_cuda = torch.cuda.is_available()
    if device is Device.CUDA and not has_cuda:
        raise ConfigError("--device cuda: PyTorch sees no CUDA device. Use --device cpu, or install PyTorch with CUDA.")
    return torch.device("cuda" if has_cuda and device is not Device.CPU else "cpu")


def choose_precision(precision: Precision, device: torch.device) -> Precision:
    """Return the number format to run in; one that was asked for must be there."""
    on_cpu = device.type == "cpu"
    if precision is Precision.AUTO:
        fast = Precision.INT8 if quantisation.is_available() else Precision.FP32
        return fast if on_cpu else Precision.FP16
    if precision is Precision.INT8 and not (on_cpu and quantisation.is_available()):
        raise ConfigError("--dtype int8 runs on x86 processors only. Use --dtype auto.")
    if precision is Precision.FP16 and on_cpu:
        raise ConfigError("--dtype fp16 runs on CUDA only. Use --dtype auto.")
    return precision


def _with_end(sequence: Sequence) -> tuple[float, ...]:
    """The log-probabilities of the tokens behind the prefix, and of the end."""
    return (*sequence.logprobs, sequence.logprob_sum - sum(sequence.logprobs))


def _row(sequence: Sequence) -> int:
    assert sequence.slot is not None, "a sequence in a plan holds a slot"
    return sequence.slot.index


def _n_positions(window: Window) -> int:
    return -(-(window.end - window.start) // POSITION_SAMPLES)
