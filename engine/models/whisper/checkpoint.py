"""A Whisper checkpoint folder, read into one neutral and checked value.

First step of loading a model: `registry.py` finds the folder, this file reads it, `model.py` builds modules from it.
Two layouts give the same `Checkpoint`: Hugging Face (model.safetensors, whole or sharded) and CTranslate2 (model.bin).
Weights keep the type of the file. Pickled weights are not read: they can run code. Knows no device and no modules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import tokenizers
import torch

from engine.errors import ModelLoadError
from engine.models.whisper import ctranslate2

N_AUDIO_POSITIONS = 1500  # 30 s of 20 ms
N_TEXT_POSITIONS = 448
_TINY_STATE = 384
HEAD_WIDTH = 64  # of every published Whisper model; only where the checkpoint does not name its number of heads


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Sizes of a Whisper model, in the words of openai/whisper where it has one.

    Attributes:
        n_mels: M, mel bins.
        n_vocab: V, rows of the token embedding.
        n_state: C, width of encoder and decoder.
        n_heads: H, attention heads of encoder and decoder.
        n_encoder_layers, n_decoder_layers: blocks.
        ffn: width inside a block's feed-forward part.
        n_audio_positions: S, encoder positions of 20 ms.
        n_text_positions: most tokens of one row, the prompt included.
    """

    n_mels: int
    n_vocab: int
    n_state: int
    n_heads: int
    n_encoder_layers: int
    n_decoder_layers: int
    ffn: int
    n_audio_positions: int = N_AUDIO_POSITIONS
    n_text_positions: int = N_TEXT_POSITIONS

    @property
    def is_tiny(self) -> bool:
        """Whether the model is no wider than Whisper's smallest, on which some defaults hang."""
        return self.n_state <= _TINY_STATE


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Everything that a Whisper model is made of.

    Attributes:
        name: what to call the model.
        dimensions: its sizes.
        weights: exactly the names and shapes of `weight_shapes(dimensions)`, floating point.
        tokenizer: the vocabulary.
        suppress_tokens: never chosen.
        begin_suppress_tokens: never chosen as the first text token.
        alignment_heads: (decoder layer, head) of the cross-attention heads that follow the audio.
    """

    name: str
    dimensions: Dimensions
    weights: dict[str, torch.Tensor]
    tokenizer: tokenizers.Tokenizer
    suppress_tokens: tuple[int, ...]
    begin_suppress_tokens: tuple[int, ...]
    alignment_heads: tuple[tuple[int, int], ...]


def load_checkpoint(folder: Path, *, name: str, weight_parts: Sequence[Path] = ()) -> Checkpoint:
    """Read a checkpoint folder; the layout is told by the files in it.

    Args:
        folder: holds config.json, tokenizer.json (or vocab.json and merges.txt) and the weights.
        name: what to call the model.
        weight_parts: pieces of a model.bin that lies elsewhere, in order.

    Raises:
        ModelLoadError: a file is missing, damaged or of an unknown layout; the message says what to do.
    """
    config = _read_json(folder / "config.json")
    n_heads: int | None = None
    if weight_parts or (folder / "model.bin").is_file():
        variables = ctranslate2.read_variables(weight_parts or [folder / "model.bin"])
        weights = ctranslate2.to_hugging_face(variables)
        if "encoder/num_heads" in variables:
            n_heads = int(variables["encoder/num_heads"])
        generation = {
            "suppress_tokens": config.get("suppress_ids"),
            "begin_suppress_tokens": config.get("suppress_ids_begin"),
            "alignment_heads": config.get("alignment_heads"),
        }
    else:
        weights = _read_safetensors(folder)
        n_heads = config.get("encoder_attention_heads")
        generation = config | _read_json(folder / "generation_config.json", optional=True)

    _drop_tied_projection(weights, folder)
    dimensions = _dimensions(weights, n_heads, folder)
    if "encoder.embed_positions.weight" not in weights:  # older converters left the fixed table out
        weights["encoder.embed_positions.weight"] = sinusoids(dimensions.n_audio_positions, dimensions.n_state)
    _check_shapes(weights, dimensions, folder)
    return Checkpoint(
        name=name,
        dimensions=dimensions,
        weights=weights,
        tokenizer=_read_tokenizer(folder),
        suppress_tokens=_token_ids(generation.get("suppress_tokens"), folder),
        begin_suppress_tokens=_token_ids(generation.get("begin_suppress_tokens"), folder),
        alignment_heads=_alignment_heads(generation.get("alignment_heads"), dimensions, folder),
    )


def weight_shapes(dimensions: Dimensions) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a Whisper model with these dimensions, Hugging Face's names less "model."."""
    d = dimensions
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (d.n_state, d.n_mels, 3),
        "encoder.conv1.bias": (d.n_state,),
        "encoder.conv2.weight": (d.n_state, d.n_state, 3),
        "encoder.conv2.bias": (d.n_state,),
        "encoder.embed_positions.weight": (d.n_audio_positions, d.n_state),
        "decoder.embed_tokens.weight": (d.n_vocab, d.n_state),
        "decoder.embed_positions.weight": (d.n_text_positions, d.n_state),
    }
    for half, n_layers, attentions in (
        ("encoder", d.n_encoder_layers, ("self_attn",)),
        ("decoder", d.n_decoder_layers, ("self_attn", "encoder_attn")),
    ):
        norms = [f"{half}.layer_norm"]
        for block in (f"{half}.layers.{layer}" for layer in range(n_layers)):
            norms += [f"{block}.{attention}_layer_norm" for attention in attentions] + [f"{block}.final_layer_norm"]
            for projection in (f"{block}.{attention}.{p}_proj" for attention in attentions for p in "qkv"):
                shapes[f"{projection}.weight"] = (d.n_state, d.n_state)
                if not projection.endswith("k_proj"):
                    shapes[f"{projection}.bias"] = (d.n_state,)
            for attention in attentions:
                shapes[f"{block}.{attention}.out_proj.weight"] = (d.n_state, d.n_state)
                shapes[f"{block}.{attention}.out_proj.bias"] = (d.n_state,)
            shapes |= {f"{block}.fc1.weight": (d.ffn, d.n_state), f"{block}.fc1.bias": (d.ffn,)}
            shapes |= {f"{block}.fc2.weight": (d.n_state, d.ffn), f"{block}.fc2.bias": (d.n_state,)}
        for norm in norms:
            shapes |= {f"{norm}.weight": (d.n_state,), f"{norm}.bias": (d.n_state,)}
    return shapes


