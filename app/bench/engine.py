"""`tickscribe bench engine`: encoder and decoder by themselves, each beside the floor that the machine allows.

The floor of the encoder is its arithmetic at the speed of this machine's float32 matrix product; that of a decode step
is reading its weights once at this machine's memory bandwidth. Both speeds are measured in the same run. Times are the
least of many: what the machine can do when nothing else disturbs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from app.bench.machine import describe_machine
from app.bench.peer_environment import prepare_weights
from app.bench.peer_files import ctranslate2_encoder_ms
from app.bench.report import Report, command_line, engine_flags
from engine.compute.cache import KVCache
from engine.compute.ragged import RaggedWindows
from engine.compute.runner import ModelRunner, choose_device, default_threads
from engine.compute.silence import ENCODER_STRIDE, n_tail_keys
from engine.config import Context, EngineConfig, Precision
from engine.decode.scheduler import Scheduler
from engine.decode.sequence import Sequence as Running
from engine.models.quantisation import multiplies_bf16
from engine.models.registry import load_model
from engine.models.whisper.checkpoint import Checkpoint, Dimensions
from engine.models.whisper.modules import Whisper
from engine.models.whisper.tokenizer import Tokenizer
from engine.session.requests import Request, Window
from engine.types import POSITION_SAMPLES, SAMPLE_RATE, Samples

_REPEATS = 5
_DECODE_STEPS = 12
_DTYPES = {
    "cpu": (Precision.FP32, Precision.BF16, Precision.INT8),
    "cuda": (Precision.FP32, Precision.BF16, Precision.FP16),
}


@dataclass(frozen=True, slots=True)
class Speeds:
    """What the machine itself can do."""

    product_gflops: float  # float32 matrix product
    read_gb_per_s: float

    def product_ms(self, flop: float) -> float:
        """Return what so much arithmetic takes."""
        return flop / self.product_gflops / 1e6


@dataclass(frozen=True, slots=True)
class EncoderRow:
    """One kind of window; milliseconds per window."""

    seconds: float
    batch: int
    context: str
    dtype: str
    ms: float
    floor_ms: float


@dataclass(frozen=True, slots=True)
class DecoderRow:
    """One batch size; milliseconds per decode step."""

    batch: int
    dtype: str
    ms: float
    floor_ms: float


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured: every combination.

    Attributes:
        seconds: of audio in a window.
        batches: windows in one run of the encoder.
        decode_batches: rows of one decode step.
        dtypes: none takes those that the device has.
    """

    seconds: tuple[float, ...] = (1, 5, 10, 25)
    batches: tuple[int, ...] = (1, 4)
    decode_batches: tuple[int, ...] = (1, 4, 16)
    dtypes: tuple[Precision, ...] = ()


