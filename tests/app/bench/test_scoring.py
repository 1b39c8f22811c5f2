"""Recordings are read from a manifest, and errors are counted as people who compare systems count them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from app.bench.clips import ClipError, read_manifest
from app.bench.scoring import Errors, Scorer, word_error_rate

HEADING = "file\tseconds\tlanguage\tkind\treference\twords\n"


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer()


def test_english_is_compared_in_words_without_case_punctuation_and_ways_of_writing(scorer: Scorer) -> None:
    assert scorer.count("HE WON'T PAY TWENTY POUNDS", "He will not pay 20 pounds.") == Errors(5)
    assert scorer.count("the cat sat here today", "the hat here today now") == Errors(5, 1, 1, 1)


def test_chinese_and_japanese_are_compared_in_characters(scorer: Scorer) -> None:
    assert scorer.count("客観的実在の。", "客観 実在だ", "ja") == Errors(6, 1, 1, 0)
    assert scorer.count("广州市房地产", "广州市房产", "zh") == Errors(6, 0, 1, 0)


def test_other_languages_keep_their_letters_and_are_compared_in_words(scorer: Scorer) -> None:
    assert scorer.count("Größe, über alles!", "größe uber alles", "de") == Errors(3, 1, 0, 0)


def test_where_nobody_speaks_every_word_is_an_insertion_also_one_in_brackets(scorer: Scorer) -> None:
    errors = scorer.count("", "[Music] Thank you.", None)
    assert errors == Errors(0, insertions=3)
    assert math.isnan(errors.rate)


def test_errors_are_pooled_over_words_not_over_clips() -> None:
    assert word_error_rate(["one", "a b c d e f g h i"], ["two", "a b c d e f g h i"]) == pytest.approx(0.1)


def test_a_manifest_gives_its_lines_with_paths_beside_it(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.tsv"
    manifest.write_text(
        HEADING + 'a.flac\t1.0\ten\tutterance\tSay "hello".\ta.words.tsv\nb.flac\t1.0\t\tnonspeech\t\t\n',
        encoding="utf-8",
    )
    spoken, noise = read_manifest(manifest)
    assert (spoken.path, spoken.words) == (tmp_path / "a.flac", tmp_path / "a.words.tsv")
    assert spoken.reference == 'Say "hello".'
    assert (noise.language, noise.words, noise.reference) == (None, None, "")


def test_a_manifest_without_a_column_is_refused_by_its_name(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.tsv"
    manifest.write_text("file\tlanguage\tkind\n", encoding="utf-8")
    with pytest.raises(ClipError, match="no column reference"):
        read_manifest(manifest)
    with pytest.raises(ClipError, match="no manifest"):
        read_manifest(tmp_path / "other.tsv")