def sinusoids(n_positions: int, n_state: int) -> torch.Tensor:
    """The encoder's fixed position table, (S, C) float32: sines of falling frequency, then the cosines."""
    half = n_state // 2
    step = torch.log(torch.tensor(10_000.0)) / (half - 1)
    angles = torch.arange(n_positions)[:, None] * torch.exp(-step * torch.arange(half))[None, :]  # (S, C / 2)
    return torch.cat([angles.sin(), angles.cos()], dim=1)  # (S, C)


# ------------------------------------------------------------------------------------------------ reading


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ModelLoadError(
            f"{path} cannot be read ({fault.strerror}). A model folder holds config.json, tokenizer.json and "
            "model.safetensors (Hugging Face) or model.bin (CTranslate2)."
        ) from fault
    except ValueError as fault:
        raise ModelLoadError(f"{path} is not JSON ({fault}). Download the model again.") from fault
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object. Download the model again.")
    return content


def _read_safetensors(folder: Path) -> dict[str, torch.Tensor]:
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    elif index.is_file():
        files = [folder / file for file in sorted(set(_read_json(index).get("weight_map", {}).values()))]
    else:
        pickled = (folder / "pytorch_model.bin").is_file()
        raise ModelLoadError(
            f"{folder} has neither model.safetensors nor model.bin. "
            + (
                "Its pytorch_model.bin is a pickle, which can run code and is not read: save it as safetensors."
                if pickled
                else "Download the model again, or choose another folder."
            )
        )
    weights: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            weights |= safetensors.torch.load_file(file)
        except (OSError, safetensors.SafetensorError) as fault:
            raise ModelLoadError(f"{file} is missing or damaged ({fault}). Download the model again.") from fault
    return {name.removeprefix("model."): weight for name, weight in weights.items()}


