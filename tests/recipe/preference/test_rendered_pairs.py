"""Pairs as tokens: what the model is shown, which target carries weight, what does not fit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from mint.errors import InvalidRequest
from recipe.preference.objective import LengthModel
from recipe.preference.readouts import SequenceLogprob, Verdict, VerdictAndLikelihood
from recipe.preference.rendered_pairs import PairBatch, render_pairs
from recipe.preference.types import PreferencePair
from renderers import Renderer, get_renderer

QUESTION = {"role": "user", "content": "How do I water a fern?"}
REPLY = {"role": "assistant", "content": "Twice a week, at the roots."}


def make_pair(reply: str = "Twice a week, at the roots.", origin: str | None = None) -> PreferencePair:
    return PreferencePair(
        [QUESTION], {**REPLY, "content": reply}, {"role": "assistant", "content": "Dunno."}, None, origin
    )


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> Renderer:
    return get_renderer("qwen3_disable_thinking", tokenizer)


def test_verdict_shows_conversation_question_and_the_opening_of_an_answer(renderer: Renderer) -> None:
    rendered = Verdict(judge_question="Good?").render([QUESTION, REPLY], renderer)
    assert renderer.tokenizer.decode(rendered.tokens) == (
        "<|im_start|>user\nHow do I water a fern?<|im_end|>\n"
        "<|im_start|>assistant\nTwice a week, at the roots.<|im_end|>\n"
        "<|im_start|>user\nGood?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\nYes"
    )
    assert rendered.num_scored == 1


def test_verdict_is_asked_without_reasoning_where_replies_begin_with_it(tokenizer: Any, renderer: Renderer) -> None:
    thinking = get_renderer("qwen3", tokenizer)
    assert Verdict().render([QUESTION, REPLY], thinking).tokens == Verdict().render([QUESTION, REPLY], renderer).tokens


def test_the_affirmative_token_is_the_only_weighted_target(renderer: Renderer) -> None:
    datum = Verdict().render([QUESTION, REPLY], renderer).to_datum()
    targets_T = datum.loss_fn_inputs["target_tokens"].to_numpy()
    weights_T = datum.loss_fn_inputs["weights"].to_numpy()
    yes = renderer.tokenizer.encode("Yes", add_special_tokens=False)
    assert targets_T[np.flatnonzero(weights_T)].tolist() == yes
    assert weights_T[-1] == 1.0
    assert datum.model_input.length == len(targets_T) == len(weights_T)
    assert datum.model_input.to_ints()[1:] == targets_T[:-1].tolist()


def test_sequence_logprob_weighs_the_reply_and_its_end(renderer: Renderer) -> None:
    rendered = SequenceLogprob().render([QUESTION, REPLY], renderer)
    weighted = [token for token, weight in zip(rendered.tokens, rendered.weights, strict=True) if weight]
    assert renderer.tokenizer.decode(weighted) == "Twice a week, at the roots.<|im_end|>"
    last = renderer.tokenizer.decode(rendered.tokens[-rendered.num_scored :])
    assert last == "Twice a week, at the roots.<|im_end|>\n"


@pytest.mark.parametrize("renderer_name", ["qwen3_disable_thinking", "qwen3", "qwen3_instruct", "role_colon"])
def test_verdict_and_likelihood_weighs_the_reply_its_end_and_the_verdict(tokenizer: Any, renderer_name: str) -> None:
    renderer = get_renderer(renderer_name, tokenizer)
    earlier = [{"role": "system", "content": "Be brief."}, QUESTION, {"role": "assistant", "content": "Why?"}]
    rendered = VerdictAndLikelihood().render([*earlier, QUESTION, REPLY], renderer)
    assert rendered.tokens == Verdict().render([*earlier, QUESTION, REPLY], renderer).tokens
    weighted = renderer.tokenizer.decode(
        [token for token, weight in zip(rendered.tokens, rendered.weights, strict=True) if weight]
    )
    end = "\n\nUser:" if renderer_name == "role_colon" else "<|im_end|>"
    assert weighted.strip() == f"Twice a week, at the roots.{end}Yes"


def test_an_affirmative_of_several_tokens_is_refused(renderer: Renderer) -> None:
    with pytest.raises(InvalidRequest, match=r"affirmative='Absolutely yes' is \d+ tokens in this model's vocabulary"):
        Verdict(affirmative="Absolutely yes").render([QUESTION, REPLY], renderer)


@pytest.mark.parametrize("readout", [Verdict(), SequenceLogprob()])
def test_a_conversation_without_a_reply_is_refused(readout: Verdict | SequenceLogprob, renderer: Renderer) -> None:
    with pytest.raises(
        InvalidRequest, match="the conversation ends with 'user': a reply to score must be an assistant"
    ):
        readout.render([QUESTION], renderer)


def test_a_pair_that_does_not_fit_is_refused_by_its_origin(renderer: Renderer) -> None:
    pairs = [make_pair(), make_pair("word " * 100, origin="pairs.jsonl, line 7")]
    with pytest.raises(InvalidRequest) as caught:
        render_pairs(pairs, Verdict(), renderer, max_length=80)
    assert str(caught.value).startswith("pairs.jsonl, line 7: a reply has 1")
    assert "more than the limit of 80" in str(caught.value)
    assert "on_too_long='drop'" in str(caught.value)


def test_dropping_leaves_out_both_replies_and_counts_the_pair(renderer: Renderer) -> None:
    pairs = [make_pair("word " * 100), make_pair()]
    rendered = render_pairs(pairs, Verdict(), renderer, max_length=80, on_too_long="drop")
    assert rendered.num_dropped == 1
    assert [(pair.pair_id, pair.pair) for pair in rendered.pairs] == [(1, pairs[1])]


def test_nothing_left_after_dropping_is_refused(renderer: Renderer) -> None:
    with pytest.raises(InvalidRequest, match="all 1 pairs are longer than 10 tokens, so none is left"):
        render_pairs([make_pair()], Verdict(), renderer, max_length=10, on_too_long="drop")


def test_a_reply_of_exactly_the_limit_fits(renderer: Renderer) -> None:
    length = len(Verdict().render([QUESTION, REPLY], renderer).tokens)
    assert len(render_pairs([make_pair()], Verdict(), renderer, max_length=length).pairs) == 1
    with pytest.raises(InvalidRequest):
        render_pairs([make_pair()], Verdict(), renderer, max_length=length - 1)


def test_slots_decide_which_datum_is_which_not_position(renderer: Renderer) -> None:
    pairs = render_pairs([make_pair("One."), make_pair("Two.")], Verdict(), renderer).pairs
    batch = PairBatch.of(pairs)
    logprobs_D = [torch.full((datum.model_input.length,), -0.1 * (i + 1)) for i, datum in enumerate(batch.datums_D)]
    chosen_N, rejected_N = batch.rewards(Verdict(), logprobs_D)

    order = [3, 0, 2, 1]  # position in the mixed batch -> position in the plain one
    place = {old: new for new, old in enumerate(order)}
    mixed = PairBatch(
        [batch.datums_D[i] for i in order],
        [batch.replies_D[i] for i in order],
        [type(slots)(slots.pair_id, place[slots.i_chosen], place[slots.i_rejected]) for slots in batch.slots_N],
    )
    mixed_chosen_N, mixed_rejected_N = mixed.rewards(Verdict(), [logprobs_D[i] for i in order])
    assert torch.equal(chosen_N, mixed_chosen_N) and torch.equal(rejected_N, mixed_rejected_N)
    assert chosen_N[0] != rejected_N[0]
    assert [slots.pair_id for slots in batch.slots_N] == [0, 1]


@pytest.mark.parametrize("readout", [Verdict(), SequenceLogprob()])
def test_the_objective_is_told_strengths_ties_and_the_length_of_replies(
    readout: Verdict | SequenceLogprob, renderer: Renderer
) -> None:
    strong = dataclasses.replace(make_pair("word " * 9), strength=2.5)
    pairs = render_pairs([strong, dataclasses.replace(strong, strength=1.0, is_tie=True)], readout, renderer).pairs
    facts = PairBatch.of(pairs).facts(LengthModel(sign=0.5, slope=0.1))
    assert facts.strengths_N.tolist() == [2.5, 1.0]
    assert facts.is_tie_N.tolist() == [False, True]
    num_chosen, num_rejected = (
        len(renderer.tokenizer.encode(str(reply["content"]))) for reply in (strong.chosen, strong.rejected)
    )
    assert facts.length_log_odds_N.tolist() == pytest.approx([0.5 + 0.1 * (num_chosen - num_rejected)] * 2)
    assert num_chosen > num_rejected and pairs[0].length_difference == num_chosen - num_rejected
