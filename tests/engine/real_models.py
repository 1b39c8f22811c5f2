"""Ways to run the model's parts, and random small models, for numerical tests.

All construction is here, so that a test says what must be equal and not how a runner is made.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.compute.cache import KVCache
from engine.compute.padded import PaddedTexts
from engine.compute.ragged import RaggedTexts, RaggedWindows
from engine.compute.runner import ModelRunner
from engine.config import Context, Device, EncoderMode, EngineConfig, Precision
from engine.decode.rounds import TickWork, run_tick
from engine.decode.scheduler import Scheduler
from engine.decode.scheduler import Sequence as Running
from engine.models.whisper.checkpoint import Checkpoint, Dimensions, weight_shapes
from engine.models.whisper.modules import AttentionTap, TextBatch, Whisper
from engine.models.whisper.tokenizer import Tokenizer
from engine.session.requests import Hypothesis, Request, Window
from engine.types import Samples

CPU = torch.device("cpu")


def make_whisper(checkpoint: Checkpoint, *, dtype: torch.dtype = torch.float32) -> Whisper:
    return Whisper(checkpoint, device=CPU, dtype=dtype)


def make_cache(model: Whisper, n_rows: int) -> KVCache:
    return KVCache(model.dimensions, n_rows, device=CPU, dtype=model.encoder.positions.dtype)


@torch.inference_mode()
def encode(model: Whisper, features: Iterable[Tensor]) -> list[Tensor]:
    """Encode windows of (M, F) features in one call, everything that the positions see given; (S, C) each."""
    by_row = dict(enumerate(features))
    return _encode(model, make_cache(model, len(by_row)), by_row)


def _encode(model: Whisper, cache: KVCache, features: dict[int, Tensor]) -> list[Tensor]:
    n_windows, n_positions = len(features), model.dimensions.n_audio_positions
    cache.lay_out(list(features), [n_positions] * n_windows, [None] * n_windows)
    frames = torch.nn.functional.pad(torch.stack(list(features.values())), (2, 1))
    batch = RaggedWindows(frames, list(features), [slice(0, n_positions)] * n_windows, cache)
    return list(model.encoder(batch).split(n_positions))


class CachedDecoder:
    """Decodes rows of a cache step by step, whatever their lengths."""

    def __init__(self, model: Whisper, n_rows: int, *, padded: bool = False) -> None:
        self.model = model
        self.cache = make_cache(model, n_rows + padded)  # one to spare
        self._spare_row = n_rows if padded else None

    @torch.inference_mode()
    def show(self, features: dict[int, Tensor]) -> None:
        """Begin new windows, (M, F) each, in some rows."""
        encoded = _encode(self.model, self.cache, features)
        for row, window in zip(features, encoded, strict=True):
            self.cache.lengths[row] = 0
            for layer, (keys, values) in enumerate(self.model.decoder.cross_keys_values(window)):
                self.cache.cross.write(layer, row, slice(0, len(window)), keys, values)

    @torch.inference_mode()
    def extend(self, tokens: dict[int, list[int]], *, tap: AttentionTap | None = None) -> dict[int, Tensor]:
        """Run more tokens of some rows in one pass; (n, V) scores per row."""
        rows = list(tokens)
        batch = self._lay_out(rows, list(tokens.values()))
        hidden = self.model.decoder(batch, tap=tap)
        scores = {}
        for span, (row, added) in zip(batch.spans, tokens.items(), strict=True):
            self.cache.lengths[row] += len(added)
            scores[row] = self.model.decoder.logits(hidden[span])
        return scores

    def _lay_out(self, rows: list[int], tokens: list[list[int]]) -> TextBatch:
        if self._spare_row is None:
            return RaggedTexts(rows, tokens, self.cache)
        return PaddedTexts.of(rows, tokens, self.cache, spare_row=self._spare_row, device=CPU)


def attention(tap: AttentionTap, row: int) -> Tensor:
    """(n_heads, T, n_keys) weights of the tapped heads of one row, in the order of layers."""
    return torch.stack(tap.scores[row]).softmax(-1)


def make_runner(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    *,
    n_slots: int = 8,
    encoder: EncoderMode = EncoderMode.BATCHED,
    context: Context = Context.FULL,
    padded: bool = False,
    n_branches: int = 0,
) -> ModelRunner:
    """A runner on the CPU in float32; padded to 30 s as in training unless told otherwise.

    `padded` has its batches laid out as for a GPU.
    """
    config = EngineConfig(
        device=Device.CPU,
        dtype=Precision.FP32,
        encoder=encoder,
        context=context,
        n_slots=n_slots,
        n_branches=n_branches,
    )
    return ModelRunner(checkpoint, tokenizer, config, padded=padded)


_sessions = itertools.count()


def make_request(
    audio: Samples,
    *,
    session_id: str | None = None,
    start: int = 0,
    prefix: Sequence[int] = (),
    draft: Sequence[int] = (),
    language: str | None = "en",
    wants_words: bool = False,
) -> Request:
    """A request for one window; of a session of its own, unless it is named."""
    return Request(
        session_id=session_id or f"session-{next(_sessions)}",
        utterance_id=0,
        window=Window(start, start + len(audio)),
        audio=audio,
        prefix=tuple(prefix),
        draft=tuple(draft),
        language=language,
        wants_words=wants_words,
        is_final=True,
        ready_at=0.0,
    )


class Transcriber:
    """Runs requests as the engine does; rows keep what was encoded from one call to the next.

    Attributes:
        efforts: what each tick cost.
    """

    def __init__(self, runner: ModelRunner, *, n_slots: int = 8) -> None:
        self.efforts: list[TickWork] = []
        self._runner = runner
        self._scheduler = Scheduler(n_slots)

    def __call__(self, requests: Sequence[Request], *, together: int | None = None) -> list[Hypothesis]:
        """Answer all requests, which come at once or so many in each tick."""
        coming = list(requests)
        found: dict[int, Hypothesis] = {}
        while coming or self._scheduler.has_work:
            n_now = together or len(coming)
            for request in coming[:n_now]:
                self._scheduler.submit(request)
            del coming[:n_now]
            found |= self._tick()
        return [found[id(request)] for request in requests]

    def _tick(self) -> dict[int, Hypothesis]:
        finished: list[Running] = []
        effort = run_tick(self._scheduler, self._runner, self._scheduler.admit(), finished.append)
        self.efforts.append(effort)
        return {id(sequence.request): sequence.to_hypothesis() for sequence in finished}


# ---------------------------------------------------------------------------------------------- random models


def random_checkpoint(
    like: Checkpoint,
    *,
    seed: int,
    n_vocab: int | None = None,
    n_audio_positions: int = 1500,
    n_text_positions: int = 448,
    n_words: int | None = None,
) -> Checkpoint:
    """A model of 2 layers and 64 dims that says nonsense, at the vocabulary of a real one.

    Args:
        n_words: so many text tokens, the end of text and special tokens are all that it may say, so that it often ends.
    """
    random = np.random.default_rng(seed)
    dimensions = Dimensions(
        n_mels=80,
        n_vocab=n_vocab or like.dimensions.n_vocab,
        n_state=64,
        n_heads=4,
        n_encoder_layers=2,
        n_decoder_layers=2,
        ffn=128,
        n_audio_positions=n_audio_positions,
        n_text_positions=n_text_positions,
    )
    weights = {}
    for name, shape in weight_shapes(dimensions).items():
        scale = 0.3 if "embed" in name else 2.0 / np.sqrt(np.prod(shape[1:]))
        values = random.standard_normal(shape).astype(np.float32) * np.float32(scale if len(shape) > 1 else 0.1)
        is_gain = "norm" in name and name.endswith("weight")
        weights[name] = torch.from_numpy(values + 1 if is_gain else values)
    suppressed: set[int] = set()
    if n_words is not None:
        end = like.tokenizer.token_to_id("<|endoftext|>")
        suppressed = set(range(end)) - set(random.choice(end, n_words, replace=False).tolist())
    return Checkpoint(
        name="random",
        dimensions=dimensions,
        weights=weights,
        tokenizer=like.tokenizer,
        suppress_tokens=tuple(sorted(suppressed)),
        begin_suppress_tokens=(),
        alignment_heads=((0, 1), (1, 0), (1, 3)),
    )