def _read_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file() and (folder / "vocab.json").is_file():
        from transformers.models.whisper import WhisperTokenizer  # slow to import and only needed for old folders

        tokenizer: tokenizers.Tokenizer = WhisperTokenizer.from_pretrained(folder).backend_tokenizer
        return tokenizer
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as fault:  # the library raises nothing narrower, whatever is wrong with the file
        raise ModelLoadError(f"{path} is missing or damaged ({fault}). Download the model again.") from fault


# ------------------------------------------------------------------------------------------------ checking


def _drop_tied_projection(weights: dict[str, torch.Tensor], folder: Path) -> None:
    """Whisper's output projection is the token embedding; some files hold it twice."""
    projection = weights.pop("proj_out.weight", None)
    embedding = weights.get("decoder.embed_tokens.weight")
    if projection is not None and embedding is not None and not torch.equal(projection, embedding):
        raise ModelLoadError(f"{folder} has an output projection of its own, which Whisper has not. Choose another.")


def _dimensions(weights: Mapping[str, torch.Tensor], n_heads: int | None, folder: Path) -> Dimensions:
    """Sizes as the weights have them; only the number of heads cannot be seen in them."""
    try:
        n_state, n_mels, _ = weights["encoder.conv1.weight"].shape
        n_vocab = weights["decoder.embed_tokens.weight"].shape[0]
        n_text_positions = weights["decoder.embed_positions.weight"].shape[0]
        ffn = weights["encoder.layers.0.fc1.weight"].shape[0]
    except (KeyError, ValueError) as fault:
        raise ModelLoadError(f"{folder} is not a whole Whisper model: {fault} is missing or misshapen.") from fault
    positions = weights.get("encoder.embed_positions.weight")
    layers = {
        half: len({name.split(".")[2] for name in weights if name.startswith(f"{half}.layers.")})
        for half in ("encoder", "decoder")
    }
    return Dimensions(
        n_mels=n_mels,
        n_vocab=n_vocab,
        n_state=n_state,
        n_heads=n_heads or n_state // HEAD_WIDTH,
        n_encoder_layers=layers["encoder"],
        n_decoder_layers=layers["decoder"],
        ffn=ffn,
        n_audio_positions=N_AUDIO_POSITIONS if positions is None else positions.shape[0],
        n_text_positions=n_text_positions,
    )


def _check_shapes(weights: Mapping[str, torch.Tensor], dimensions: Dimensions, folder: Path) -> None:
    expected = weight_shapes(dimensions)
    faults = [f"{name} is missing" for name in expected.keys() - weights.keys()]
    faults += [f"{name} is unknown" for name in weights.keys() - expected.keys()]
    faults += [
        f"{name} is {tuple(weights[name].shape)}, not {shape}"
        for name, shape in expected.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    if faults:
        raise ModelLoadError(
            f"{folder} is not a whole Whisper model: {', '.join(sorted(faults)[:5])} ({len(faults)} in all)."
        )
    if dimensions.n_state % dimensions.n_heads:
        raise ModelLoadError(f"{folder}: width {dimensions.n_state} cannot be split into {dimensions.n_heads} heads.")


def _token_ids(value: object, folder: Path) -> tuple[int, ...]:
    """Token ids of a configuration file, which may leave them out."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(token, int) for token in value):
        raise ModelLoadError(f"{folder}: the suppressed tokens are {value!r}, not a list of token ids.")
    return tuple(value)


def _alignment_heads(value: object, dimensions: Dimensions, folder: Path) -> tuple[tuple[int, int], ...]:
    """The named heads; without names every head of the decoder's upper half, as in openai/whisper."""
    if value is None:
        layers = range(dimensions.n_decoder_layers // 2, dimensions.n_decoder_layers)
        return tuple((layer, head) for layer in layers for head in range(dimensions.n_heads))
    pairs: list[Any] = value if isinstance(value, list) else [value]
    for pair in pairs:
        if not (
            isinstance(pair, list)
            and len(pair) == 2
            and pair[0] in range(dimensions.n_decoder_layers)
            and pair[1] in range(dimensions.n_heads)
        ):
            raise ModelLoadError(f"{folder}: alignment head {pair!r} is not a (layer, head) of this model.")
    return tuple((pair[0], pair[1]) for pair in pairs)