def run(
    config: EngineConfig,
    grid: Grid,
    *,
    peers_dir: Path | None = None,
    encoder_output: Path | None = None,
    decoder_output: Path | None = None,
) -> None:
    """Measure, print both tables and, if asked, write them as JSON.

    Args:
        peers_dir: where faster-whisper is installed for comparison; None leaves it out.
    """
    checkpoint = load_model(config.model)
    device = choose_device(config.device)
    n_rows = max(*grid.batches, *grid.decode_batches)
    torch.set_num_threads(config.n_threads or default_threads())
    speeds = measure_speeds(device)
    encoder_rows: list[EncoderRow] = []
    decoder_rows: list[DecoderRow] = []
    for dtype in grid.dtypes or _DTYPES[device.type]:
        for context in Context:
            bench = _Bench(checkpoint, replace(config, dtype=dtype, context=context, n_slots=n_rows), speeds)
            lengths = grid.seconds if context is Context.TAIL else (30,)  # padded windows all take the same
            encoder_rows += [bench.encoder(s, b) for s in lengths for b in grid.batches]
        if dtype in (Precision.FP32, Precision.INT8) and device.type == "cpu":
            encoder_rows += _of_bare_encoder(checkpoint, dtype, grid.seconds, speeds)
        decoder_rows += [bench.decoder(b) for b in grid.decode_batches]
    if peers_dir:
        encoder_rows += _of_ctranslate2(config, checkpoint, grid.seconds, speeds, peers_dir)
    default = Grid()
    command = command_line(
        "tickscribe bench engine",
        (
            *engine_flags(config),
            ("--seconds", grid.seconds, default.seconds),
            ("--batch", grid.batches, default.batches),
            ("--decode-batch", grid.decode_batches, default.decode_batches),
            ("--dtype", grid.dtypes, default.dtypes),
        ),
    )
    setting = (
        f"{checkpoint.name}, {torch.get_num_threads()} thread(s); the machine multiplies {speeds.product_gflops:.0f} "
        f"GFLOP/s in float32 and reads {speeds.read_gb_per_s:.0f} GB/s"
    )
    machine = describe_machine()
    Report(
        title="Encoder, milliseconds per window",
        command=command,
        machine=machine,
        setting=setting,
        headings=("context", "dtype", "audio s", "batch", "ms", "per s of audio", "float32 floor ms"),
        cells=tuple(
            (
                r.context,
                r.dtype,
                f"{r.seconds:g}",
                str(r.batch),
                f"{r.ms:.1f}",
                f"{r.ms / r.seconds:.2f}",
                f"{r.floor_ms:.1f}",
            )
            for r in encoder_rows
        ),
        rows=tuple(asdict(row) for row in encoder_rows),
    ).publish(encoder_output)
    Report(
        title="Decoder, milliseconds per step",
        command=command,
        machine=machine,
        setting=f"{setting}; windows of 5 s",
        headings=("dtype", "batch", "ms", "ms per token", "weights floor ms"),
        cells=tuple(
            (r.dtype, str(r.batch), f"{r.ms:.1f}", f"{r.ms / r.batch:.2f}", f"{r.floor_ms:.1f}") for r in decoder_rows
        ),
        rows=tuple(asdict(row) for row in decoder_rows),
    ).publish(decoder_output)


def _of_bare_encoder(
    checkpoint: Checkpoint, dtype: Precision, seconds: Sequence[float], speeds: Speeds
) -> list[EncoderRow]:
    """Our encoder on the windows that CTranslate2 gets: features given, cut, no tail, and nothing for the decoder."""
    cpu = torch.device("cpu")
    dimensions = checkpoint.dimensions
    model = Whisper(checkpoint, device=cpu, dtype=torch.float32)
    in_bf16 = False
    if dtype is Precision.INT8:
        model.quantise()
        in_bf16 = multiplies_bf16()
    cache = KVCache(dimensions, 1, device=cpu, dtype=torch.float32, attends_in_bf16=in_bf16)
    rows = []
    for s in seconds:
        n_positions = int(50 * s)
        cache.lay_out([0], [n_positions], [None])
        frames = torch.randn(1, dimensions.n_mels, 2 * n_positions + 3, generator=torch.Generator().manual_seed(0))
        windows = RaggedWindows(frames, [0], [slice(0, n_positions)], cache)
        with torch.inference_mode():
            model.encoder(windows)
            ms = 1000 * _least_seconds(partial(model.encoder, windows))
        floor_ms = speeds.product_ms(encoder_flop(dimensions, n_positions, Context.TAIL))
        rows.append(EncoderRow(s, 1, "cut", dtype.value, ms, floor_ms))
    return rows


def _of_ctranslate2(
    config: EngineConfig, checkpoint: Checkpoint, seconds: Sequence[float], speeds: Speeds, peers_dir: Path
) -> list[EncoderRow]:
    """The encoder of faster-whisper on the same windows, cut: it has neither features, margin, tail nor cross keys."""
    dimensions = checkpoint.dimensions
    lengths = [*seconds, 30]
    times = ctranslate2_encoder_ms(
        peers_dir,
        prepare_weights(config.model, peers_dir),
        n_frames=[int(100 * s) for s in lengths],
        n_mels=dimensions.n_mels,
        n_threads=torch.get_num_threads(),
    )
    return [
        EncoderRow(
            seconds=s,
            batch=1,
            context="cut" if s < 30 else "full",
            dtype="int8 (CTranslate2)",
            ms=ms,
            floor_ms=speeds.product_ms(encoder_flop(dimensions, int(50 * s), Context.TAIL)),
        )
        for s, ms in zip(lengths, times, strict=True)
    ]


