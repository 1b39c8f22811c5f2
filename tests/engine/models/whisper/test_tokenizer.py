"""Prompts, text and words of real vocabularies, and of one whose tokens are single bytes."""

from __future__ import annotations

import json
import string
from dataclasses import replace

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from engine.errors import ModelLoadError
from engine.models.whisper.checkpoint import Checkpoint, Dimensions
from engine.models.whisper.tokenizer import Tokenizer, language_names, n_before_sot
from engine.types import Task

SPECIAL = (
    "<|endoftext|> <|startoftranscript|> <|en|> <|zh|> <|de|> <|haw|> <|translate|> <|transcribe|> "
    "<|startoflm|> <|startofprev|> <|nospeech|> <|notimestamps|> <|0.00|>"
).split()


def make_checkpoint(special: list[str] = SPECIAL, *, n_vocab: int = 51_865) -> Checkpoint:
    """A multilingual vocabulary in which every byte is a token, so that characters are cut wherever possible."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return Checkpoint(
        name="bytes",
        dimensions=Dimensions(
            n_mels=80, n_vocab=n_vocab, n_state=64, n_heads=1, n_encoder_layers=1, n_decoder_layers=1, ffn=256
        ),
        weights={"decoder.embed_tokens.weight": torch.zeros(1, 64)},
        tokenizer=tokenizer,
        suppress_tokens=(),
        begin_suppress_tokens=(),
        alignment_heads=(),
    )


@pytest.fixture(scope="module")
def english(tiny_en: Checkpoint) -> Tokenizer:
    return Tokenizer(tiny_en)


@pytest.fixture(scope="module")
def multilingual(base: Checkpoint) -> Tokenizer:
    return Tokenizer(base)


BYTES = Tokenizer(make_checkpoint())


# ------------------------------------------------------------------------------------------------ prompts


def test_english_only_prompt_names_no_language(english: Tokenizer) -> None:
    assert not english.is_multilingual
    assert english.languages == ("en",)
    assert english.language_tokens == {}
    assert english.prompt(None) == english.prompt("en") == (50_257, 50_362)
    assert (english.eot, english.no_speech, english.timestamp_begin) == (50_256, 50_361, 50_363)


def test_multilingual_prompt_names_language_and_task(multilingual: Tokenizer) -> None:
    assert multilingual.is_multilingual
    assert len(multilingual.languages) == 99
    assert multilingual.prompt("de") == (50_258, 50_261, 50_359, 50_363)
    assert multilingual.prompt("de", Task.TRANSLATE) == (50_258, 50_261, 50_358, 50_363)
    assert (multilingual.eot, multilingual.no_speech, multilingual.timestamp_begin) == (50_257, 50_362, 50_364)


def test_what_was_said_before_stands_in_front(english: Tokenizer) -> None:
    history = english.encode(" Mr. Quilter")
    prompt = english.prompt("en", history=history)
    assert prompt == (50_360, *history, 50_257, 50_362)
    assert prompt[n_before_sot(history)] == english.sot
    assert n_before_sot(()) == 0


def test_languages_are_sorted_by_code() -> None:
    assert BYTES.languages == ("de", "en", "haw", "zh")
    assert BYTES.prompt("zh") == (257, 259, 263, 267)


def test_every_language_has_a_name(multilingual: Tokenizer) -> None:
    names = language_names()
    assert names["de"] == "German"
    assert set(multilingual.languages) <= names.keys()


@pytest.mark.parametrize("missing", ["<|startoftranscript|>", "<|nospeech|>", "<|notimestamps|>"])
def test_a_vocabulary_that_is_not_whispers_is_refused(missing: str) -> None:
    with pytest.raises(ModelLoadError, match="not Whisper's"):
        Tokenizer(make_checkpoint([text for text in SPECIAL if text != missing]))


def test_a_token_that_is_no_bytes_is_refused(tiny_en: Checkpoint) -> None:
    content = json.loads(tiny_en.tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary["中"] = vocabulary.pop("zzle")
    content["model"]["merges"] = []
    with pytest.raises(ModelLoadError, match="not Whisper's"):
        Tokenizer(replace(tiny_en, tokenizer=tokenizers.Tokenizer.from_str(json.dumps(content))))


# ------------------------------------------------------------------------------------------------ text


@given(st.text())
def test_text_survives_the_way_to_tokens_and_back(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text


def test_a_prompt_cannot_smuggle_special_tokens_in(english: Tokenizer) -> None:
    text = " Mr.<|endoftext|><|startoftranscript|><|notimestamps|><|0.00|> Quilter"
    tokens = english.encode(text)
    assert all(token < english.eot for token in tokens)
    assert english.decode(tokens).startswith(" Mr.<|endoftext|>")


@pytest.mark.parametrize(
    "text", [" The cabbage juice, he said.", " Müller größer 50 €", "广州市房地产中介协会", " 👩‍🚀 ok"]
)
def test_real_vocabularies_decode_as_the_library_does(english: Tokenizer, tiny_en: Checkpoint, text: str) -> None:
    tokens = english.encode(text)
    assert english.decode(tokens) == tiny_en.tokenizer.decode(tokens) == text


@given(st.text(), st.data())
def test_half_a_character_is_left_off(text: str, data: st.DataObject) -> None:
    tokens = BYTES.encode(text)
    n_shown = data.draw(st.integers(0, len(tokens)))
    shown = BYTES.decode(tokens[:n_shown])
    assert text.startswith(shown)
    assert "\ufffd" not in shown or "\ufffd" in text
    assert n_shown - len(shown.encode()) < 4


@given(st.lists(st.integers(0, 267)), st.integers(0))
def test_text_of_a_prefix_is_a_prefix_of_the_text(tokens: list[int], cut: int) -> None:
    assert BYTES.decode(tokens).startswith(BYTES.decode(tokens[: cut % (len(tokens) + 1)]))


def test_special_tokens_have_no_text(english: Tokenizer) -> None:
    tokens = [*english.prompt("en"), *english.encode(" Hello"), english.timestamp_begin + 7, english.eot]
    assert english.decode(tokens) == " Hello"


@pytest.mark.parametrize(
    ("text", "language", "words"),
    [
        (" 그는 이리저리 피하면서 길 한 옆으로 걸어갔다.", "ko", 7),
        ("广州市房地产中介协会分析", "zh", 12),
        ("客観的実在の判断的知識が成立するのである。", "ja", 17),
    ],
)
def test_chinese_japanese_and_korean_come_out_as_whole_characters(
    multilingual: Tokenizer, text: str, language: str, words: int
) -> None:
    """Tokens of a real vocabulary, of which some hold a part of a character."""
    tokens = multilingual.encode(text)
    shown = [multilingual.decode(tokens[:n]) for n in range(len(tokens) + 1)]
    assert all(text.startswith(part) for part in shown) and shown[-1] == text
    assert len(set(shown)) < len(shown), "no character is cut: this text shows nothing"
    groups = multilingual.split_words(tokens, language)
    assert [multilingual.encode(multilingual.decode(group)) for group in groups] == groups
    assert len(groups) == words


# ------------------------------------------------------------------------------------------------ words


def words(tokenizer: Tokenizer, text: str, language: str | None) -> list[str]:
    return [tokenizer.decode(group) for group in tokenizer.split_words(tokenizer.encode(text), language)]


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        (" He said, stop. Now!", "en", [" He", " said,", " stop.", " Now!"]),
        (' Say "yes (or no)" twice', "en", [" Say", ' "yes', " (or", ' no)"', " twice"]),
        (" Don't pay $5.30 for 50% off...", "en", [" Don't", " pay", " $5.30", " for", " 50%", " off..."]),
        (" A mother-in-law - mine", "en", [" A", " mother-in-law", " - mine"]),
        (" Ein „Gruß“ von Müller", "de", [" Ein", " „Gruß“", " von", " Müller"]),
        (" hier » !", "fr", [" hier » !"]),
        (" नमस्ते दुनिया", "hi", [" नमस्ते", " दुनिया"]),
        ("广州，GPU模型「你好」。", "zh", ["广", "州，", "GPU", "模", "型", "「你", "好」。"]),
        ("ครับที่", "th", ["ค", "รั", "บ", "ที่"]),
        ("No language", None, ["No", " language"]),
        (" trailing ", "en", [" trailing "]),
        ("", "en", []),
    ],
)
def test_words_keep_their_space_and_punctuation(text: str, language: str | None, expected: list[str]) -> None:
    assert words(BYTES, text, language) == expected


def test_words_of_a_real_vocabulary(english: Tokenizer) -> None:
    text = ' And so, my fellow Americans: "ask not" what 1,000 countries can\'t do.'
    expected = [" And", " so,", " my", " fellow", " Americans:", ' "ask', ' not"', " what", " 1,000", " countries"]
    assert words(english, text, "en") == [*expected, " can't", " do."]


@given(
    st.lists(st.integers(0, 267)) | st.text(alphabet=string.printable + "«»„“中あครับ์é").map(BYTES.encode),
    st.sampled_from([None, "en", "zh", "th"]),
)
def test_words_hold_every_text_token_once_and_in_order(tokens: list[int], language: str | None) -> None:
    groups = BYTES.split_words(tokens, language)
    assert [token for group in groups for token in group] == [token for token in tokens if token < BYTES.eot]
    assert all(groups)


@given(st.text(), st.sampled_from([None, "en", "zh", "th"]))
def test_words_are_cut_only_between_characters(text: str, language: str | None) -> None:
    assert "".join(words(BYTES, text, language)) == text


def test_the_other_case_of_a_token_is_the_same_word(tiny_en: Checkpoint) -> None:
    tokenizer = Tokenizer(tiny_en)
    other_cases = tokenizer.other_cases()
    assert len(other_cases) == tokenizer.eot
    for one, other in ((" For", " for"), (" the", " The"), ("ed", "Ed")):
        (token,) = tokenizer.encode(one)
        assert tokenizer.decode([other_cases[token]]) == other
    for alone in (",", " 5", "'s"):
        (token,) = tokenizer.encode(alone)
        assert other_cases[token] == token or tokenizer.decode([other_cases[token]]).casefold() == alone
    for token, other in enumerate(other_cases):
        assert other_cases[other] == token
        assert tokenizer.decode([token]).casefold() == tokenizer.decode([other]).casefold()
