"""Windows of audio -> cross-attention keys and values in the cache: features, encoder, silence tail.

The runner's first half. One call per tick encodes all new windows together; only real audio, a short margin of real
silence and no pad is computed. With `Context.FULL` every window is padded to 30 seconds, as Whisper was trained; it is
there for comparison and for windows whose text looks wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.compute.cache import AudioKeys, KVCache
from engine.compute.graphs import EncoderGraphs
from engine.compute.ragged import RaggedWindows
from engine.compute.silence import CROSS_STRIDE, ENCODER_STRIDE, SilenceTail, TailKeys, thin_out
from engine.config import Context
from engine.models.whisper.features import HOP_SAMPLES, LogMel
from engine.models.whisper.modules import Whisper
from engine.types import MAX_WINDOW_SAMPLES, POSITION_SAMPLES, Samples

# Positions of real silence between the audio and the tail. What narrow models make of silence hardly depends on what
# was said before it; wider ones begin to doubt that anything was said in a second of speech (README, Decisions).
_MARGIN_OF_TINY, _MARGIN = 15, 50
_VALUE_STEP = 0.25  # of the log-mel value of silence; one tail is kept per step
_LEAST_VALUE = -1.5  # where the loudest frame lies no more than 80 dB above log-mel's own floor; 0.0 is full scale


@dataclass(frozen=True, slots=True, eq=False)
class WindowInput:
    """A window that is to be encoded.

    Attributes:
        row: of the cache.
        audio: (n,) the whole window.
        first_position: where to begin; what lies before is in the row already and stays.
        full_context: pad this one to 30 seconds.
    """

    row: int
    audio: Samples
    first_position: int
    full_context: bool


class WindowEncoder:
    """Owns the log-mel transform and the silence tails; writes to the cache it is given."""

    def __init__(self, model: Whisper, cache: KVCache, context: Context, graphs: EncoderGraphs | None = None) -> None:
        """`graphs` run the model where launches are what costs; without them windows lie ragged."""
        self._model = model
        self._graphs = graphs
        self._cache = cache
        self._context = context
        self._device = model.encoder.positions.device
        self._dtype = model.encoder.positions.dtype
        self._margin = _MARGIN_OF_TINY if model.dimensions.is_tiny else _MARGIN
        self._features = LogMel(model.dimensions.n_mels, device=self._device)
        self._tails: dict[int, SilenceTail] = {}

    def size(self, window: WindowInput) -> int:
        """Return how many positions the window takes."""
        return self._n_positions(window) - window.first_position

    def encode(self, windows: Sequence[WindowInput]) -> int:
        """Encode windows, all in one run of the encoder; return the number of positions computed."""
        rows = [window.row for window in windows]
        ends = [self._n_positions(window) for window in windows]
        mel = self._mel([window.audio for window in windows], max(ends))
        silence = mel.amin(dim=(1, 2)).tolist()  # the value that silence has in each window
        tails = [self._tail(value) if end < self._n_all else None for value, end in zip(silence, ends, strict=True)]
        self._cache.lay_out(rows, ends, tails)
        spans = [slice(window.first_position, end) for window, end in zip(windows, ends, strict=True)]
        self._run(F.pad(mel, (2, 0)), rows, spans)  # the convolutions see zeros before a window
        return sum(span.stop - span.start for span in spans)

    def warm_up(self) -> None:
        """Make every tail and every recording there can be, so that no speaker waits for one."""
        if self._context is Context.TAIL:
            for step in range(round(-_LEAST_VALUE / _VALUE_STEP) + 1):
                self._tail(-step * _VALUE_STEP)
        if self._graphs is not None:
            self._graphs.warm_up()

    def _run(self, frames: Tensor, rows: Sequence[int], spans: Sequence[slice]) -> None:
        if self._graphs is None:
            self._model.encode(RaggedWindows(frames, rows, spans, self._cache))
        else:
            self._graphs.encode(frames, rows, spans)

    @property
    def _n_all(self) -> int:
        return self._model.dimensions.n_audio_positions

    def _n_positions(self, window: WindowInput) -> int:
        """Return how many positions a window has before the tail."""
        if window.full_context or self._context is Context.FULL:
            return self._n_all
        return min(self._n_all, -(-len(window.audio) // POSITION_SAMPLES) + self._margin)

    def _mel(self, audio: Sequence[Samples], n_positions: int) -> Tensor:
        """Return (N, M, 2 * n_positions + 1) features, one frame more than the positions have."""
        n_samples = min(MAX_WINDOW_SAMPLES, (2 * n_positions + 1) * HOP_SAMPLES)
        mel = self._features.padded(audio, n_samples=n_samples)
        return F.pad(mel, (0, 2 * n_positions + 1 - mel.shape[-1]))  # behind 30 s Whisper's convolutions see zeros

    def _tail(self, value: float) -> SilenceTail:
        """Return the tail for the value of silence that is nearest to the window's."""
        key = round(min(0.0, max(_LEAST_VALUE, value)) / _VALUE_STEP)
        if key not in self._tails:
            self._tails[key] = self._make_tail(key * _VALUE_STEP)
        return self._tails[key]

    def _make_tail(self, value: float) -> SilenceTail:
        """Encode 30 seconds of silence."""
        cache = KVCache(self._model.dimensions, 1, device=self._device, dtype=self._dtype)
        cache.lay_out([0], [self._n_all], [None])
        mel = torch.full((self._model.dimensions.n_mels, 2 * self._n_all), value, device=self._device)
        self._model.encode(RaggedWindows(F.pad(mel, (2, 1))[None], [0], [slice(0, self._n_all)], cache))
        dimensions = self._model.dimensions
        return SilenceTail(
            encoder=self._thinned(cache.encoder, dimensions.n_encoder_layers, ENCODER_STRIDE),
            cross=self._thinned(cache.cross, dimensions.n_decoder_layers, CROSS_STRIDE),
        )

    def _thinned(self, keys: AudioKeys, n_layers: int, stride: int) -> TailKeys:
        return TailKeys([thin_out(keys.own(layer, 0), stride) for layer in range(n_layers)], stride, self._n_all)
