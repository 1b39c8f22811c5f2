"""Other people's programs, each in a virtual environment of its own, and the weights in the forms that they read.

Everything lies under one cache folder. What was installed once is not installed again.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch

from engine.models.registry import ResolvedModel, resolve
from engine.models.whisper.checkpoint import Checkpoint, load_checkpoint

_TIMEOUT_S = 1800.0
_TORCH = "torch==2.13.0"


class PeerUnavailable(Exception):
    """A peer cannot be made to run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """What to install.

    Attributes:
        name: of the environment's folder.
        package: requirement whose version is what is measured.
        needs: requirements to install beside it, where its own list asks for more than the benchmark uses.
        without_dependencies: requirements to install without what they ask for; `package` among them.
        wants_torch: it needs torch, which is installed first so that its CPU build can be chosen.
    """

    name: str
    package: str
    needs: tuple[str, ...] = ()
    without_dependencies: tuple[str, ...] = ()
    wants_torch: bool = True


WHISPER_LIVE = Peer(
    "whisper-live",
    "whisper-live==0.10.0",
    # Its list less CUDA libraries, OpenVINO and optimum, which its faster-whisper backend does not import.
    needs=tuple(
        (
            "PyAudio av faster-whisper==1.2.0 websockets onnxruntime<2,>=1.20 scipy websocket-client numba kaldialign "
            "soundfile tokenizers==0.20.3 librosa numpy<2.5,>=1.26.4 fastapi uvicorn python-multipart "
            "tiktoken more-itertools tqdm"
        ).split()
    ),
    without_dependencies=("whisper-live==0.10.0", "openai-whisper==20250625"),
)
WHISPER_LIVE_KIT = Peer("whisperlivekit", "whisperlivekit==0.2.26", needs=("safetensors",))
FASTER_WHISPER = Peer("faster-whisper", "faster-whisper==1.2.1", wants_torch=False)


@dataclass(frozen=True, slots=True)
class Weights:
    """One model in three forms.

    Attributes:
        ctranslate2: folder for faster-whisper.
        torch: folder with model.safetensors under Hugging Face's names, for whisperlivekit's decoder.
        alignment_heads: in OpenAI's notation, base 85 of a gzipped table.
    """

    ctranslate2: Path
    torch: Path
    alignment_heads: str


def install(peer: Peer, folder: Path, *, torch_index: str | None) -> Path:
    """Make the peer's environment, unless it is there.

    Args:
        folder: the cache folder.
        torch_index: package index with a CPU build of torch; None takes pip's own.

    Returns:
        Its Python.

    Raises:
        PeerUnavailable: something could not be installed.
    """
    home = folder.resolve() / peer.name
    python, mark = home / "bin/python", home / "installed.txt"
    wanted = "\n".join([peer.package, *peer.needs, *peer.without_dependencies])
    if mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
        return python
    _run([sys.executable, "-m", "venv", str(home)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if peer.wants_torch:
        _run([*pip, *(["--index-url", torch_index] if torch_index else []), _TORCH])
    if peer.needs:
        _run([*pip, *peer.needs])
    if peer.without_dependencies:
        _run([*pip, "--no-deps", *peer.without_dependencies])
    else:
        _run([*pip, peer.package])
    mark.write_text(wanted, encoding="utf-8")
    return python


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).splitlines()[-6:])
        raise PeerUnavailable(f"{' '.join(command)} failed:\n{last}")


def prepare_weights(model: str, folder: Path) -> Weights:
    """Write the model in the forms that peers read.

    Raises:
        PeerUnavailable: the model is not there in CTranslate2's form.
    """
    found = resolve(model)
    ctranslate2 = ctranslate2_folder(found, folder)
    checkpoint = load_checkpoint(found.folder, name=found.name, weight_parts=found.weight_parts)
    home = _weights_home(found, folder)
    weights = {f"model.{name}": weight.float().contiguous() for name, weight in checkpoint.weights.items()}
    safetensors.torch.save_file(weights, home / "model.safetensors")
    (home / "config.json").write_text(json.dumps(_hugging_face_config(checkpoint)), encoding="utf-8")
    return Weights(ctranslate2, home, _alignment_heads(checkpoint))


def ctranslate2_folder(found: ResolvedModel, folder: Path) -> Path:
    """Give the model as one CTranslate2 folder; pieces of its weights are joined in the cache folder.

    Raises:
        PeerUnavailable: the model is not there in CTranslate2's form.
    """
    if (found.folder / "model.bin").is_file():
        return found.folder
    if not found.weight_parts:
        raise PeerUnavailable(f"{found.name} is not there as a CTranslate2 folder; name one with --model.")
    home = _weights_home(found, folder) / "ctranslate2"
    shutil.copytree(
        found.folder, home, ignore=lambda *_: [part.name for part in found.weight_parts], dirs_exist_ok=True
    )
    with (home / "model.bin").open("wb") as whole:
        for part in found.weight_parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, whole)
    return home


def _weights_home(found: ResolvedModel, folder: Path) -> Path:
    home = folder.resolve() / "weights" / found.name
    home.mkdir(parents=True, exist_ok=True)
    return home


def _hugging_face_config(checkpoint: Checkpoint) -> dict[str, int | str]:
    sizes = checkpoint.dimensions
    return {
        "model_type": "whisper",
        "num_mel_bins": sizes.n_mels,
        "max_source_positions": sizes.n_audio_positions,
        "max_target_positions": sizes.n_text_positions,
        "d_model": sizes.n_state,
        "vocab_size": sizes.n_vocab,
        "encoder_attention_heads": sizes.n_heads,
        "decoder_attention_heads": sizes.n_heads,
        "encoder_layers": sizes.n_encoder_layers,
        "decoder_layers": sizes.n_decoder_layers,
        "encoder_ffn_dim": sizes.ffn,
        "decoder_ffn_dim": sizes.ffn,
    }


def _alignment_heads(checkpoint: Checkpoint) -> str:
    table = np.zeros((checkpoint.dimensions.n_decoder_layers, checkpoint.dimensions.n_heads), dtype=bool)
    for layer, head in checkpoint.alignment_heads:
        table[layer, head] = True
    return base64.b85encode(gzip.compress(table.tobytes())).decode()
