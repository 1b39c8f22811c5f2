"""transformers' Whisper with the weights of a checkpoint: what ours must equal. Importing it takes seconds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from engine.models.whisper.checkpoint import Checkpoint
from engine.types import Samples


def make_reference(checkpoint: Checkpoint) -> WhisperForConditionalGeneration:
    """transformers' model with the checkpoint's weights in float32, plain attention, greedy."""
    d = checkpoint.dimensions
    tokenizer = checkpoint.tokenizer
    end, start = (tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|startoftranscript|>"))
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
        pad_token_id=min(end, d.n_vocab - 1),
        bos_token_id=min(end, d.n_vocab - 1),
        eos_token_id=min(end, d.n_vocab - 1),
        decoder_start_token_id=min(start, d.n_vocab - 1),
        attn_implementation="eager",
    )
    model = WhisperForConditionalGeneration(config)
    weights = {f"model.{name}": weight.float() for name, weight in checkpoint.weights.items()}
    model.load_state_dict(weights | {"proj_out.weight": weights["model.decoder.embed_tokens.weight"]})
    model.generation_config = GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=list(checkpoint.suppress_tokens),
        begin_suppress_tokens=list(checkpoint.begin_suppress_tokens),
        no_timestamps_token_id=tokenizer.token_to_id("<|notimestamps|>"),
        is_multilingual=False,
        return_timestamps=False,
        max_length=d.n_text_positions,
    )
    return model.eval()


def reference_features(audio: Sequence[Samples], n_mels: int) -> Tensor:
    """(B, M, 3000) float32, each padded to 30 s."""
    extract = WhisperFeatureExtractor(feature_size=n_mels)
    return extract(list(audio), sampling_rate=16_000, return_tensors="pt").input_features


@torch.inference_mode()
def reference_tokens(reference: WhisperForConditionalGeneration, features: Tensor) -> list[tuple[int, ...]]:
    """Greedy text tokens of each window, by transformers' own generate."""
    end = reference.generation_config.eos_token_id
    answer = reference.generate(features, do_sample=False, num_beams=1)
    return [tuple(token for token in row.tolist() if token < end) for row in answer]
