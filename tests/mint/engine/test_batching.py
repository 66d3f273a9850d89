"""Micro-batch plans: complete, within budget, and without influence on any result."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mint.checkpoint_manifest import LoraShape
from mint.engine.adapters import AdapterLayout
from mint.engine.base_model import ComputeOptions, load_base_model
from mint.engine.batching import plan_micro_batches
from mint.engine.datum_inputs import DatumArrays
from mint.engine.forward import ForwardOptions, ForwardPass
from mint.engine.losses import get_loss

PREFIX = list(range(100, 140))
# A sequence is any tokens, or a member of a group: one long prefix, perhaps the prompt of one of three problems behind
# it, then tokens of its own. A member without any of its own equals another or is the beginning of one.
sequence = st.lists(st.integers(0, 50), min_size=1, max_size=40)
prompt = st.sampled_from([[], [*range(60, 90)], [*range(60, 75), *range(140, 155)], [*range(155, 185)]])
member = st.tuples(st.sampled_from([20, 40]), prompt, st.one_of(st.just([]), sequence)).map(
    lambda parts: PREFIX[: parts[0]] + parts[1] + parts[2]
)
sequences = st.lists(st.one_of(sequence, member, member), min_size=1, max_size=12).map(
    lambda many: [np.asarray(one, dtype=np.int64) for one in many]
)


@given(sequences, st.sampled_from([1, 50, 200, 10_000]), st.booleans())
def test_every_token_is_planned_once_at_its_position(many, budget, share):
    batches = plan_micro_batches(many, budget, share)
    assert sorted(i for batch in batches for i in batch.sequence_ids) == list(range(len(many)))
    for batch in batches:
        for i, index in zip(batch.sequence_ids, batch.token_index, strict=True):
            assert batch.tokens_N[index].tolist() == many[i].tolist()
            assert batch.positions_N[index].tolist() == list(range(len(many[i])))
        runs = [
            range(row[0], row[0] + length)
            for block in batch.blocks
            for row, length in zip(block.index_BT, block.lengths_B, strict=True)
        ]
        covered = sorted(t for run in runs for t in run)
        assert covered == list(range(len(batch.tokens_N)))
        longest = max(len(many[i]) for i in batch.sequence_ids)
        most = max(budget, 1.5 * longest + 3) if share else budget
        assert len(batch.tokens_N) <= most or len(batch.sequence_ids) == 1
        num_real = len(np.unique(np.concatenate(batch.token_index)))
        assert len(batch.tokens_N) == num_real + -num_real % 4
        if not share:
            assert num_real == sum(len(many[i]) for i in batch.sequence_ids)
        for row, visible in enumerate(visible_to_each(batch)[:num_real]):
            sees = [index[: list(index).index(row) + 1] for index in batch.token_index if row in index]
            assert all(sorted(own) == visible for own in sees)


def test_short_sequences_fill_what_long_ones_leave():
    """1,568 tokens need four micro-batches of 452; one after another, the same order would make five of them."""
    many = [np.arange(length) + 1000 * i for i, length in enumerate([284, 276, 224, 224, 220, 216, 70, 54])]
    assert [len(batch.tokens_N) for batch in plan_micro_batches(many, 452)] == [408, 276, 448, 436]


def test_micro_batches_are_evenly_full_where_that_takes_no_more_of_them():
    many = [np.arange(length) + 1000 * i for i, length in enumerate([100] * 10)]
    assert [len(batch.tokens_N) for batch in plan_micro_batches(many, 800)] == [500, 500]
    many[0] = np.arange(790)
    assert [len(batch.tokens_N) for batch in plan_micro_batches(many, 800)] == [792, 500, 400]


def visible_to_each(batch) -> list[list[int]]:
    """The packed tokens each packed token attends to, itself included, read off blocks and prefixes.

    What follows the sequences, up to a multiple of 4 tokens, must be visible to none of them.
    """
    visible: list[list[int]] = [[] for _ in batch.tokens_N]
    for block in batch.blocks:
        for row, length in zip(block.index_BT, block.lengths_B, strict=True):
            for t in range(length):
                visible[row[t]] += row[: t + 1].tolist()
    for prefix in batch.prefixes:
        for i in range(prefix.stop, prefix.end):
            visible[i] += range(prefix.start, prefix.stop)
    return [sorted(own) for own in visible]


def test_a_groups_prompt_is_stored_once():
    group = [np.asarray([*PREFIX, i, i + 1]) for i in range(8)]
    (batch,) = plan_micro_batches(group, 10_000)
    assert len(batch.tokens_N) == len(PREFIX) + 8 * 2


def few_shot_groups(num_problems: int, group_size: int) -> list[np.ndarray]:
    """Worked examples of 512 tokens before every problem; a problem of 60 before each of its replies of 64."""
    rng = np.random.default_rng(0)
    examples = rng.integers(0, 1000, 512)
    prompts = [np.concatenate([examples, rng.integers(0, 1000, 60)]) for _ in range(num_problems)]
    return [np.concatenate([prompt, rng.integers(0, 1000, 64)]) for prompt in prompts for _ in range(group_size)]


def test_every_level_of_a_shared_prefix_is_stored_once():
    (batch,) = plan_micro_batches(few_shot_groups(8, 8), 10_000)
    assert len(batch.tokens_N) == 512 + 8 * 60 + 64 * 64
    assert sorted(prefix.stop - prefix.start for prefix in batch.prefixes) == [60] * 8 + [512]


def test_a_budget_too_small_for_a_tree_splits_it_between_problems():
    """Three problems beside the examples are 512 + 3 * (60 + 8 * 64) = 2228 tokens; a fourth would make it 2800."""
    batches = plan_micro_batches(few_shot_groups(8, 8), 2500)
    assert [len(batch.tokens_N) for batch in batches] == [2228, 2228, 1656]
    problems = [{i // 8 for i in batch.sequence_ids} for batch in batches]
    assert sorted(i for own in problems for i in own) == list(range(8))


def test_a_group_too_large_for_the_budget_is_split_and_its_prompt_repeated():
    """A prompt of 572 tokens and 8 replies of 64: five fit into half as much again as one with its prompt, 954."""
    batches = plan_micro_batches(few_shot_groups(1, 8), 800)
    assert [len(batch.tokens_N) for batch in batches] == [572 + 5 * 64, 572 + 3 * 64]


def test_a_group_whose_sequences_exceed_the_budget_is_not_torn_apart():
    """600 tokens for all, of which one reply with its prompt needs 460."""
    prompt = np.arange(440)
    group = [np.concatenate([prompt, 1000 * (i + 1) + np.arange(20)]) for i in range(8)]
    assert [len(batch.tokens_N) for batch in plan_micro_batches(group, 100)] == [440 + 8 * 20]
    assert [len(batch.tokens_N) for batch in plan_micro_batches(group, 100, share_prefixes=False)] == [460] * 8


def test_short_common_beginnings_are_not_shared():
    many = [np.asarray([1, 2, 3, 4, *range(100 * i, 100 * i + 150)]) for i in range(1, 17)]
    (batch,) = plan_micro_batches(many, 10_000)
    assert batch.prefixes == [] and len(batch.tokens_N) == 16 * 154


def test_planning_a_thousand_sequences_costs_no_more_than_linear_time():
    """Prefixes of prefixes, a thousand deep: neither recursion nor a pairwise comparison survives that."""
    nested = [np.arange(length) for length in range(1, 1001)]
    for many in (nested, few_shot_groups(125, 8)):
        started = time.process_time()
        plan_micro_batches(many, 100_000)
        assert time.process_time() - started < 2.0


@pytest.fixture(scope="module")
def model(tiny_model_dir):
    return load_base_model(str(tiny_model_dir), ComputeOptions("cpu", "float32"))


def loss_and_gradient(model, data, options) -> tuple[list[np.ndarray], float, torch.Tensor]:
    layout = AdapterLayout(model.decoder.shape, LoraShape(4, 32, True, True, True))
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(layout.size, generator=generator) * 0.05
    gradient = torch.zeros_like(flat)
    leaves = [view.detach().requires_grad_() for view in layout.views(flat)]
    for leaf, own in zip(leaves, layout.views(gradient), strict=True):
        leaf.grad = own
    forward_pass = ForwardPass(model.decoder, layout.weights(leaves), options)
    result = forward_pass.loss_and_gradient(data, get_loss("cross_entropy"), {}, 1.0)
    return result.logprobs, result.loss_sum, gradient


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    many=sequences,
    budget=st.sampled_from([1, 60, 150, 10_000]),
    share=st.booleans(),
    checkpointing=st.booleans(),
    data=st.data(),
)
def test_no_plan_changes_logprobs_or_gradient(model, many, budget, share, checkpointing, data):
    """The oracle runs one sequence at a time; order, budget, sharing and recomputation must not matter."""
    rng = np.random.default_rng(0)
    datums = [
        DatumArrays(
            one, rng.integers(0, 50, len(one)), {"weights": rng.choice([0.0, 1.0, -0.5], len(one)).astype(np.float32)}
        )
        for one in many
    ]
    plain = ForwardOptions(token_budget=10_000, share_prefixes=False)
    singles = [loss_and_gradient(model, [datum], plain) for datum in datums]
    order = data.draw(st.permutations(range(len(many))))
    options = ForwardOptions(budget, share, checkpointing)
    logprobs, loss, gradient = loss_and_gradient(model, [datums[i] for i in order], options)
    for i, logprobs_T in zip(order, logprobs, strict=True):
        np.testing.assert_allclose(logprobs_T, singles[i][0][0], atol=1e-5)
    total = torch.stack([single[2] for single in singles]).sum(dim=0)
    assert loss == pytest.approx(sum(single[1] for single in singles), rel=1e-5, abs=1e-4)
    assert float((gradient - total).abs().max()) <= 1e-5 * max(float(total.abs().max()), 1.0)


@settings(max_examples=40)
@given(many=sequences, budget=st.integers(1, 150), share=st.booleans(), data=st.data())
def test_a_group_is_split_only_where_it_does_not_fit(many, budget, share, data):
    groups = [data.draw(st.integers(0, len(many))) for _ in many]
    plan = plan_micro_batches(many, budget, share, groups)
    assert sorted(i for batch in plan for i in batch.sequence_ids) == list(range(len(many)))
    for group in set(groups):
        own = {i for i, other in enumerate(groups) if other == group}
        # With sharing, a group may hang together with others that begin alike, and they all may not fit.
        if not share and sum(len(many[i]) for i in own) <= budget - budget % 4:
            assert len([batch for batch in plan if own & set(batch.sequence_ids)]) == 1
    for batch in plan:
        for i, index in zip(batch.sequence_ids, batch.token_index, strict=True):
            assert batch.tokens_N[index].tolist() == many[i].tolist()
