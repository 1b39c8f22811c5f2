"""Settings of the engine: read once, checked once, frozen.

Only what belongs to the whole engine is here; what a client chooses travels with its session (`SessionSettings`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.errors import ConfigError
from engine.types import SETTING_RANGES


class EncoderMode(StrEnum):
    """How the windows of a tick go through the encoder."""

    BATCHED = "batched"  # one call for all of them
    SEQUENTIAL = "sequential"  # one call each, for comparison: the same words, more time


class Context(StrEnum):
    """What the encoder sees behind the audio of a window."""

    TAIL = "tail"  # the kept keys and values of silence; only real audio is computed
    FULL = "full"  # silence up to 30 s, computed for every window, as in training


class Precision(StrEnum):
    """Number format of the weights."""

    AUTO = "auto"  # the fastest whose word error rate stays within 0.2 points of fp32: int8 on a CPU, fp16 on CUDA
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"  # CUDA only
    INT8 = "int8"  # CPU only: int8 products, bf16 in the encoder's attention where that is fast, everything else fp32


class Device(StrEnum):
    """Where the model runs."""

    AUTO = "auto"  # CUDA if there is one
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine.

    Attributes:
        model: short name, Hugging Face id, or folder of a checkpoint.
        device: where the model runs.
        dtype: number format of the weights.
        encoder: batched or sequential.
        context: tail or full.
        freeze_after_s: encoder positions with so much audio to their right are reused by later windows that begin at
            the same sample; 0 encodes every window afresh, None takes what was measured to do for a model of this
            size. Of a final only what lies before the utterance is reused.
        draft: verify the last hypothesis of an utterance in the pass that prefills the next; the text is the same.
        n_branches: other texts that a final is weighed against; 0 takes the greedy one.
        n_slots: rows of the KV cache: the most windows that are decoded at once; 0 takes what suits the device.
        gather_ms: how long a tick waits for near-simultaneous audio once something waits.
        n_threads: torch threads; 0 leaves one core to the event loop.
        pause_ms: silence that ends an utterance, unless its session wants another.
        partial_interval_ms: least new audio between two partials of one utterance.
    """

    model: str = "tiny.en"
    device: Device = Device.AUTO
    dtype: Precision = Precision.AUTO
    encoder: EncoderMode = EncoderMode.BATCHED
    context: Context = Context.TAIL
    freeze_after_s: float | None = None
    draft: bool = True
    n_branches: int = 4
    n_slots: int = 0
    gather_ms: float = 0.0
    n_threads: int = 0
    pause_ms: int = 700
    partial_interval_ms: int = 500

    def __post_init__(self) -> None:
        for name, low, high in (
            ("freeze_after_s", 0, 30),
            ("n_branches", 0, 16),
            ("n_slots", 0, 1024),
            ("gather_ms", 0, 1000),
            ("n_threads", 0, 256),
            ("pause_ms", *SETTING_RANGES["pause_ms"]),
            ("partial_interval_ms", 100, 5000),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} is {value}, it must lie between {low} and {high}.")
