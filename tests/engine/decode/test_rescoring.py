"""Which other texts a text is weighed against."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from engine.config import Context
from engine.decode.rescoring import Branch, Scored, best_of, branches_of
from engine.decode.sampling import Sampler
from engine.decode.sequence import StepTokens
from engine.models.whisper.checkpoint import Checkpoint
from engine.models.whisper.tokenizer import Tokenizer
from engine.session.hotwords import hotwords_of
from engine.session.requests import Hypothesis, Request
from tests.engine.conftest import Spoken
from tests.engine.real_models import Transcriber, make_request, make_runner

TEXT = Scored((11, 12, 13, 14), (-0.1, -0.6, -0.1, -0.9, -0.1))


def others(*probabilities: float) -> list[tuple[int, float]]:
    return [(20 + place, math.log(p)) for place, p in enumerate(probabilities)]


def test_branches_leave_where_the_model_nearly_took_another_token_the_last_one_first() -> None:
    found = branches_of(TEXT, others(0.09, 0.3, 0.11, 0.35), 2)
    assert [branch.tokens for branch in found] == [[11, 12, 13, 23], [11, 21]]
    assert [branch.unseen for branch in found] == [[23], [21, 13, 14]]
    assert found[1].logprobs == [-0.1, pytest.approx(math.log(0.3))]


def test_a_token_that_is_unlikely_begins_no_branch() -> None:
    assert [branch.n_seen for branch in branches_of(TEXT, others(0.09, 0.3, 0.11, 0.05), 4)] == [2, 1]


def test_a_branch_finds_its_way_back_to_the_text() -> None:
    branch = Branch([11, 21], [-0.1, -1.0], 1, draft=(13, 14, 15, 16))
    branch.take(StepTokens((13, 15), (-0.1, -0.2), ended=False))  # 14 was left out
    assert branch.unseen == [15, 16] and branch.n_seen == 3
    branch.take(StepTokens((16,), (-0.1, -0.3), ended=True))
    assert branch.text == Scored((11, 21, 13, 15, 16), (-0.1, -1.0, -0.1, -0.2, -0.1, -0.3))


def test_a_branch_that_says_something_else_keeps_the_draft_for_later() -> None:
    branch = Branch([21], [-1.0], 0, draft=(12, 13))
    branch.take(StepTokens((30,), (-0.5,), ended=False))
    assert branch.unseen == [30, 12, 13]


def test_a_branch_takes_no_more_room_than_there_is() -> None:
    branch = Branch([11, 21], [-0.1, -1.0], 1, draft=(13, 14, 15, 16))
    assert branch.fits(5) and branch.unseen == [21, 13, 14]
    branch.take(StepTokens((30,), (-0.1,), ended=False))
    assert branch.fits(5) and branch.unseen == [30, 13]
    branch.take(StepTokens((13, 31), (-0.1, -0.1), ended=False))
    assert len(branch.tokens) == 5 and not branch.fits(5)
    assert not with_text((1,), -0.1).fits(9), "it has ended"


def with_text(tokens: tuple[int, ...], mean: float) -> Branch:
    text = Scored(tokens, (mean,) * (len(tokens) + 1))
    return Branch(list(tokens), list(text.logprobs), len(tokens), (), text)


def test_the_text_with_the_best_mean_is_taken_whatever_its_length() -> None:
    better, worse = with_text((1, 2, 3, 4, 5, 6), TEXT.mean + 0.1), with_text((1,), TEXT.mean - 0.1)
    assert best_of(TEXT, [worse, better]) is better.text
    assert best_of(TEXT, [worse]) is TEXT
    assert best_of(TEXT, [Branch([1], [-0.01], 0, ())]) is TEXT, "it has no end"


def test_a_loop_is_not_taken_though_the_model_finds_it_likely() -> None:
    assert best_of(TEXT, [with_text((1, 2) * 20, -0.01)]) is TEXT


def test_the_runner_up_is_another_word_not_the_same_in_another_case() -> None:
    choose = Sampler((0,), (), torch.device("cpu"), other_case=[0, 2, 1, 3, 4])
    scores = torch.tensor([[9.0, 3.0, 2.5, 2.0, -5.0]])
    tokens, _ = choose(scores, ())
    assert tokens.tolist() == [1]
    probability = math.exp(2.0) / sum(map(math.exp, (3.0, 2.5, 2.0, -5.0)))
    found, logprobs = choose.runner_ups(scores, tokens)
    assert found.tolist() == [3]
    assert logprobs.exp().item() == pytest.approx(probability, rel=1e-5)


# ----------------------------------------------------------------------------------------------- real model


@pytest.mark.parametrize("padded", [False, True])
def test_finals_become_likelier_and_everything_else_stays_as_it_is(
    tiny_en: Checkpoint, tokenizer: Tokenizer, spoken: Spoken, padded: bool
) -> None:
    greedy = Transcriber(make_runner(tiny_en, tokenizer, context=Context.TAIL, padded=padded))
    weighing = Transcriber(make_runner(tiny_en, tokenizer, context=Context.TAIL, padded=padded, n_branches=4))
    requests = [make_request(audio, wants_words=True) for audio in spoken.audio]
    before, after = greedy(requests), weighing(requests)
    assert all(a.avg_logprob >= b.avg_logprob - 1e-4 for a, b in zip(after, before, strict=True))
    changed = [n for n, (a, b) in enumerate(zip(after, before, strict=True)) if a.tokens != b.tokens]
    assert changed, "some text has a likelier one"
    for n in changed:
        assert_is_what_the_model_says(greedy, requests[n], after[n])
        assert "".join(word.text for word in after[n].words) == tokenizer.decode(after[n].tokens)
    quick = [replace(request, wants_words=False) for request in requests]
    assert [h.tokens for h in weighing(quick)] == [h.tokens for h in greedy(quick)]
    hotwords = hotwords_of(("Tizona",), tokenizer.encode)
    raised = [replace(request, hotwords=hotwords) for request in requests]
    assert [h.tokens for h in weighing(raised)] == [h.tokens for h in greedy(raised)]


def assert_is_what_the_model_says(greedy: Transcriber, request: Request, found: Hypothesis) -> None:
    """Forced to begin as the text does, the model goes on with the next token at nearly every place, as likely."""
    prefixes = [found.tokens[:n] for n in range(len(found.tokens))]
    forced = [greedy([replace(request, prefix=prefix, wants_words=False)])[0] for prefix in prefixes]
    agreeing = [n for n, one in enumerate(forced) if one.tokens[: n + 1] == found.tokens[: n + 1]]
    assert len(agreeing) >= len(prefixes) - 3
    for n in agreeing:
        assert found.logprobs[n] == pytest.approx(forced[n].logprobs[0], abs=5e-3)