def measure_speeds(device: torch.device) -> Speeds:
    """Measure the float32 matrix product and the read bandwidth, on a CPU with the threads that are set."""
    size = 1024 if device.type == "cpu" else 8192
    left, right = torch.randn(2, size, size, device=device)
    store = torch.ones(64 << 20, device=device)  # 256 MB, more than any cache

    def done(result: torch.Tensor) -> None:
        result.view(-1)[0].item()  # a GPU is waited for

    with torch.inference_mode():
        product_s = _least_seconds(lambda: done(left @ right))
        read_s = _least_seconds(lambda: done(store.sum()))
    return Speeds(2 * size**3 / product_s / 1e9, store.nbytes / read_s / 1e9)


class _Bench:
    """One runner in one setting."""

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig, speeds: Speeds) -> None:
        self._dimensions = checkpoint.dimensions
        self._config = config
        self._speeds = speeds
        self._runner = ModelRunner(checkpoint, Tokenizer(checkpoint), config)
        self._runner.warm_up()
        self._n_requests = 0

    def encoder(self, seconds: float, batch: int) -> EncoderRow:
        """Time the encoder on `batch` windows of noise."""
        audio = np.random.default_rng(0).normal(0, 0.1, int(seconds * SAMPLE_RATE)).astype(np.float32)

        def once() -> float:
            _, admitted = self._admit([audio] * batch)
            return self._runner.encode(admitted).join().ms

        once()
        flop = encoder_flop(self._dimensions, -(-len(audio) // POSITION_SAMPLES), self._config.context)
        return EncoderRow(
            seconds=seconds,
            batch=batch,
            context=self._config.context.value,
            dtype=self._config.dtype.value,
            ms=min(once() for _ in range(_REPEATS)) / batch,
            floor_ms=self._speeds.product_ms(flop),
        )

    def decoder(self, batch: int) -> DecoderRow:
        """Time decode steps of `batch` rows."""
        audio = np.random.default_rng(0).normal(0, 0.1, 5 * SAMPLE_RATE).astype(np.float32)
        scheduler, admitted = self._admit([audio] * batch)
        self._runner.encode(admitted).join()
        scheduler.mark_encoded()
        prefill = scheduler.next_round()
        scheduler.update(prefill, self._runner.decode(prefill))
        for sequence in admitted:  # whatever it would have said, it goes on
            sequence.finish_reason = None
            sequence.tokens = sequence.tokens or [0]
        steps = scheduler.next_round()
        step_s = _least_seconds(lambda: self._runner.decode(steps), n_times=_DECODE_STEPS)
        n_weights = decoder_weights(self._dimensions)
        n_bytes = n_weights * (1 if self._config.dtype is Precision.INT8 else 4)
        return DecoderRow(batch, self._config.dtype.value, 1000 * step_s, n_bytes / self._speeds.read_gb_per_s / 1e6)

    def _admit(self, audio: Sequence[Samples]) -> tuple[Scheduler, list[Running]]:
        scheduler = Scheduler(self._config.n_slots)
        for samples in audio:
            self._n_requests += 1
            window = Window(0, len(samples))
            scheduler.submit(
                Request("bench", self._n_requests, window, samples, (), (), "en", False, is_final=True, ready_at=0.0)
            )
        return scheduler, scheduler.admit()


def encoder_flop(dimensions: Dimensions, n_positions: int, context: Context) -> float:
    """Return the arithmetic of one window: convolutions, layers, and the decoder's cross-attention keys and values."""
    width, ffn = dimensions.n_state, dimensions.ffn
    if context is Context.FULL:
        n_positions = n_keys = dimensions.n_audio_positions
    else:
        n_keys = n_positions + n_tail_keys(dimensions.n_audio_positions - n_positions, ENCODER_STRIDE)
    convolutions = 2 * 3 * n_positions * (2 * dimensions.n_mels * width + width * width)
    layer = 2 * n_positions * (4 * width * width + 2 * width * ffn) + 4 * n_positions * n_keys * width
    cross = 4 * n_positions * width * width
    return convolutions + dimensions.n_encoder_layers * layer + dimensions.n_decoder_layers * cross


def decoder_weights(dimensions: Dimensions) -> int:
    """Return how many weights one decode step reads; keys and values of cross-attention are there already."""
    width, ffn = dimensions.n_state, dimensions.ffn
    layer = 6 * width * width + 2 * width * ffn
    return dimensions.n_decoder_layers * layer + dimensions.n_vocab * width


def _least_seconds(work: Callable[[], object], n_times: int = _REPEATS) -> float:
    times = []
    for _ in range(n_times):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
