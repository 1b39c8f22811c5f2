"""Checkpoints of both layouts: the real one, small random ones, and damaged ones."""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from engine.errors import ModelLoadError
from engine.models.whisper import ctranslate2
from engine.models.whisper.checkpoint import Checkpoint, Dimensions, load_checkpoint, sinusoids, weight_shapes
from engine.models.whisper.tokenizer import Tokenizer
from tests.conftest import LoadClip

SMALL = Dimensions(
    n_mels=8, n_vocab=100, n_state=32, n_heads=4, n_encoder_layers=2, n_decoder_layers=2, ffn=48,
    n_audio_positions=20, n_text_positions=12,
)  # fmt: skip


def whisper(d: Dimensions) -> WhisperForConditionalGeneration:
    """transformers' model of these sizes, with random weights."""
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=d.n_vocab,
        num_mel_bins=d.n_mels,
        d_model=d.n_state,
        encoder_layers=d.n_encoder_layers,
        decoder_layers=d.n_decoder_layers,
        encoder_attention_heads=d.n_heads,
        decoder_attention_heads=d.n_heads,
        encoder_ffn_dim=d.ffn,
        decoder_ffn_dim=d.ffn,
        max_source_positions=d.n_audio_positions,
        max_target_positions=d.n_text_positions,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
        suppress_tokens=None,
        begin_suppress_tokens=[1],
    )
    return WhisperForConditionalGeneration(config).eval()


def weights_of(model: WhisperForConditionalGeneration) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.model.state_dict().items()}


@pytest.fixture
def hugging_face_folder(tmp_path: Path, tiny_en: Checkpoint) -> Path:
    folder = tmp_path / "small-whisper"
    whisper(SMALL).save_pretrained(folder)
    tiny_en.tokenizer.save(str(folder / "tokenizer.json"))
    generation = {"suppress_tokens": [1, 2], "begin_suppress_tokens": [3], "alignment_heads": [[0, 1], [1, 3]]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def edit_json(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


# ------------------------------------------------------------------------------------------------ the real one


def test_packaged_weights_are_those_of_a_whisper_model(tiny_en: Checkpoint, load_clip: LoadClip) -> None:
    """Names, shapes and numbers: transformers, given these weights, transcribes."""
    model = whisper(tiny_en.dimensions)
    model.model.load_state_dict({name: weight.float() for name, weight in tiny_en.weights.items()}, strict=True)
    audio = load_clip("utterance/ls-1272-128104-0000.flac")
    features = WhisperFeatureExtractor()(audio, sampling_rate=16_000, return_tensors="pt").input_features
    tokenizer = Tokenizer(tiny_en)
    tokens = list(tokenizer.prompt("en"))
    with torch.inference_mode():
        encoded = model.model.encoder(features)
        while tokens[-1] != tokenizer.eot and len(tokens) < 40:
            logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([tokens])).logits
            tokens.append(int(logits[0, -1].argmax()))
    assert "apostle of the middle classes" in tokenizer.decode(tokens)


def test_packaged_checkpoint_is_described(tiny_en: Checkpoint) -> None:
    assert tiny_en.dimensions == Dimensions(
        n_mels=80, n_vocab=51_864, n_state=384, n_heads=6, n_encoder_layers=4, n_decoder_layers=4, ffn=1536
    )
    assert tiny_en.begin_suppress_tokens == (220, 50_256)
    assert {1, 50_257} <= set(tiny_en.suppress_tokens)
    assert tiny_en.alignment_heads == ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4))
    assert {weight.dtype for weight in tiny_en.weights.values()} == {torch.float16}


def test_position_table_of_the_encoder_is_computed_as_trained(tiny_en: Checkpoint) -> None:
    trained = tiny_en.weights["encoder.embed_positions.weight"].float()
    torch.testing.assert_close(sinusoids(*trained.shape), trained, atol=1e-3, rtol=0)


# ------------------------------------------------------------------------------------------------ Hugging Face


def test_hugging_face_folder_round_trips(hugging_face_folder: Path) -> None:
    checkpoint = load_checkpoint(hugging_face_folder, name="small")
    assert checkpoint.name == "small"
    assert checkpoint.dimensions == SMALL
    assert {name: tuple(weight.shape) for name, weight in checkpoint.weights.items()} == weight_shapes(SMALL)
    for name, weight in weights_of(whisper(SMALL)).items():
        assert torch.equal(checkpoint.weights[name], weight), name
    assert checkpoint.suppress_tokens == (1, 2)
    assert checkpoint.begin_suppress_tokens == (3,)
    assert checkpoint.alignment_heads == ((0, 1), (1, 3))
    assert checkpoint.tokenizer.token_to_id("<|notimestamps|>") == 50_362


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_keep_the_type_of_the_file(hugging_face_folder: Path, dtype: torch.dtype) -> None:
    whisper(SMALL).to(dtype).save_pretrained(hugging_face_folder)
    checkpoint = load_checkpoint(hugging_face_folder, name="small")
    assert {weight.dtype for weight in checkpoint.weights.values()} == {dtype}


