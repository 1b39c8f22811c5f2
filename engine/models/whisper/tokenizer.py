"""Whisper's vocabulary: prompts in, text and words out.

Used by the runner (prompts, special tokens) and by the session (text of a hypothesis). Knows nothing of audio and
tensors. Every id is looked up by the token's text, because English-only and multilingual vocabularies number them
differently.

Whisper's tokens are pieces of UTF-8, so a token may end in the middle of a character. Two laws follow:

    `decode` never shows half a character, and the text of a prefix is a prefix of the text;
    the groups of `split_words`, joined, are the text tokens given.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from engine.errors import ModelLoadError
from engine.models.whisper.checkpoint import Checkpoint
from engine.types import Task

MULTILINGUAL_VOCABULARY = 51_865  # rows of the smallest multilingual embedding; English-only ones have one less

LANGUAGES_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})

_LANGUAGE_TOKEN = re.compile(r"<\|([a-z]{2,3})\|>")

_OPENING = frozenset("\"'“‘«„¿¡([{-–—「『（《〈【")


_Group = tuple[list[int], str]  # tokens and their text


class Tokenizer:
    """Token ids of one checkpoint.

    Attributes:
        sot: start of transcript, first token of every prompt.
        start_of_prev: begins what was said before, in front of `sot`.
        eot: end of text; every smaller id is text, every larger one is special.
        transcribe, translate: task tokens.
        no_speech: its probability right after `sot` is Whisper's own voice detection.
        no_timestamps: asks for text without time tokens.
        timestamp_begin: the token of 0.00 s; later ones follow by 20 ms.
        is_multilingual: whether prompts name language and task.
        language_tokens: code to id, sorted by code; empty in English-only models.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._tokenizer = checkpoint.tokenizer
        self._tokenizer.encode_special_tokens = True  # as the characters that they are written with
        self.sot = self._special("<|startoftranscript|>")
        self.start_of_prev = self._special("<|startofprev|>")
        self.eot = self._special("<|endoftext|>")
        self.transcribe = self._special("<|transcribe|>")
        self.translate = self._special("<|translate|>")
        self.no_speech = self._special("<|nospeech|>", "<|nocaptions|>")
        self.no_timestamps = self._special("<|notimestamps|>")
        # Files of English-only models do not name the time tokens, which follow this one in all models.
        self.timestamp_begin = self.no_timestamps + 1
        self.is_multilingual = checkpoint.dimensions.n_vocab >= MULTILINGUAL_VOCABULARY
        self.language_tokens = self._find_languages() if self.is_multilingual else {}
        self._bytes = self._bytes_of_text_tokens()

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that the model writes, sorted."""
        return tuple(self.language_tokens) or ("en",)

    def prompt(
        self, language: str | None, task: Task = Task.TRANSCRIBE, history: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Tokens that the decoder is given before the text.

        Args:
            language: one of `languages`; only English-only models take None.
            task: English-only models know only to transcribe.
            history: text tokens said before, at most session/history.py's MAX_HISTORY_TOKENS.
        """
        before = (self.start_of_prev, *history) if history else ()
        return before + self._task_prompt(language, task)

    def _task_prompt(self, language: str | None, task: Task) -> tuple[int, ...]:
        if not self.is_multilingual:
            assert language in (None, "en"), f"an English-only model was asked for {language!r}"
            assert task is Task.TRANSCRIBE, "an English-only model was asked to translate"
            return (self.sot, self.no_timestamps)
        assert language in self.language_tokens, f"the model has no language {language!r}"
        task_token = self.transcribe if task is Task.TRANSCRIBE else self.translate
        return (self.sot, self.language_tokens[language], task_token, self.no_timestamps)

    def encode(self, text: str) -> list[int]:
        """Text tokens of `text`, never special ones; a word inside a sentence needs its leading space."""
        return [token for token in self._tokenizer.encode(text, add_special_tokens=False).ids if token < self.eot]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of the text tokens; characters not complete yet are left off."""
        utf8 = b"".join(self._bytes[token] for token in tokens if token < self.eot)
        return codecs.getincrementaldecoder("utf-8")("replace").decode(utf8)

    def other_cases(self) -> list[int]:
        """Per text token the one that is the same but for the case of its first letter; itself where there is none."""
        token_of = {piece: token for token, piece in enumerate(self._bytes)}
        return [token_of.get(_other_case(piece), token) for token, piece in enumerate(self._bytes)]

    def split_words(self, tokens: Sequence[int], language: str | None) -> list[list[int]]:
        """Group text tokens into words, each with its leading space and its punctuation.

        Args:
            tokens: special ones are dropped.
            language: tells whether words are set apart by spaces; where they are not, a word is the least group of
                whole characters, but Latin letters and digits stay together. None: by spaces.
        """
        by_spaces = language not in LANGUAGES_WITHOUT_SPACES
        words = _merge(self._whole_characters(tokens), _belongs_by_space if by_spaces else _belongs_by_script)
        words = _merge(words, partial(_belongs_by_punctuation, by_spaces=by_spaces))
        return [group for group, _ in words]

    # ---------------------------------------------------------------------------------------------- private

    def _special(self, *texts: str) -> int:
        for text in texts:
            token: int | None = self._tokenizer.token_to_id(text)
            if token is not None:
                return token
        raise ModelLoadError(f"The tokenizer has no token {texts[0]}: it is not Whisper's. Download the model again.")

    def _find_languages(self) -> dict[str, int]:
        """Language tokens lie between the start of transcript and the tasks."""
        found = {}
        for token in range(self.sot + 1, min(self.transcribe, self.translate)):
            if match := _LANGUAGE_TOKEN.fullmatch(self._tokenizer.id_to_token(token) or ""):
                found[match[1]] = token
        return dict(sorted(found.items()))

    def _bytes_of_text_tokens(self) -> list[bytes]:
        """UTF-8 of every text token, by id; the file shows each byte as a printable character."""
        byte_of = _bytes_by_character()
        pieces = []
        for token in range(self.eot):
            characters = self._tokenizer.id_to_token(token)
            if characters is None or not byte_of.keys() >= set(characters):
                raise ModelLoadError(
                    f"Token {token} of the tokenizer is {characters!r}: it is not Whisper's. Download the model again."
                )
            pieces.append(bytes(byte_of[character] for character in characters))
        return pieces

    def _whole_characters(self, tokens: Sequence[int]) -> list[_Group]:
        """The least groups that end where a character ends; an unfinished last one joins its neighbour."""
        groups: list[_Group] = []
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        group: list[int] = []
        text = ""
        for token in tokens:
            if token >= self.eot:
                continue
            group.append(token)
            text += decoder.decode(self._bytes[token])
            if not decoder.getstate()[0]:
                groups.append((group, text))
                group, text = [], ""
        if group and groups:
            groups[-1] = (groups[-1][0] + group, groups[-1][1] + text)
        elif group:
            groups.append((group, text))
        return groups


def n_before_sot(history: Sequence[int]) -> int:
    """Return how many tokens of a prompt with this history come before `sot`."""
    return len(history) + 1 if history else 0


def language_names() -> dict[str, str]:
    """English name of every language that Whisper knows, by code."""
    # Imported here because it takes a second, and only the page and the command line show names.
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    return {code: name.title() for code, name in LANGUAGES.items()}


def _other_case(utf8: bytes) -> bytes:
    """The same text with its first letter in the other case, if it is whole characters and begins with a letter."""
    try:
        text = utf8.decode()
    except UnicodeDecodeError:
        return utf8
    word = text.lstrip()
    other = word[:1].swapcase()
    if other.swapcase() != word[:1]:  # such as the Turkish i without a dot
        return utf8
    return (text[: len(text) - len(word)] + other + word[1:]).encode()


def _merge(groups: Iterable[_Group], belongs: Callable[[str, str], bool]) -> list[_Group]:
    """Join each group to the one before it where their texts belong together."""
    merged: list[_Group] = []
    for tokens, text in groups:
        if merged and belongs(merged[-1][1], text):
            before, word = merged[-1]
            merged[-1] = (before + tokens, word + text)
        else:
            merged.append((tokens, text))
    return merged


def _belongs_by_space(_word: str, text: str) -> bool:
    return not text[:1].isspace()


def _belongs_by_script(word: str, text: str) -> bool:
    """Marks belong to the letter before them (vowel signs, tones), Latin letters and digits to each other."""
    return unicodedata.category(text[0]).startswith("M") or (_is_latin(word[-1]) and _is_latin(text[0]))


def _belongs_by_punctuation(word: str, text: str, *, by_spaces: bool) -> bool:
    if _is_opening(word, by_spaces=by_spaces) or not word.strip() or not text.strip():
        return True
    return _is_punctuation(text) and not _is_opening(text, by_spaces=by_spaces)


def _is_punctuation(text: str) -> bool:
    visible = text.strip()
    return visible != "" and all(unicodedata.category(character).startswith("P") for character in visible)


def _is_opening(text: str, *, by_spaces: bool) -> bool:
    """Whether all of `text` is punctuation that stands before its word, such as a bracket.

    Quotes and dashes may stand on either side: the space before them tells.
    """
    visible = text.strip()
    if not visible or any(character not in _OPENING for character in visible):
        return False
    unambiguous = all(unicodedata.category(character) in ("Ps", "Pi") for character in visible)
    return text[0].isspace() or (unambiguous and not by_spaces)


def _is_latin(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _bytes_by_character() -> dict[str, int]:
    """GPT-2's printable stand-ins: printable Latin-1 bytes stand for themselves, the others follow from U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
