"""Micro-batch plans: complete, within budget, and without influence on any result."""

from __future__ import annotations

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
# A sequence is any tokens, or a member of a group: one long prefix, then tokens of its own.
sequence = st.lists(st.integers(0, 50), min_size=1, max_size=40)
member = st.tuples(st.sampled_from([20, 40]), sequence).map(lambda pair: PREFIX[: pair[0]] + pair[1])
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
        covered = sorted(t for block in batch.blocks for t in range(block.rows.start, block.rows.stop))
        assert covered == list(range(len(batch.tokens_N)))
        assert len(batch.tokens_N) <= budget or len(batch.sequence_ids) == 1
        if not share:
            assert len(batch.tokens_N) == sum(len(many[i]) for i in batch.sequence_ids)


def test_a_groups_prompt_is_stored_once():
    group = [np.asarray([*PREFIX, i, i + 1]) for i in range(8)]
    (batch,) = plan_micro_batches(group, 10_000)
    assert len(batch.tokens_N) == len(PREFIX) + 8 * 2


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


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    many=sequences,
    budget=st.sampled_from([1, 60, 10_000]),
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