def test_sharded_folder_equals_a_whole_one(hugging_face_folder: Path) -> None:
    whole = load_checkpoint(hugging_face_folder, name="small").weights
    (hugging_face_folder / "model.safetensors").unlink()
    whisper(SMALL).save_pretrained(hugging_face_folder, max_shard_size="30KB")
    assert len(list(hugging_face_folder.glob("model-*.safetensors"))) > 2
    sharded = load_checkpoint(hugging_face_folder, name="small").weights
    assert sharded.keys() == whole.keys()
    assert all(torch.equal(sharded[name], whole[name]) for name in whole)


def test_without_named_heads_the_upper_half_of_the_decoder_aligns(hugging_face_folder: Path) -> None:
    (hugging_face_folder / "generation_config.json").unlink()
    checkpoint = load_checkpoint(hugging_face_folder, name="small")
    assert checkpoint.alignment_heads == ((1, 0), (1, 1), (1, 2), (1, 3))
    assert checkpoint.suppress_tokens == ()


def test_a_vocabulary_of_old_files_gives_the_same_tokenizer(hugging_face_folder: Path, tiny_en: Checkpoint) -> None:
    content = json.loads(tiny_en.tokenizer.to_str())
    (hugging_face_folder / "tokenizer.json").unlink()
    (hugging_face_folder / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in content["model"]["merges"]]
    (hugging_face_folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    (hugging_face_folder / "added_tokens.json").write_text(json.dumps(added))
    tokenizer = load_checkpoint(hugging_face_folder, name="small").tokenizer
    text = " Ask not what your country can do."
    assert (
        tokenizer.encode(text, add_special_tokens=False).ids
        == tiny_en.tokenizer.encode(text, add_special_tokens=False).ids
    )


# ------------------------------------------------------------------------------------------------ CTranslate2


def ctranslate2_variables(weights: Mapping[str, torch.Tensor], d: Dimensions) -> dict[str, torch.Tensor]:
    """The arrays of a CTranslate2 file, as its converter makes them of Hugging Face's weights."""
    variables: dict[str, torch.Tensor] = {
        "encoder/num_heads": torch.tensor(d.n_heads, dtype=torch.int16),
        "decoder/num_heads": torch.tensor(d.n_heads, dtype=torch.int16),
        "decoder/embeddings/weight": weights["decoder.embed_tokens.weight"],
        "decoder/position_encodings/encodings": weights["decoder.embed_positions.weight"],
        "encoder/position_encodings/encodings": weights["encoder.embed_positions.weight"],
    }

    def put(target: str, *sources: str, names: tuple[str, str] = ("weight", "bias")) -> None:
        biases = [
            weights.get(f"{source}.bias", torch.zeros_like(weights[f"{source}.weight"][:, 0])) for source in sources
        ]
        variables[f"{target}/{names[0]}"] = torch.cat([weights[f"{source}.weight"] for source in sources])
        variables[f"{target}/{names[1]}"] = torch.cat(biases)

    def put_norm(target: str, source: str) -> None:
        variables[f"{target}/gamma"] = weights[f"{source}.weight"]
        variables[f"{target}/beta"] = weights[f"{source}.bias"]

    put("encoder/conv1", "encoder.conv1")
    put("encoder/conv2", "encoder.conv2")
    for half, n_layers in (("encoder", d.n_encoder_layers), ("decoder", d.n_decoder_layers)):
        put_norm(f"{half}/layer_norm", f"{half}.layer_norm")
        for i in range(n_layers):
            to, of = f"{half}/layer_{i}", f"{half}.layers.{i}"
            put(f"{to}/self_attention/linear_0", *(f"{of}.self_attn.{p}_proj" for p in "qkv"))
            put(f"{to}/self_attention/linear_1", f"{of}.self_attn.out_proj")
            put_norm(f"{to}/self_attention/layer_norm", f"{of}.self_attn_layer_norm")
            if half == "decoder":
                put(f"{to}/attention/linear_0", f"{of}.encoder_attn.q_proj")
                put(f"{to}/attention/linear_1", *(f"{of}.encoder_attn.{p}_proj" for p in "kv"))
                put(f"{to}/attention/linear_2", f"{of}.encoder_attn.out_proj")
                put_norm(f"{to}/attention/layer_norm", f"{of}.encoder_attn_layer_norm")
            put(f"{to}/ffn/linear_0", f"{of}.fc1")
            put(f"{to}/ffn/linear_1", f"{of}.fc2")
            put_norm(f"{to}/ffn/layer_norm", f"{of}.final_layer_norm")
    return variables


def model_bin(variables: Mapping[str, torch.Tensor], *, version: int = 6, spec: str = "WhisperSpec") -> bytes:
    """A CTranslate2 file of these arrays."""
    types = {torch.float32: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.float16: 4, torch.bfloat16: 5}

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    content = struct.pack("<I", version) + text(spec) + struct.pack("<II", 3, len(variables))
    for name, array in variables.items():
        data = array.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        content += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        content += struct.pack("<BI", types[array.dtype], len(data)) + data
    return content + struct.pack("<I", 1) + text("decoder/projection/weight") + text("decoder/embeddings/weight")


@pytest.fixture
def ctranslate2_folder(tmp_path: Path, tiny_en: Checkpoint) -> Path:
    folder = tmp_path / "small-ctranslate2"
    folder.mkdir()
    variables = ctranslate2_variables(weights_of(whisper(SMALL)), SMALL)
    (folder / "model.bin").write_bytes(model_bin(variables))
    config = {"suppress_ids": [1], "suppress_ids_begin": [2], "alignment_heads": [[1, 0]]}
    (folder / "config.json").write_text(json.dumps(config))
    tiny_en.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_ctranslate2_folder_equals_the_hugging_face_one(ctranslate2_folder: Path) -> None:
    checkpoint = load_checkpoint(ctranslate2_folder, name="small")
    expected = weights_of(whisper(SMALL))
    assert checkpoint.dimensions == SMALL
    assert checkpoint.weights.keys() == expected.keys()
    assert all(torch.equal(checkpoint.weights[name], weight) for name, weight in expected.items())
    assert checkpoint.suppress_tokens == (1,)
    assert checkpoint.begin_suppress_tokens == (2,)
    assert checkpoint.alignment_heads == ((1, 0),)


@pytest.mark.parametrize(("dtype", "largest"), [(torch.int8, 127), (torch.int16, 1023)])
def test_quantised_weights_are_scaled_back(ctranslate2_folder: Path, dtype: torch.dtype, largest: int) -> None:
    expected = weights_of(whisper(SMALL))
    variables = ctranslate2_variables(expected, SMALL)
    for name in [name for name in variables if name.endswith("/weight")]:
        weight = variables[name].float()
        per_row = weight.reshape(len(weight), -1).abs().amax(1)
        scale = largest / (per_row if dtype is torch.int8 else per_row.max())
        variables[name] = (weight * scale.reshape(-1, *[1] * (weight.ndim - 1))).round().to(dtype)
        variables[f"{name}_scale"] = scale
    (ctranslate2_folder / "model.bin").write_bytes(model_bin(variables))
    weights = load_checkpoint(ctranslate2_folder, name="small").weights
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, atol=float(weight.abs().max()) / largest, rtol=0)


