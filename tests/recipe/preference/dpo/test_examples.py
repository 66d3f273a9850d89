"""Pairs and labelled replies as examples: roles, ties, weights, mismatched replies, and the batches made of them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from mint.errors import InvalidRequest
from recipe.preference.dpo.config import LossConfig
from recipe.preference.dpo.examples import Examples, Role, labelled_examples, pair_examples, with_mismatched
from recipe.preference.dpo.labelled_replies import LabelledReply
from recipe.preference.dpo.losses import PREFERENCE_LOSSES
from recipe.preference.dpo.reply_batches import ReplyBatch, loss_and_metrics
from recipe.preference.types import PreferencePair
from recipe.tokenizer_utils import get_tokenizer
from renderers import Renderer, get_renderer


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return get_renderer("qwen3_disable_thinking", get_tokenizer("mint-tiny"))


def make_pair(i: int, is_tie: bool = False) -> PreferencePair:
    return PreferencePair(
        [{"role": "user", "content": f"Tea {i}?"}],
        {"role": "assistant", "content": "Yes " * (i + 1)},
        {"role": "assistant", "content": "No " * (i + 2)},
        is_tie=is_tie,
    )


def referenced(examples: Examples) -> Examples:
    return examples.with_reference([-float(i) for i in range(len(examples.rendered()))])


def test_ties_are_left_out_and_counted(renderer: Renderer) -> None:
    examples = pair_examples([make_pair(0), make_pair(1, is_tie=True), make_pair(2)], renderer)
    assert (len(examples.examples_E), examples.num_ties) == (2, 1)
    with pytest.raises(InvalidRequest, match="all 1 pairs are ties"):
        pair_examples([make_pair(0, is_tie=True)], renderer)


def test_the_reply_and_its_end_of_turn_carry_weight_and_nothing_else(renderer: Renderer) -> None:
    (example,) = pair_examples([make_pair(0)], renderer).examples_E
    chosen = example.replies[0].rendered
    own = [token for token, weight in zip(chosen.tokens, chosen.weights, strict=True) if weight]
    assert renderer.tokenizer.decode(own).startswith("Yes") and own[-1] in renderer.get_stop_sequences()


def test_both_replies_of_a_pair_are_side_by_side_in_its_batch(renderer: Renderer) -> None:
    batch = ReplyBatch.of(pair_examples([make_pair(i) for i in range(3)], renderer).examples_E)
    assert [reply.role for reply in batch.replies_D] == [Role.CHOSEN, Role.REJECTED] * 3
    inputs = [datum.model_input.to_ints() for datum in batch.datums_D]
    assert inputs[0][:8] == inputs[1][:8] and batch.num_tokens == sum(map(len, inputs))


def test_the_logprobs_of_a_role_are_weighted_sums_in_the_order_of_the_batch(renderer: Renderer) -> None:
    examples = referenced(pair_examples([make_pair(i) for i in range(2)], renderer))
    batch = ReplyBatch.of(examples.examples_E)
    logprobs_D = [torch.full((datum.model_input.length,), -0.5) for datum in batch.datums_D]
    found = batch.logprobs_of(Role.REJECTED, logprobs_D)
    lengths = [float(batch.replies_D[i].rendered.weights.sum()) for i in (1, 3)]
    assert found.num_tokens_R.tolist() == lengths
    assert found.policy_R.tolist() == [-0.5 * length for length in lengths]
    assert found.reference_R is not None and found.reference_R.tolist() == [-1.0, -3.0]


@pytest.mark.parametrize("name", PREFERENCE_LOSSES)
def test_metrics_of_a_batch_by_hand_and_whatever_its_order(renderer: Renderer, name: str) -> None:
    examples = referenced(with_mismatched(pair_examples([make_pair(i) for i in range(4)], renderer), renderer, seed=0))
    generator = torch.Generator().manual_seed(1)
    noise = {
        tuple(reply.rendered.tokens): -torch.rand(len(reply.rendered.tokens) - 1, generator=generator)
        for example in examples.examples_E
        for reply in example.replies
    }

    def metrics(order: list[int]) -> dict[str, float]:
        batch = ReplyBatch.of([examples.examples_E[i] for i in order])
        logprobs_D = [noise[tuple(reply.rendered.tokens)] for reply in batch.replies_D]
        return loss_and_metrics(batch, LossConfig(name=name), logprobs_D)[1]

    found = metrics([0, 1, 2, 3])
    assert metrics([2, 3, 1, 0]) == pytest.approx(found)
    assert found["mean_margin"] == pytest.approx(found["chosen_reward"] - found["rejected_reward"])
    assert found["pair_accuracy"] in (0.0, 0.25, 0.5, 0.75, 1.0)
    chosen = [example.replies[0].rendered for example in examples.examples_E]
    per_token = sum((noise[tuple(r.tokens)] * r.weights_T).sum().item() for r in chosen) / sum(
        float(r.weights.sum()) for r in chosen
    )
    assert found["chosen_logprob_per_token"] == pytest.approx(per_token)


def test_a_mismatched_reply_answers_another_prompt_and_both_sides_of_pairs_serve(renderer: Renderer) -> None:
    plain = pair_examples([make_pair(i) for i in range(40)], renderer)
    examples = with_mismatched(plain, renderer, seed=5)
    words = Counter()
    for i, (before, after) in enumerate(zip(plain.examples_E, examples.examples_E, strict=True)):
        assert after.replies[:2] == before.replies and after.replies[2].role is Role.MISMATCHED
        text = renderer.tokenizer.decode(after.replies[2].rendered.tokens)
        assert f"Tea {i}?" in text and after.replies[2].rendered.tokens not in [
            r.rendered.tokens for r in before.replies
        ]
        words["Yes" in text] += 1
    assert words == {True: 20, False: 20}

    def drawn(seed: int) -> list[list[int]]:
        return [example.replies[2].rendered.tokens for example in with_mismatched(plain, renderer, seed).examples_E]

    assert drawn(5) == [example.replies[2].rendered.tokens for example in examples.examples_E] != drawn(6)


def test_one_prompt_alone_has_no_mismatched_reply(renderer: Renderer) -> None:
    replies = [
        LabelledReply(make_pair(0).prompt, {"role": "assistant", "content": str(i)}, is_desirable=i > 0)
        for i in range(3)
    ]
    examples = labelled_examples(replies, renderer)
    assert with_mismatched(examples, renderer, seed=0) == examples
    assert [example.replies[0].role for example in examples.examples_E] == [Role.REJECTED, Role.CHOSEN, Role.CHOSEN]


def test_a_reply_that_is_too_long_is_an_error_or_left_out(renderer: Renderer) -> None:
    prompt = make_pair(0).prompt
    replies = [LabelledReply(prompt, {"role": "assistant", "content": "Yes " * n}, is_desirable=True) for n in (1, 90)]
    with pytest.raises(InvalidRequest, match="reply 1, counted from 0: has .* tokens with its prompt, more than .* 50"):
        labelled_examples(replies, renderer, max_length=50)
    examples = labelled_examples(replies, renderer, max_length=50, on_too_long="drop")
    assert (len(examples.examples_E), examples.num_dropped) == (1, 1)
