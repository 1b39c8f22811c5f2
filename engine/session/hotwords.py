"""Words that a session expects: their tokens are raised while they are decoded.

A hotword is a path of tokens. While the end of the text so far is the beginning of such a path, the path's next token
gets a bonus on its score, and the first token of every path gets a smaller one at any time, since a name that the model
does not know seldom wins its first token by itself. The bonus depends on nothing but the tokens before, so a draft that
is verified under it is what plain decoding under it would have said.

Pure: integers only. Made once per session, called once per scored token of rows that have hotwords.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MAX_HOTWORDS = 100
MAX_HOTWORD_LENGTH = 60  # characters

_FIRST_BONUS = 3.0  # nats
_NEXT_BONUS = 6.0


@dataclass(slots=True)
class _Node:
    """Where some paths have got to."""

    following: dict[int, _Node] = field(default_factory=dict)


class Hotwords:
    """All paths of one session as a trie."""

    def __init__(self, starting: Sequence[Sequence[int]], inside: Sequence[Sequence[int]] = ()) -> None:
        """Build the trie.

        Args:
            starting: token paths whose first token is raised too.
            inside: paths that are raised only once they have begun by themselves.
        """
        self._root = _Node()
        self._starts = frozenset(path[0] for path in starting)
        self._depth = 0
        for path in (*starting, *inside):
            node = self._root
            for token in path:
                node = node.following.setdefault(token, _Node())
            self._depth = max(self._depth, len(path))

    def bonuses(self, tokens: Sequence[int]) -> dict[int, float]:
        """Return what is added to the score of which token after the text `tokens`."""
        bonuses = dict.fromkeys(self._starts, _FIRST_BONUS)
        for length in range(1, min(self._depth, len(tokens) + 1)):
            node = self._follow(tokens[-length:])
            if node is not None:
                bonuses |= dict.fromkeys(node.following, _NEXT_BONUS)
        return bonuses

    def _follow(self, tokens: Sequence[int]) -> _Node | None:
        node: _Node | None = self._root
        for token in tokens:
            if node is None:
                return None
            node = node.following.get(token)
        return node


def hotwords_of(words: Sequence[str], encode: Callable[[str], Sequence[int]]) -> Hotwords | None:
    """Make the trie of a session's words; None without any.

    A word is expected behind a space. Without one, as behind a hyphen, only its continuation is raised, unless its
    script is one that knows no capitals: Chinese, Japanese, Thai and others may write it behind any character.
    """
    starting: list[Sequence[int]] = []
    inside: list[Sequence[int]] = []
    for word in (word.strip() for word in words):
        (starting if unicodedata.category(word[0]) == "Lo" else inside).append(encode(word))
        starting.append(encode(f" {word}"))
    return Hotwords(starting, inside) if starting else None