def test_missing_position_table_of_the_encoder_is_computed(ctranslate2_folder: Path, tmp_path: Path) -> None:
    d = Dimensions(n_mels=8, n_vocab=9, n_state=8, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, ffn=4)
    variables = ctranslate2_variables(weights_of(whisper(d)), d)
    del variables["encoder/position_encodings/encodings"]
    (ctranslate2_folder / "model.bin").write_bytes(model_bin(variables))
    edit_json(ctranslate2_folder / "config.json", alignment_heads=None)
    weights = load_checkpoint(ctranslate2_folder, name="small").weights
    assert torch.equal(weights["encoder.embed_positions.weight"], sinusoids(1500, 8))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1))
def test_a_file_in_two_parts_equals_the_whole(ctranslate2_folder: Path, share: float) -> None:
    content = (ctranslate2_folder / "model.bin").read_bytes()
    cut = min(max(1, math.floor(share * len(content))), len(content) - 1)
    parts = [ctranslate2_folder / "part1", ctranslate2_folder / "part2"]
    parts[0].write_bytes(content[:cut])
    parts[1].write_bytes(content[cut:])
    whole = ctranslate2.read_variables([ctranslate2_folder / "model.bin"])
    joined = ctranslate2.read_variables(parts)
    assert whole.keys() == joined.keys()
    assert all(torch.equal(joined[name], whole[name]) for name in whole)


# ------------------------------------------------------------------------------------------------ refused


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_model_bin_is_named_damaged(ctranslate2_folder: Path, share: float) -> None:
    content = (ctranslate2_folder / "model.bin").read_bytes()
    damaged = ctranslate2_folder / "damaged.bin"
    damaged.write_bytes(content[: math.floor(share * len(content))])
    with pytest.raises(ModelLoadError, match="ownload the model again"):
        load_checkpoint(ctranslate2_folder, name="small", weight_parts=[damaged])


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(max_size=300))
def test_garbage_raises_nothing_but_the_named_error(ctranslate2_folder: Path, garbage: bytes) -> None:
    damaged = ctranslate2_folder / "damaged.bin"
    damaged.write_bytes(struct.pack("<IH12sII", 6, 12, b"WhisperSpec\0", 3, 5) + garbage)
    with pytest.raises(ModelLoadError):
        load_checkpoint(ctranslate2_folder, name="small", weight_parts=[damaged])


