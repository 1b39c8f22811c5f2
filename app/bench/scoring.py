"""How well a transcript agrees with what was said: errors by word, or by character where words are not set apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.bench.clips import ClipError

# Languages written without spaces between words; openai/whisper's evaluation counts characters in these.
CHARACTER_LANGUAGES = frozenset({"zh", "yue", "ja", "th", "lo", "my"})


@dataclass(frozen=True, slots=True)
class Errors:
    """Of one transcript or of many; what is counted is words or characters.

    Attributes:
        n_reference: how many were said.
    """

    n_reference: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def n(self) -> int:
        """All of them."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per word or character said; nan where nothing was said."""
        return self.n / self.n_reference if self.n_reference else float("nan")

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            self.n_reference + other.n_reference,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )


class Scorer:
    """Counts errors after Whisper's normalisers: English (spelling, numbers, punctuation, case) or of any language.

    Raises:
        ClipError: the packages that count errors are not installed.
    """

    def __init__(self) -> None:
        try:
            import jiwer
            from whisper_normalizer.basic import BasicTextNormalizer
            from whisper_normalizer.english import EnglishTextNormalizer
        except ImportError as missing:
            raise ClipError(f"{missing.name} is not installed. Run: pip install 'tickscribe[bench]'") from missing
        self._align = jiwer.process_words
        self._english = EnglishTextNormalizer()
        self._words = BasicTextNormalizer()
        self._characters = BasicTextNormalizer(split_letters=True)

    def split(self, text: str, language: str | None) -> list[str]:
        """Split a text into the words, or characters, that are compared; None is a recording in which nobody speaks."""
        if language is None:
            return text.split()  # as it is: the normalisers drop what is bracketed, but here nothing should be
        if language == "en":
            normalised = self._english(text)
        elif language in CHARACTER_LANGUAGES:
            normalised = self._characters(text)
        else:
            normalised = self._words(text)
        return str(normalised).split()

    def count(self, reference: str, text: str, language: str | None = "en") -> Errors:
        """Count by the alignment with the fewest errors; against an empty reference every word is an insertion."""
        said, heard = self.split(reference, language), self.split(text, language)
        aligned = self._align(" ".join(said), " ".join(heard))
        return Errors(len(said), aligned.substitutions, aligned.deletions, aligned.insertions)


def word_error_rate(references: Sequence[str], texts: Sequence[str]) -> float:
    """Pooled word error rate of English texts.

    Raises:
        ClipError: the packages that count errors are not installed.
    """
    scorer = Scorer()
    errors = (scorer.count(reference, text) for reference, text in zip(references, texts, strict=True))
    return sum(errors, Errors()).rate
