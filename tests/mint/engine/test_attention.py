"""Attention in blocks against plain attention: values, gradients, every shape of a micro-batch.

Axes: _N packed tokens, _Q query heads, _K key/value heads, _D head dimension.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mint.engine import blocked_attention
from mint.engine.attention import PackedAttention
from mint.engine.batching import MicroBatch, plan_micro_batches

CPU = torch.device("cpu")
SHAPES = [(4, 2, 8), (3, 3, 16), (4, 1, 6)]


def micro_batch(lengths: list[int], num_problems: int) -> MicroBatch:
    """Replies of these lengths behind 40 tokens for all and 50 more for each problem; none shared with 0 problems."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 1000, 40)
    prompts = [np.concatenate([shared, rng.integers(0, 1000, 50)]) for _ in range(num_problems)] or [shared[:0]]
    sequences = [
        np.concatenate([prompts[i % len(prompts)], rng.integers(0, 1000, length)]) for i, length in enumerate(lengths)
    ]
    (batch,) = plan_micro_batches(sequences, 1_000_000)
    return batch


def random_inputs(
    batch: MicroBatch, shape: tuple[int, int, int], dtype: torch.dtype, size: float = 1.0
) -> list[Tensor]:
    """query_NQD, key_NKD, value_NKD, and a gradient of the result, which is zero for tokens that are nobody's."""
    num_query_heads, num_kv_heads, head_dim = shape
    generator = torch.Generator().manual_seed(0)
    heads = (num_query_heads, num_kv_heads, num_kv_heads, num_query_heads)
    num_tokens = len(batch.tokens_N)
    drawn = [torch.randn(num_tokens, n, head_dim, generator=generator, dtype=torch.float64) for n in heads]
    drawn[3][np.setdiff1d(np.arange(num_tokens), np.concatenate(batch.token_index))] = 0.0
    return [(x * size).to(dtype) for x in drawn]


def plain(batch: MicroBatch, query_NQD: Tensor, key_NKD: Tensor, value_NKD: Tensor) -> Tensor:
    """One softmax over the whole micro-batch with a mask from `token_index` alone: who precedes whom in a sequence."""
    num_tokens, group = len(query_NQD), query_NQD.shape[1] // key_NKD.shape[1]
    is_visible = torch.eye(num_tokens, dtype=torch.bool)
    for index in batch.token_index:
        is_visible[np.ix_(index, index)] |= torch.ones(len(index), len(index), dtype=torch.bool).tril()
    key, value = key_NKD.repeat_interleave(group, dim=1), value_NKD.repeat_interleave(group, dim=1)
    scores = torch.einsum("nqd,mqd->qnm", query_NQD, key) * query_NQD.shape[2] ** -0.5
    return torch.einsum("qnm,mqd->nqd", scores.masked_fill(~is_visible, -torch.inf).softmax(-1), value)


def with_gradients(attend, inputs: list[Tensor]) -> list[Tensor]:
    """The result where its gradient is not zero, and the gradients of query, key and value."""
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    out_NQD = attend(*leaves)
    is_wanted_N = (inputs[3] != 0).flatten(1).any(dim=1)
    return [out_NQD.detach()[is_wanted_N], *torch.autograd.grad(out_NQD, leaves, inputs[3])]


def largest_difference(many: list[Tensor], expected: list[Tensor]) -> float:
    """Relative to the largest value; to 1, the size of the inputs, where that is below 0.001: the gradient of a lone
    token's query is zero, and what is found is the rounding of terms of that size."""
    differences = []
    for x, y in zip(many, expected, strict=True):
        largest = float(y.abs().max())
        differences.append(float((x - y).abs().max()) / (largest if largest >= 1e-3 else 1.0))
    return max(differences)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    num_problems=st.integers(0, 3),
    shape=st.sampled_from(SHAPES),
    block=st.sampled_from([(1, 1), (5000, 7), (1 << 20, 64)]),
    use_blocks=st.booleans(),
)
def test_values_and_gradients_are_those_of_plain_attention(
    monkeypatch, lengths, num_problems, shape, block, use_blocks
) -> None:
    monkeypatch.setattr(blocked_attention, "_BLOCK_BYTES", block[0])
    monkeypatch.setattr(blocked_attention, "_CAUSAL_POSITIONS", block[1])
    batch = micro_batch(lengths, num_problems)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        inputs = random_inputs(batch, shape, dtype)
        attention = PackedAttention(batch, CPU, use_blocks=use_blocks)
        ours = with_gradients(lambda *x, attention=attention: attention(0, *x), inputs)
        assert largest_difference(ours, with_gradients(lambda *x: plain(batch, *x), inputs)) < tolerance


@pytest.mark.parametrize("num_problems", [0, 2])
def test_bfloat16_is_as_exact_as_scaled_dot_product_attention(num_problems) -> None:
    batch = micro_batch([100, 90, 150, 33, 70], num_problems)
    inputs = random_inputs(batch, (4, 2, 32), torch.bfloat16)
    expected = with_gradients(lambda *x: plain(batch, *x), [x.double() for x in inputs])
    errors = []
    for use_blocks in (True, False):
        attention = PackedAttention(batch, CPU, use_blocks=use_blocks)
        ours = with_gradients(lambda *x, attention=attention: attention(0, *x), inputs)
        assert all(x.dtype is torch.bfloat16 for x in ours)
        errors.append(largest_difference([x.double() for x in ours], expected))
    assert errors[0] < 0.02 and errors[0] < 3 * errors[1]


def test_the_same_batch_gives_the_same_bits() -> None:
    batch = micro_batch([100, 90, 20, 33, 70], 2)
    inputs = random_inputs(batch, (4, 2, 32), torch.float32)
    first, second = (with_gradients(lambda *x: PackedAttention(batch, CPU)(0, *x), inputs) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    batch = micro_batch([30, 20, 25], 1)
    inputs = random_inputs(batch, (2, 2, 8), torch.float64, size=40.0)
    ours = with_gradients(lambda *x: PackedAttention(batch, CPU)(0, *x), inputs)
    assert largest_difference(ours, with_gradients(lambda *x: plain(batch, *x), inputs)) < 1e-9
