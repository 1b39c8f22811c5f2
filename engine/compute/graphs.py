"""CUDA graphs: passes of the model that are recorded once and replayed, so that nothing is launched one by one.

A step of the decoder over a few rows of a small model takes the GPU less time than Python needs to ask for it. So the
passes that come all the time are recorded for a few sizes each, when the engine warms up; a pass takes the next larger
one and fills it up with padding. They read static tensors, into which the real input is copied first.

On a CPU nothing is recorded: the same passes over the same static tensors are run again each time. That is slower than
ragged batches (compute/ragged.py) and there for tests.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.compute.cache import AudioKeys, KVCache, whole_blocks
from engine.compute.padded import ChunkedWindows, Chunks, PaddedTexts
from engine.decode.sampling import Sampler
from engine.models.whisper.modules import Whisper

_TEXT_KEYS = 128  # more than most texts have; all of them are the other size
_AUDIO_POSITIONS = (256, 512, 1024)  # about 5, 10 and 20 s; all of them are the last size
_MOST_CHUNKS = 64  # 82 s of audio; in a larger run the work hides the launches
_WARM_UPS = 2  # before a recording: libraries choose their kernels and take their memory

Size = tuple[int, ...]


class Recorder:
    """Records work on static tensors, once for each size.

    All recordings of one recorder share their memory, the workspace of the matrix products included (it belongs to the
    stream that they are recorded on), so no two of them may run at once; those of two recorders may.
    """

    _recording = threading.Lock()  # PyTorch records one graph at a time in a process

    def __init__(self, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if is_cuda else None
        self._stream = torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]
        self._replays: dict[Size, Callable[[], None]] = {}

    def run(self, size: Size, work: Callable[[], None]) -> None:
        """Do the work; it is always the same for this size."""
        if size not in self._replays:
            self._replays[size] = work if self._stream is None else self._record(work)
        self._replays[size]()

    def _record(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with self._recording:
            torch.cuda.synchronize()
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    work()
            # The other thread may use the GPU meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        return graph.replay


class StepGraphs:
    """One token of each of some rows: decoder, scores and greedy choice."""

    def __init__(self, model: Whisper, cache: KVCache, choose: Sampler, *, spare_row: int) -> None:
        """`spare_row` is the cache's last row and nobody's; so many rows there are besides."""
        self._model, self._cache, self._choose = model, cache, choose
        device = model.decoder.positions.device
        is_cuda = device.type == "cuda"
        self._staged = torch.zeros(3, spare_row, dtype=torch.int64, pin_memory=is_cuda)  # on the host
        self._inputs = torch.zeros(3, spare_row, dtype=torch.int64, device=device)  # tokens, positions, rows
        self._inputs[2] = spare_row
        self._outputs = torch.zeros(2, spare_row, device=device)  # tokens (exact up to 2^24), log-probabilities
        self._spare_row = spare_row
        self._recorder = Recorder(device)
        self._n_rows = _doubling(spare_row)
        self._n_text_keys = sorted({min(_TEXT_KEYS, cache.text.n_keys), cache.text.n_keys})
        self._n_audio_keys = _key_sizes(cache.cross)

    def warm_up(self) -> None:
        """Record every size."""
        for size in itertools.product(self._n_rows, self._n_text_keys, self._n_audio_keys):
            self._run(*size)

    def step(self, rows: Sequence[int], tokens: Sequence[int]) -> list[tuple[int, float]]:
        """Run one token of each row; return the tokens chosen behind them and their log-probabilities."""
        lengths = [self._cache.lengths[row] for row in rows]
        size = (
            _next_larger(self._n_rows, len(rows)),
            _next_larger(self._n_text_keys, max(lengths) + 1),
            _next_larger(self._n_audio_keys, self._cache.cross.extent(rows)),
        )
        padding = [0] * (size[0] - len(rows))
        filled = [[*tokens, *padding], [*lengths, *padding], [*rows, *(self._spare_row for _ in padding)]]
        self._staged[:, : size[0]] = torch.tensor(filled)
        self._inputs.copy_(self._staged, non_blocking=True)
        self._run(*size)
        chosen, logprobs = self._outputs[:, : len(rows)].tolist()  # the one time that the host waits
        return [(int(token), logprob) for token, logprob in zip(chosen, logprobs, strict=True)]

    def _run(self, n_rows: int, n_text_keys: int, n_audio_keys: int) -> None:
        size = n_rows, n_text_keys, n_audio_keys
        self._recorder.run(size, lambda: self._work(*size))

    def _work(self, n_rows: int, n_text_keys: int, n_audio_keys: int) -> None:
        tokens, positions, rows = self._inputs[:, :n_rows]
        batch = PaddedTexts(
            tokens[:, None], positions[:, None], rows, rows[:, None], n_text_keys, n_audio_keys, self._cache
        )
        scores = self._model.decoder.logits(self._model.decoder(batch))
        chosen, logprobs = self._choose(scores)
        self._outputs[0, :n_rows] = chosen.float()
        self._outputs[1, :n_rows] = logprobs


class EncoderGraphs:
    """Windows in chunks: encoder and cross-attention keys."""

    def __init__(self, model: Whisper, cache: KVCache, *, spare_row: int) -> None:
        """`spare_row` of the cache is nobody's."""
        self._model, self._cache, self._spare_row = model, cache, spare_row
        device = model.encoder.positions.device
        self._inputs = Chunks.spare(_MOST_CHUNKS, model.dimensions.n_mels, spare_row, device)
        self._padding = Chunks.spare(1, model.dimensions.n_mels, spare_row, device)
        self._recorder = Recorder(device)
        self._n_chunks = _doubling(_MOST_CHUNKS)
        self._n_keys = _key_sizes(cache.encoder)

    def warm_up(self) -> None:
        """Record every size."""
        for size in itertools.product(self._n_chunks, self._n_keys):
            self._run(*size)

    def encode(self, frames: Tensor, rows: Sequence[int], spans: Sequence[slice]) -> None:
        """Encode parts of windows, as `Chunks.of` takes them, into their rows."""
        chunks = Chunks.of(frames, rows, spans, self._spare_row, self._model.dimensions.n_audio_positions)
        n_chunks, n_keys = len(chunks.rows), _next_larger(self._n_keys, self._cache.encoder.extent(rows))
        if n_chunks > _MOST_CHUNKS:
            self._model.encode(ChunkedWindows(chunks, n_keys, self._cache))
            return
        size = _next_larger(self._n_chunks, n_chunks), n_keys
        for static, real, padding in zip(self._inputs.tensors, chunks.tensors, self._padding.tensors, strict=True):
            static[:n_chunks] = real
            static[n_chunks : size[0]] = padding
        self._run(*size)

    def _run(self, n_chunks: int, n_keys: int) -> None:
        self._recorder.run((n_chunks, n_keys), lambda: self._work(n_chunks, n_keys))

    def _work(self, n_chunks: int, n_keys: int) -> None:
        self._model.encode(ChunkedWindows(self._inputs.head(n_chunks), n_keys, self._cache))


def _doubling(most: int) -> list[int]:
    """1, 2, 4, ... below `most`, and `most`."""
    return [*itertools.takewhile(lambda n: n < most, (2**i for i in itertools.count())), most]


def _key_sizes(keys: AudioKeys) -> list[int]:
    """Numbers of keys, the tail's included, that hold windows up to some length."""
    sizes = {whole_blocks(keys.n_tail + n) for n in _AUDIO_POSITIONS}
    return [*sorted(size for size in sizes if size < keys.n_keys), keys.n_keys]


def _next_larger(sizes: Sequence[int], wanted: int) -> int:
    return sizes[bisect_left(sizes, wanted)]