def test_another_version_or_kind_of_model_is_refused(ctranslate2_folder: Path) -> None:
    variables = {"x": torch.zeros(1)}
    (ctranslate2_folder / "model.bin").write_bytes(model_bin(variables, version=99))
    with pytest.raises(ModelLoadError, match="version"):
        load_checkpoint(ctranslate2_folder, name="small")
    (ctranslate2_folder / "model.bin").write_bytes(model_bin(variables, spec="TransformerSpec"))
    with pytest.raises(ModelLoadError, match="not a Whisper model"):
        load_checkpoint(ctranslate2_folder, name="small")


def test_a_key_bias_is_refused(ctranslate2_folder: Path) -> None:
    variables = ctranslate2_variables(weights_of(whisper(SMALL)), SMALL)
    variables["encoder/layer_0/self_attention/linear_0/bias"][SMALL.n_state] = 1
    (ctranslate2_folder / "model.bin").write_bytes(model_bin(variables))
    with pytest.raises(ModelLoadError, match="not a Whisper model"):
        load_checkpoint(ctranslate2_folder, name="small")


def test_missing_weights_are_named(ctranslate2_folder: Path) -> None:
    variables = ctranslate2_variables(weights_of(whisper(SMALL)), SMALL)
    del variables["decoder/layer_1/ffn/linear_1/bias"]
    (ctranslate2_folder / "model.bin").write_bytes(model_bin(variables))
    with pytest.raises(ModelLoadError, match=r"decoder\.layers\.1\.fc2\.bias is missing"):
        load_checkpoint(ctranslate2_folder, name="small")


def test_an_output_projection_of_its_own_is_refused(hugging_face_folder: Path) -> None:
    model = whisper(SMALL)
    model.proj_out.weight = torch.nn.Parameter(model.proj_out.weight.detach() + 1)
    model.config.tie_word_embeddings = False
    model.save_pretrained(hugging_face_folder)
    with pytest.raises(ModelLoadError, match="output projection"):
        load_checkpoint(hugging_face_folder, name="small")


def test_a_truncated_safetensors_file_is_named_damaged(hugging_face_folder: Path) -> None:
    path = hugging_face_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match="damaged"):
        load_checkpoint(hugging_face_folder, name="small")


def test_pickled_weights_are_refused(hugging_face_folder: Path) -> None:
    (hugging_face_folder / "model.safetensors").rename(hugging_face_folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="pickle"):
        load_checkpoint(hugging_face_folder, name="small")


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(hugging_face_folder: Path, file: str) -> None:
    (hugging_face_folder / file).unlink()
    with pytest.raises(ModelLoadError, match=file):
        load_checkpoint(hugging_face_folder, name="small")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_a_damaged_file_is_named(hugging_face_folder: Path, file: str, content: str) -> None:
    (hugging_face_folder / file).write_text(content)
    with pytest.raises(ModelLoadError, match=file):
        load_checkpoint(hugging_face_folder, name="small")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alignment_heads", [[2, 0]]),
        ("alignment_heads", [[0, 4]]),
        ("alignment_heads", [3]),
        ("alignment_heads", "all"),
        ("suppress_tokens", "none"),
        ("begin_suppress_tokens", [1.5]),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused(hugging_face_folder: Path, field: str, value: object) -> None:
    edit_json(hugging_face_folder / "generation_config.json", **{field: value})
    with pytest.raises(ModelLoadError):
        load_checkpoint(hugging_face_folder, name="small")


def test_heads_that_do_not_divide_the_width_are_refused(hugging_face_folder: Path) -> None:
    edit_json(hugging_face_folder / "config.json", encoder_attention_heads=5)
    with pytest.raises(ModelLoadError, match="5 heads"):
        load_checkpoint(hugging_face_folder, name="small")


def test_loading_needs_no_access_to_the_files_afterwards(ctranslate2_folder: Path) -> None:
    checkpoint = load_checkpoint(ctranslate2_folder, name="small")
    expected = weights_of(whisper(SMALL))
    (ctranslate2_folder / "model.bin").write_bytes(b"")
    shutil.rmtree(ctranslate2_folder)
    assert all(torch.equal(checkpoint.weights[name], weight) for name, weight in expected.items())
    assert np.isfinite(checkpoint.weights["encoder.conv1.weight"].numpy()).all()
