"""Reader of CTranslate2's model.bin, the weights that faster-whisper users have.

Stands before `checkpoint.py`, which turns the folder around the file into one value. Knows nothing of configuration
files and tokenizers. Nothing in the file is executed: it is a table of named arrays, read through a memory map.

The file, little-endian (binary version 6, CTranslate2's `Model::load` and `ModelSpec.save`):

    u32 version, text spec name, u32 spec revision, u32 number of variables,
    per variable: text name, u8 rank, u32 per dimension, u8 type, u32 bytes, data
    u32 number of aliases, per alias: text alias, text variable

where text is a u16 length, which counts the closing NUL, and the bytes. Quantised weights come with a variable
`weight_scale`, one value per output row (or one for all of int16), by which the integers are divided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engine.errors import ModelLoadError

BINARY_VERSIONS = (4, 5, 6)  # the versions that share this layout
SPEC_NAME = "WhisperSpec"
CONV_KERNEL_SIZE = 3  # frames; quantised convolutions are stored flat

_TYPES = {
    0: torch.float32,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.float16,
    5: torch.bfloat16,
}

_MODULES = {
    "encoder/conv1": "encoder.conv1",
    "encoder/conv2": "encoder.conv2",
    "encoder/layer_norm": "encoder.layer_norm",
    "encoder/position_encodings": "encoder.embed_positions",
    "decoder/embeddings": "decoder.embed_tokens",
    "decoder/layer_norm": "decoder.layer_norm",
    "decoder/position_encodings": "decoder.embed_positions",
}

# Linear layers with the same input are stored as one matrix, their output rows one below the other.
_LAYER_MODULES = {
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}

_PARAMETERS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias", "encodings": "weight"}

_LAYER_NAME = re.compile(r"(encoder|decoder)/layer_(\d+)/(.+)/(weight|bias|gamma|beta)")


def read_variables(parts: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Read every array of a model.bin, under CTranslate2's names, integers not yet scaled.

    Args:
        parts: the file, or the pieces that it was cut into, in order.

    Raises:
        ModelLoadError: the file is truncated, damaged, of another version or not a Whisper model.
    """
    reader = _Reader(parts)
    version = reader.unsigned(4)
    if version not in BINARY_VERSIONS:
        raise ModelLoadError(
            f"{parts[0]} is not a CTranslate2 model of a known version (read {version}, known are 4 to 6). "
            "Convert the model again with a current ct2-transformers-converter."
        )
    spec_name = reader.text()
    if spec_name != SPEC_NAME:
        raise ModelLoadError(f"{parts[0]} holds a {spec_name}, not a Whisper model. Choose another model.")
    reader.unsigned(4)  # revision of the spec: tells of variables that have been added since, not of the layout

    variables = {}
    for _ in range(reader.unsigned(4)):
        name = reader.text()
        variables[name] = reader.array()
    for _ in range(reader.unsigned(4)):
        alias, target = reader.text(), reader.text()
        if target not in variables:
            raise reader.damaged(f"{alias} refers to {target}, which is missing")
        variables[alias] = variables[target]
    return variables


def to_hugging_face(variables: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename, split and scale arrays of `read_variables` into Hugging Face's names without the leading "model.".

    CTranslate2 keeps the query scale out of the weights, as Hugging Face does. The key bias, which Whisper does not
    have, is stored as zeros and left out here.

    Raises:
        ModelLoadError: a key bias is not zero, or quantised weights lack their scale.
    """
    weights: dict[str, torch.Tensor] = {}
    embedding = variables.get("decoder/embeddings/weight")
    for name, array in variables.items():
        module, _, parameter = name.rpartition("/")
        if name == "decoder/projection/weight" and array is embedding:
            continue  # an alias: Whisper's output projection is the token embedding
        if parameter == "weight":
            array = _dequantised(name, variables)
        if module in _MODULES and parameter in _PARAMETERS:
            weights[f"{_MODULES[module]}.{_PARAMETERS[parameter]}"] = array
        elif found := _LAYER_NAME.fullmatch(name):
            half, layer, inner, parameter = found.groups()
            targets = _LAYER_MODULES.get(inner, ())
            for target, piece in zip(targets, array.chunk(max(len(targets), 1)), strict=False):
                weights[f"{half}.layers.{layer}.{target}.{_PARAMETERS[parameter]}"] = piece
        elif name == "decoder/projection/weight":
            weights["proj_out.weight"] = array

    for name in [name for name in weights if name.endswith("k_proj.bias")]:
        if weights.pop(name).any():
            raise ModelLoadError(f"{name} is not zero: this is not a Whisper model. Choose another model.")
    return weights


def _dequantised(name: str, variables: dict[str, torch.Tensor]) -> torch.Tensor:
    """The weight `name` in floating point; quantised ones become float32."""
    weight = variables[name]
    if weight.is_floating_point():
        return weight
    scale = variables.get(f"{name}_scale")
    if scale is None:
        raise ModelLoadError(f"{name} is quantised but its scale is missing. Convert or download the model again.")
    flat = weight.reshape(weight.shape[0], -1).float() / scale.float().reshape(-1, 1)
    if "/conv" in name:
        return flat.reshape(weight.shape[0], -1, CONV_KERNEL_SIZE)
    return flat.reshape(weight.shape)


class _Reader:
    """Reads forward through one or several files as if they were one."""

    def __init__(self, parts: Sequence[Path]) -> None:
        self._name = " + ".join(str(part) for part in parts)
        try:
            self._pieces = [np.memmap(part, dtype=np.uint8, mode="r") for part in parts]
        except (OSError, ValueError) as fault:  # ValueError: an empty file cannot be mapped
            raise ModelLoadError(f"{self._name} cannot be read ({fault}). Download the model again.") from fault
        self._piece = 0
        self._offset = 0

    def damaged(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self._name} is damaged: {what}. Delete it and download the model again.")

    def take(self, n_bytes: int) -> NDArray[np.uint8]:
        """The next bytes, (n_bytes,) uint8; a view unless they lie across the border of two files."""
        taken = []
        missing = n_bytes
        while missing and self._piece < len(self._pieces):
            piece = self._pieces[self._piece][self._offset : self._offset + missing]
            taken.append(piece)
            missing -= len(piece)
            self._offset += len(piece)
            if self._offset == len(self._pieces[self._piece]):
                self._piece, self._offset = self._piece + 1, 0
        if missing:
            raise self.damaged("it ends too early")
        return taken[0] if len(taken) == 1 else np.concatenate([np.empty(0, dtype=np.uint8), *taken])

    def unsigned(self, n_bytes: int) -> int:
        return int.from_bytes(self.take(n_bytes).tobytes(), "little")

    def text(self) -> str:
        try:
            return self.take(self.unsigned(2)).tobytes().rstrip(b"\0").decode()
        except UnicodeDecodeError as fault:
            raise self.damaged("a name is not text") from fault

    def array(self) -> torch.Tensor:
        shape = [self.unsigned(4) for _ in range(self.unsigned(1))]
        type_id = self.unsigned(1)
        n_bytes = self.unsigned(4)
        dtype = _TYPES.get(type_id)
        if dtype is None:
            raise self.damaged(f"type {type_id} is unknown")
        if n_bytes != math.prod(shape) * dtype.itemsize:
            raise self.damaged(f"an array of shape {shape} takes {n_bytes} bytes")
        # Arrays start at any byte of the file: the copy aligns them and lets go of the file.
        return torch.from_numpy(np.array(self.take(n_bytes))).view(dtype).reshape(shape)
