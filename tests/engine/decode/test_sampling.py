"""Rules on scores and the check of drafts."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.decode.sampling import Sampler, bonuses_of, verify
from engine.session.hotwords import Hotwords

N_VOCAB = 12
CPU = torch.device("cpu")
END = 9

tokens = st.sets(st.integers(0, N_VOCAB - 1), max_size=6).map(lambda s: tuple(sorted(s)))
scores = st.lists(
    st.lists(st.floats(-9, 9, width=32), min_size=N_VOCAB, max_size=N_VOCAB, unique=True), min_size=1, max_size=5
)


@given(suppress=tokens, begin=tokens, rows=scores, data=st.data())
def test_the_best_allowed_token_is_chosen_row_by_row(
    suppress: tuple[int, ...], begin: tuple[int, ...], rows: list[list[float]], data: st.DataObject
) -> None:
    if len({*suppress, *begin}) == N_VOCAB:
        begin = ()
    is_first = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    choose = Sampler(suppress, begin, CPU)
    chosen, logprobs = choose(torch.tensor(rows), [i for i, first in enumerate(is_first) if first])
    for row, first, token, logprob in zip(rows, is_first, chosen.tolist(), logprobs.tolist(), strict=True):
        allowed = [t for t in range(N_VOCAB) if t not in suppress and not (first and t in begin)]
        assert token == max(allowed, key=lambda t: row[t])
        expected = torch.tensor([row[t] for t in allowed]).log_softmax(0)[allowed.index(token)]
        torch.testing.assert_close(torch.tensor(logprob), expected, atol=1e-5, rtol=1e-5)


def test_the_beginning_has_more_rules() -> None:
    choose = Sampler((3,), (END,), CPU)
    row = torch.arange(N_VOCAB).float()
    row[END] = 100
    chosen, _ = choose(torch.stack([row, row]), [0])
    assert chosen.tolist() == [11, END]


def test_a_bonus_decides_the_choice_but_not_how_probable_it_is_called() -> None:
    choose = Sampler((3,), (), CPU)
    scores = torch.arange(N_VOCAB).float().repeat(3, 1)
    hotwords = Hotwords([[10, 4]])
    bonuses = bonuses_of([(None, []), (hotwords, []), (hotwords, [10])], CPU)
    chosen, logprobs = choose(scores, (), bonuses)
    assert chosen.tolist() == [11, 10, 10], "4 lies too far behind even for a word that has begun"
    allowed = scores[0].clone()
    allowed[3] = -torch.inf
    torch.testing.assert_close(logprobs, allowed.log_softmax(0)[[11, 10, 10]])


def test_a_word_is_as_probable_as_it_is_in_both_cases_together() -> None:
    other_case = [*range(N_VOCAB)]
    other_case[11], other_case[10], other_case[4], other_case[3] = 10, 11, 3, 4
    choose = Sampler((3,), (), CPU, other_case)
    scores = torch.arange(N_VOCAB).float().repeat(3, 1)
    scores[1, 4] = scores[2, 7] = 20
    probabilities = scores.index_fill(1, torch.tensor([3]), -torch.inf).softmax(1)
    chosen, logprobs = choose(scores, ())
    assert chosen.tolist() == [11, 4, 7]
    both = [probabilities[0, 11] + probabilities[0, 10], probabilities[1, 4], probabilities[2, 7]]
    torch.testing.assert_close(logprobs.exp(), torch.stack(both), msg="what is suppressed adds nothing")


def test_a_bonus_never_brings_a_suppressed_token_back() -> None:
    choose = Sampler((11,), (), CPU)
    scores = torch.arange(N_VOCAB).float()[None]
    chosen, _ = choose(scores, (), bonuses_of([(Hotwords([[11]]), [])], CPU))
    assert chosen.tolist() == [10]


def test_without_hotwords_there_is_nothing_to_add() -> None:
    assert bonuses_of([(None, [1]), (None, [])], CPU) is None


def step_by_step(model: dict[tuple[int, ...], int], n_most: int) -> list[int]:
    """Plain greedy decoding: each choice depends on all before it."""
    said: list[int] = []
    while len(said) < n_most and (not said or said[-1] != END):
        said.append(model.get(tuple(said), END))
    return said


@given(
    text=st.lists(st.integers(0, 3), max_size=6),
    draft=st.lists(st.integers(0, 3), max_size=6).map(tuple),
    detours=st.dictionaries(st.lists(st.integers(0, 3), max_size=4).map(tuple), st.integers(0, 3)),
)
def test_a_draft_gives_what_plain_greedy_decoding_says(
    text: list[int], draft: tuple[int, ...], detours: dict[tuple[int, ...], int]
) -> None:
    model = detours | {tuple(text[:n]): token for n, token in enumerate(text)} | {tuple(text): END}
    choices = [model.get(draft[:n], END) for n in range(len(draft) + 1)]
    gain = verify(draft, choices, [-float(n) for n in range(len(choices))], END)
    said = [*gain.tokens, *([END] if gain.ended else [])]
    assert said == step_by_step(model, len(said))
    assert len(gain.logprobs) == len(said), "each choice has its probability, the end's too"
    assert list(gain.logprobs) == [-float(n) for n in range(len(said))]


def test_a_right_draft_gains_one_token_more() -> None:
    gain = verify((1, 2), [1, 2, 3], [-0.1, -0.2, -0.3], END)
    assert (gain.tokens, gain.ended) == ((1, 2, 3), False)


def test_a_wrong_draft_gains_the_right_token() -> None:
    gain = verify((1, 2), [5, 7, 8], [-0.1, -0.2, -0.3], END)
    assert (gain.tokens, gain.logprobs, gain.ended) == ((5,), (-0.1,), False)


def test_the_end_of_text_is_no_text() -> None:
    gain = verify((1, 2), [1, END, 8], [-0.1, -0.2, -0.3], END)
    assert (gain.tokens, gain.logprobs, gain.ended) == ((1,), (-0.1, -0.2), True)
