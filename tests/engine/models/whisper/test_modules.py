"""Our Whisper against transformers' with the same weights, and against itself without a cache."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.models.whisper.checkpoint import Checkpoint
from engine.models.whisper.modules import AttentionTap, Whisper
from engine.models.whisper.tokenizer import Tokenizer
from tests.engine.conftest import Spoken
from tests.engine.real_models import CachedDecoder, attention, encode, make_whisper, random_checkpoint
from tests.engine.reference import make_reference

N_MELS = 80
N_VOCAB = 50  # of the small random model
N_AUDIO_POSITIONS = 20  # 0.4 s
N_TEXT_POSITIONS = 32
N_ROWS = 3


@pytest.fixture(scope="module")
def whisper(tiny_en: Checkpoint) -> Whisper:
    return make_whisper(tiny_en)


@pytest.fixture(scope="module")
def encoded(whisper: Whisper, spoken: Spoken) -> list[Tensor]:
    """Two windows through our encoder in one call."""
    return encode(whisper, spoken.features[:2])


class SmallModel:
    """Random weights in both implementations; the oracle decodes all tokens in one pass, without a cache."""

    def __init__(self, like: Checkpoint) -> None:
        checkpoint = random_checkpoint(
            like, seed=1, n_vocab=N_VOCAB, n_audio_positions=N_AUDIO_POSITIONS, n_text_positions=N_TEXT_POSITIONS
        )
        self.whisper = make_whisper(checkpoint)
        self._reference = make_reference(checkpoint)

    @torch.inference_mode()
    def uncached(self, features: Tensor, tokens: list[int]) -> Tensor:
        """(T, V) scores by transformers."""
        answer = self._reference(features[None], decoder_input_ids=torch.tensor([tokens]), use_cache=False)
        return answer.logits[0]


@pytest.fixture(scope="module")
def small(tiny_en: Checkpoint) -> SmallModel:
    return SmallModel(tiny_en)


def random_features(seed: int) -> Tensor:
    """(M, F): as much as the small model hears."""
    return torch.randn(N_MELS, 2 * N_AUDIO_POSITIONS, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------ real weights


def test_encoder_output_equals_the_reference(spoken: Spoken, encoded: list[Tensor]) -> None:
    with torch.inference_mode():
        theirs = spoken.model.model.encoder(spoken.features[:2]).last_hidden_state
    torch.testing.assert_close(torch.stack(encoded), theirs, atol=1e-3, rtol=1e-4)


def test_a_window_is_encoded_alike_alone_and_in_a_batch(
    whisper: Whisper, spoken: Spoken, encoded: list[Tensor]
) -> None:
    (alone,) = encode(whisper, spoken.features[1:2])
    torch.testing.assert_close(alone, encoded[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_features_are_cast_to_the_type_of_the_weights(whisper: Whisper, spoken: Spoken, dtype: torch.dtype) -> None:
    features = spoken.features[0].to(dtype)
    (cast,), (expected,) = encode(whisper, [features]), encode(whisper, [features.float()])
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, expected)


def test_half_precision_weights_take_full_precision_features(tiny_en: Checkpoint, spoken: Spoken) -> None:
    model = make_whisper(tiny_en, dtype=torch.bfloat16)
    (output,) = encode(model, spoken.features[:1])
    assert output.dtype == torch.bfloat16 and output.isfinite().all()


def test_logits_and_cross_attention_equal_the_reference(
    whisper: Whisper, spoken: Spoken, tiny_en: Checkpoint, tokenizer: Tokenizer
) -> None:
    """The prompt and text of one window, forced."""
    tokens = [*tokenizer.prompt("en"), *spoken.tokens[0]]
    with torch.inference_mode():
        theirs = spoken.model(
            spoken.features[:1], decoder_input_ids=torch.tensor([tokens]), output_attentions=True, use_cache=False
        )
    tap = AttentionTap(tiny_en.alignment_heads)
    decoder = CachedDecoder(whisper, 1)
    decoder.show({0: spoken.features[0]})
    scores = decoder.extend({0: tokens}, tap=tap)[0]
    torch.testing.assert_close(scores, theirs.logits[0], atol=2e-3, rtol=1e-3)
    in_order = sorted(tiny_en.alignment_heads)
    expected = torch.stack([theirs.cross_attentions[layer][0, head] for layer, head in in_order])
    torch.testing.assert_close(attention(tap, 0), expected, atol=1e-4, rtol=1e-3)


# ------------------------------------------------------------------------------------------------ cache


steps = st.lists(
    st.tuples(
        st.booleans(),  # new windows, so that rows are used again
        st.dictionaries(st.integers(0, N_ROWS - 1), st.integers(1, 4), min_size=1),  # row -> number of tokens
    ),
    min_size=1,
    max_size=6,
)


@given(steps=steps, seed=st.integers(0, 9), padded=st.booleans())
@settings(max_examples=30)
def test_cached_steps_equal_one_pass_without_a_cache(
    steps: list[tuple[bool, dict[int, int]]], seed: int, padded: bool, small: SmallModel
) -> None:
    """Rows of unlike length, extended in any order, many together, in both layouts, also after a row was used again."""
    random = np.random.default_rng(seed)
    windows = itertools.count(seed)
    decoder = CachedDecoder(small.whisper, N_ROWS, padded=padded)
    shown = {row: next(windows) for row in range(N_ROWS)}
    decoder.show({row: random_features(window) for row, window in shown.items()})
    said: dict[int, list[int]] = {row: [] for row in range(N_ROWS)}
    for is_new, lengths in steps:
        if is_new:
            shown |= {row: next(windows) for row in lengths}
            decoder.show({row: random_features(shown[row]) for row in lengths})
            said |= {row: [] for row in lengths}
        added = {row: random.integers(0, N_VOCAB, n).tolist() for row, n in lengths.items()}
        scores = decoder.extend(added)
        for row, tokens in added.items():
            said[row] += tokens
            expected = small.uncached(random_features(shown[row]), said[row])
            torch.testing.assert_close(scores[row], expected[-len(tokens) :], atol=1e-4, rtol=1e-4)
