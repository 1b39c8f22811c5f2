"""Turns a plan into tensors and tokens.

Stands between the scheduler (which decides) and the model (which computes). The only file that knows the device, the
dtype and how a batch is laid out. Called by the engine on its one thread.

One plan is run as: features of all new windows, the encoder once, cross-attention keys and values of all of them in one
product per layer; beside it, on a second thread, decode steps of all running rows; then one prefill of all new prompts.
The two threads never touch the same row of the cache, and `run` returns when both are done. That keeps two cores busy
without the barriers of a shared product, where the slower thread stops the faster one a thousand times a tick.
"""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from engine import quantisation
from engine.alignment import token_positions
from engine.cache import KVCache, Rows
from engine.checkpoint import Checkpoint
from engine.config import Context, Device, EncoderMode, EngineConfig, Precision
from engine.decoding import GreedyChoice, verify
from engine.encoder_cap import estimate_cap, is_out_of_memory
from engine.encoding import WindowEncoder, WindowInput
from engine.errors import ConfigError
from engine.model import AttentionTap, Whisper
from engine.scheduler import Gain, Plan, Prefilled, Sequence, StepOutput
from engine.tokenizer import Tokenizer
from engine.types import POSITION_SAMPLES, Window, Word

logger = logging.getLogger(__name__)

_CPU_POSITIONS = 512  # in one tick: about 0.12 s of one core with tiny.en
_MOST_THREADS = 4  # the products of a few seconds of audio are too small for more

_DTYPES = {
    Precision.FP32: torch.float32,
    Precision.INT8: torch.float32,  # of everything but the products
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
}


@dataclass(slots=True)
class Effort:
    """What a tick cost and gained; the engine turns it into `TickStats`, where the fields are explained."""

    encoder_windows: int = 0
    encoder_runs: int = 0
    encoder_positions: int = 0
    encoder_ms: float = 0.0
    decode_ms: float = 0.0
    retries: int = 0
    tokens: int = 0
    passes: int = 0
    greedy_passes: int = 0


@dataclass(slots=True)
class _Row:
    """What a running sequence gains within one tick."""

    sequence: Sequence
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False

    @property
    def last_token(self) -> int:
        return self.tokens[-1] if self.tokens else self.sequence.tokens[-1]

    @property
    def goes_on(self) -> bool:
        return not self.ended and len(self.sequence.tokens) + len(self.tokens) < self.sequence.max_tokens


