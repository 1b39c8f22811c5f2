"""Which words of an open utterance are stable: LocalAgreement, of which doubtful words need more.

Two successive hypotheses must agree on a word before it is committed (Liu et al. 2020; used for Whisper by Macháček et
al. 2023, arXiv:2307.14743). If the model itself is not certain of the word, they must go on to agree while so much
audio comes in: how often a word is heard anew depends on how busy the server is, what was said behind it does not. They
agree where the words are the same but for case and punctuation, so that a comma that comes and goes holds up nothing;
the form that came first is kept. Pure: works on words as tuples of token ids. One `Agreement` belongs to one utterance.

Law: `committed` only ever grows; the decoder is made to start with it, so no later hypothesis can disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

TokenWord = tuple[int, ...]  # the tokens of one word

_AROUND = " .,!?;:…\"'“”‘’„«»()[]{}¿¡。，、！？；：「」『』（）"


def is_sign(text: str) -> bool:
    """Whether a text is nothing but punctuation that may come and go around a word."""
    return text.strip() != "" and text.strip(_AROUND) == ""


def same_word(text: str) -> str:
    """Return what two forms of a word have in common: everything but case and the punctuation around it.

    Signs that change a number, such as minus and per cent, belong to the word.
    """
    return text.strip(_AROUND).casefold() or text.strip()


class Agreement:
    """The commit rule of one utterance: call `observe` with each new hypothesis."""

    def __init__(
        self,
        guess: Sequence[TokenWord] = (),
        heard_at: int = 0,
        *,
        committed: Sequence[TokenWord] = (),
        stable_after: int = 0,
        key: Callable[[TokenWord], Hashable] = lambda word: word,
    ) -> None:
        """Begin an utterance.

        Args:
            guess: what it is thought to go on with behind the committed words; counts as the first hearing.
            heard_at: end of the window in which that was heard, in samples.
            committed: what it is known to begin with.
            stable_after: samples for which hypotheses must agree on a word that is not certain; two of them must in
                any case.
            key: words with equal keys agree.
        """
        self.committed: list[TokenWord] = list(committed)
        self.tentative: list[TokenWord] = list(guess)
        self._since = [heard_at] * len(self.tentative)  # when each tentative word was heard first
        self._stable_after = stable_after
        self._key = key

    @property
    def committed_tokens(self) -> tuple[int, ...]:
        """Committed words as one run of tokens: what the decoder is made to start with."""
        return flatten(self.committed)

    @property
    def tentative_tokens(self) -> tuple[int, ...]:
        """The rest of the newest hypothesis: a good guess at what the next one will say."""
        return flatten(self.tentative)

    def append_sign(self, sign: TokenWord) -> None:
        """Add punctuation that follows the committed words to the last of them; there must be one."""
        self.committed[-1] += sign

    def ages(self, at: int) -> list[int]:
        """Return for how many samples hypotheses have agreed on each tentative word, at sample `at`."""
        return [at - since for since in self._since]

    def observe(
        self, fresh: Sequence[TokenWord], at: int, certain: Sequence[bool] = (), *, commits: bool = True
    ) -> list[TokenWord]:
        """Take what a hypothesis of the grown window says after the committed words; commit what it repeats.

        The last word of a hypothesis is never committed: its audio may be cut in the middle.

        Args:
            fresh: words behind the committed ones.
            at: end of the window, in samples.
            certain: for each of them whether two hearings are enough; those that are missing are not.
            commits: False only compares.

        Returns:
            `fresh`, with the words that were heard before in the form that they had then.
        """
        n_agreed = n_common(self.tentative[:-1], fresh[:-1], self._key)
        settled = [*self.tentative[:n_agreed], *fresh[n_agreed:]]
        self._since = [*self._since[:n_agreed], *[at] * (len(fresh) - n_agreed)]
        n_committed = self._n_stable(n_agreed, at, certain) if commits else 0
        self.committed += settled[:n_committed]
        self.tentative = settled[n_committed:]
        del self._since[:n_committed]
        return settled

    def _n_stable(self, n_agreed: int, at: int, certain: Sequence[bool]) -> int:
        """Return how many of the leading words that agree are certain, or did so for long enough."""
        for n, age in enumerate(self.ages(at)[:n_agreed]):
            if age < self._stable_after and not (n < len(certain) and certain[n]):
                return n
        return n_agreed


def n_common(left: Sequence[TokenWord], right: Sequence[TokenWord], key: Callable[[TokenWord], Hashable]) -> int:
    """Return how many leading words agree: those with equal keys do."""
    n = 0
    for a, b in zip(left, right, strict=False):
        if a != b and key(a) != key(b):
            break
        n += 1
    return n


def flatten(words: Sequence[TokenWord]) -> tuple[int, ...]:
    """Return the tokens of `words` as one run."""
    return tuple(token for word in words for token in word)