class ModelRunner:
    """Owns weights and cache. Call `run` once per plan, then `align` with what finished, before slots are released."""

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer, config: EngineConfig) -> None:
        torch.set_num_threads(config.n_threads or default_threads())
        self.device = choose_device(config.device)
        self.precision = choose_precision(config.dtype, self.device)
        dtype = _DTYPES[self.precision]
        self.tokenizer = tokenizer
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        self._mode = config.encoder
        self._draft = config.draft
        self._context = config.context
        self._model = Whisper(checkpoint, device=self.device, dtype=dtype)
        self._n_parameters = sum(parameter.numel() for parameter in self._model.parameters())
        if self.precision is Precision.INT8:
            self._model.quantise()
        self._cache = KVCache(checkpoint.dimensions, config.n_slots, device=self.device, dtype=dtype)
        self._encoder = WindowEncoder(self._model, self._cache, config.context)
        self._cap = estimate_cap(checkpoint.dimensions, device=self.device, dtype=dtype)
        n_vocab = checkpoint.dimensions.n_vocab
        no_text = (*checkpoint.suppress_tokens, *range(tokenizer.eot + 1, n_vocab))  # special and time tokens
        self._choose = GreedyChoice(no_text, checkpoint.begin_suppress_tokens, n_vocab, self.device)
        self._tap_heads = checkpoint.alignment_heads
        self._languages = tokenizer.languages
        self._language_tokens = torch.tensor(list(tokenizer.language_tokens.values()), device=self.device)

    @property
    def n_parameters(self) -> int:
        """Weights of the model."""
        return self._n_parameters

    @property
    def max_positions(self) -> int | None:
        """Encoder positions that are worth admitting at once; None is no bound.

        On a CPU windows that share a run gain nothing but wait for each other; a short run lets finals go first.
        """
        return _CPU_POSITIONS if self.device.type == "cpu" else None

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compute what is kept for ever."""
        if self._context is Context.TAIL:
            self._encoder.warm_up()

    @torch.inference_mode()
    def run(self, plan: Plan) -> tuple[StepOutput, Effort]:
        """Encode what is new and decode what runs side by side, then prefill what was encoded."""
        effort = Effort()
        encoding = self._beside.submit(self._encode, plan.encode, effort) if plan.encode else None
        started = time.perf_counter()
        decode_gains = self._decode(plan.decode, encoding, effort) if plan.decode else ()
        decoded = time.perf_counter()
        if encoding:
            encoding.result()
        encoded = time.perf_counter()
        prefilled, prefill_gains = self._prefill(plan.prefill) if plan.prefill else ((), ())
        effort.passes += bool(plan.prefill)
        effort.decode_ms = 1000 * (decoded - started + time.perf_counter() - encoded)
        return StepOutput(prefilled, prefill_gains, decode_gains), effort

    @torch.inference_mode()
    def align(self, finished: list[Sequence]) -> None:
        """Give word times to the finished sequences that want them; they must still hold their slots."""
        wanted = [s for s in finished if s.request.wants_words and s.tokens]
        if not wanted:
            return
        prompts = [self.tokenizer.prompt(s.language) for s in wanted]
        inputs = [[*prompt, *s.tokens] for prompt, s in zip(prompts, wanted, strict=True)]
        tap = AttentionTap(self._tap_heads)
        hidden = self._forward(wanted, inputs, tap)
        for index, (sequence, prompt) in enumerate(zip(wanted, prompts, strict=True)):
            predicting = slice(len(prompt) - 1, len(prompt) + len(sequence.tokens))
            logprobs = self._model.decoder.logits(hidden[index, predicting][:-1]).log_softmax(-1)
            chosen = logprobs.gather(1, torch.tensor(sequence.tokens, device=self.device)[:, None])
            n_positions = _n_positions(sequence.request.window)
            scores = torch.stack([scores[predicting, :n_positions] for scores in tap.scores[index]])
            weights = scores.float().softmax(-1)  # (n_heads, n_tokens + 1, n_positions)
            positions = token_positions(weights.cpu().numpy())
            sequence.words = self._words(sequence, positions, chosen.squeeze(1).exp().tolist())

    # ------------------------------------------------------------------------------------------- encode

    @torch.inference_mode()
    def _encode(self, sequences: tuple[Sequence, ...], effort: Effort) -> None:
        """Encode all windows in one run, or in as few as the memory allows; on the thread beside."""
        started = time.perf_counter()
        windows = [WindowInput(_row(s), s.request.audio, s.first_position, s.full_context) for s in sequences]
        while windows:
            sizes = [self._encoder.size(window) for window in windows]
            n_windows = 1 if self._mode is EncoderMode.SEQUENTIAL else self._cap.fitting(sizes)
            try:
                n_positions = self._encoder.encode(windows[:n_windows])
            except RuntimeError as fault:
                if n_windows == 1 or not is_out_of_memory(fault):
                    raise
                self._cap.halve(sum(sizes[:n_windows]))
                logger.warning("out of memory: the encoder takes %d positions at once now", self._cap.n_positions)
                continue
            effort.encoder_runs += 1
            effort.encoder_windows += n_windows
            effort.encoder_positions += n_positions
            del windows[:n_windows]
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # so that the time shown is the encoder's own
        effort.encoder_ms = 1000 * (time.perf_counter() - started)

    # ------------------------------------------------------------------------------------------- decode

    def _prefill(self, sequences: tuple[Sequence, ...]) -> tuple[tuple[Prefilled, ...], tuple[Gain, ...]]:
        """Run prompt, committed prefix and draft of new rows in one pass and choose what follows."""
        languages = self._detect_languages(sequences)
        heads = [
            [*self.tokenizer.prompt(language), *s.request.prefix]
            for s, language in zip(sequences, languages, strict=True)
        ]
        # One token less than there is room for, because the choice beyond the draft is gained as well.
        drafts = [s.request.draft[: max(0, s.max_tokens - len(s.tokens) - 1)] if self._draft else () for s in sequences]
        inputs = [[*head, *draft] for head, draft in zip(heads, drafts, strict=True)]
        hidden = self._forward(sequences, inputs)
        scored = [torch.arange(len(head) - 1, len(tokens)) for head, tokens in zip(heads, inputs, strict=True)]
        first = [(s.request.prefix == ()) for s in sequences]
        no_speech = self._model.decoder.logits(hidden[:, 0]).softmax(-1)[:, self.tokenizer.no_speech].tolist()
        states = torch.cat([hidden[i, at] for i, at in enumerate(scored)])
        is_first = torch.cat([(at == at[0]) & f for at, f in zip(scored, first, strict=True)]).to(self.device)
        choices, logprobs = (t.tolist() for t in self._choose(self._model.decoder.logits(states), is_first))
        gains = []
        taken = 0
        for sequence, head, draft in zip(sequences, heads, drafts, strict=True):
            part = slice(taken, taken + len(draft) + 1)
            gain = verify(draft, choices[part], logprobs[part], self.tokenizer.eot)
            taken = part.stop
            n_accepted = len(gain.logprobs) - 1
            self._cache.lengths[_row(sequence)] = len(head) + n_accepted
            gains.append(gain)
        prefilled = tuple(Prefilled(lang, p) for lang, p in zip(languages, no_speech, strict=True))
        return prefilled, tuple(gains)

    def _decode(
        self, sequences: tuple[Sequence, ...], encoding: Future[None] | None, effort: Effort
    ) -> tuple[Gain, ...]:
        """Decode the running rows: one step, and on until the encoder is done beside it or every row has ended."""
        rows = [_Row(sequence) for sequence in sequences]
        running = rows
        while running:
            self._step(running)
            effort.passes += 1
            running = [row for row in running if row.goes_on]
            if encoding is None or encoding.done():
                break
        return tuple(Gain(tuple(row.tokens), tuple(row.logprobs), row.ended) for row in rows)

    def _step(self, running: list[_Row]) -> None:
        """Run one token of every row."""
        rows = self._rows([row.sequence for row in running])
        lengths = torch.tensor([self._cache.lengths[row] for row in rows.indices], device=self.device)
        inputs = torch.tensor([[row.last_token] for row in running], device=self.device)
        hidden = self._model.decoder(inputs, lengths, self._cache, rows)[:, 0]
        never_first = torch.zeros(len(running), dtype=torch.bool, device=self.device)
        choices, logprobs = (t.tolist() for t in self._choose(self._model.decoder.logits(hidden), never_first))
        for row, index, token, logprob in zip(running, rows.indices, choices, logprobs, strict=True):
            self._cache.lengths[index] += 1
            row.logprobs.append(logprob)
            if token == self.tokenizer.eot:
                row.ended = True
            else:
                row.tokens.append(token)

    def _forward(
        self, sequences: tuple[Sequence, ...] | list[Sequence], inputs: list[list[int]], tap: AttentionTap | None = None
    ) -> Tensor:
        """Run whole rows from their first position; returns (B, T, C), shorter rows padded at the right."""
        tokens = pad_sequence([torch.tensor(row) for row in inputs], batch_first=True).to(self.device)
        rows = self._rows(sequences)
        for row in rows.indices:
            self._cache.lengths[row] = 0
        offsets = torch.zeros(len(inputs), dtype=torch.int64, device=self.device)
        hidden: Tensor = self._model.decoder(tokens, offsets, self._cache, rows, tap=tap)
        return hidden

    def _detect_languages(self, sequences: tuple[Sequence, ...]) -> list[str]:
        """Return the language of each window: as asked for, or by one step after the start token."""
        languages = [s.request.language or "en" for s in sequences]
        unknown = [i for i, s in enumerate(sequences) if s.request.language is None]
        if not self.tokenizer.is_multilingual or not unknown:
            return languages
        starts = [[self.tokenizer.sot]] * len(unknown)
        hidden = self._forward([sequences[i] for i in unknown], starts)[:, 0]
        best = self._model.decoder.logits(hidden)[:, self._language_tokens].argmax(-1)
        for i, index in zip(unknown, best.tolist(), strict=True):
            languages[i] = self._languages[index]
        return languages

    def _words(self, sequence: Sequence, positions: np.ndarray, probabilities: list[float]) -> tuple[Word, ...]:
        """Group tokens into words with times on the session clock."""
        window = sequence.request.window
        words = []
        taken = 0
        for group in self.tokenizer.split_words(sequence.tokens, sequence.language):
            start, end = (window.start + int(positions[i]) * POSITION_SAMPLES for i in (taken, taken + len(group)))
            probability = float(np.mean(probabilities[taken : taken + len(group)]))
            text = self.tokenizer.decode(group)
            words.append(Word(text, tuple(group), min(start, window.end), min(end, window.end), probability))
            taken += len(group)
        return tuple(words)

    def _rows(self, sequences: tuple[Sequence, ...] | list[Sequence]) -> Rows:
        return Rows([_row(s) for s in sequences], self.device)


def default_threads() -> int:
    """Return how many threads share the products: one core is left to the event loop and everything else.

    Threads wait for each other at the end of every product; where one of them shares its core with the event loop, all
    stand still meanwhile. Measured on two cores: with two threads a tick took several times as long as with one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST_THREADS, cores - 1))


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


def _row(sequence: Sequence) -> int:
    assert sequence.slot is not None, "a sequence in a plan holds a slot"
    return sequence.slot.index


def _n_positions(window: Window) -> int:
    return -(-(window.end - window.start) // POSITION_SAMPLES)
