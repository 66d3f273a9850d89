"""Losses through forward_backward_custom, against the engine's own and against the closed forms in the documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import mint
from mint import types
from mint.checkpoint_store import CheckpointStore
from recipe.rl.custom_loss import KL_LOSS_KEY, TOTAL_LOSS_KEY, custom_policy_loss
from recipe.rl.datums import TrainingSequence

# With so large an eps Adam's first step is the gradient itself, up to scale: lr * g / (|g| + eps).
PLAIN_GRADIENT = types.AdamParams(learning_rate=1.0, eps=1e3)

SEQUENCES_D = [
    TrainingSequence(
        tokens=[5, 6, 7, 8, 9],
        is_sampled_T=np.asarray([False, True, True, True]),
        sampler_logprobs_T=np.asarray([0.0, -9.0, -8.0, -7.5], dtype=np.float32),
        advantages_T=np.asarray([0.0, 1.5, 1.5, 1.5], dtype=np.float32),
        reference_logprobs_T=np.asarray([-99.0, -8.5, -8.0, -9.0], dtype=np.float32),
    ),
    # Two turns; a factor on its loss.
    TrainingSequence(
        tokens=[5, 11, 12, 13],
        is_sampled_T=np.asarray([True, False, True]),
        sampler_logprobs_T=np.asarray([-8.0, 0.0, -7.0], dtype=np.float32),
        advantages_T=np.asarray([-1.0, 0.0, -0.5], dtype=np.float32),
        i_member=1,
        loss_factor=0.5,
        reference_logprobs_T=np.asarray([-7.0, -99.0, -9.0], dtype=np.float32),
    ),
]


@pytest.fixture
def gradient_of(service: mint.ServiceClient, tiny_model_dir: Path, mint_home: Path) -> Callable[..., Any]:
    """What `submit` accumulates: its answer, and the adapter after a step along the plain gradient."""

    async def run(submit: Callable[[mint.TrainingClient], Any]) -> tuple[Any, dict[str, np.ndarray]]:
        client = await service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
        output = await submit(client)
        await client.optim_step(PLAIN_GRADIENT)
        files = CheckpointStore(mint_home).verify((await client.save_state("after")).path)
        return output, load_file(files["adapter_model.safetensors"])

    return run


def datums(sequences_D: list[TrainingSequence]) -> list[types.Datum]:
    return [sequence.to_datum() for sequence in sequences_D]


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """To 5e-6 of the largest entry of each tensor: a small entry is a sum of terms of that size, rounded to float32."""
    largest = 0.0
    for name, values in expected.items():
        own_largest = float(np.abs(values).max())
        np.testing.assert_allclose(found[name], values, rtol=0, atol=5e-6 * own_largest, err_msg=name)
        largest = max(largest, own_largest)
    assert largest > 0


@pytest.mark.parametrize(
    ("loss_fn", "config"),
    [
        ("importance_sampling", None),
        ("ppo", {"clip_high_threshold": 1.28}),
        ("cispo", None),
        ("dro", {"beta": 0.2}),
    ],
)
async def test_the_losses_of_the_api_are_the_same_through_either_door(
    gradient_of: Callable[..., Any], loss_fn: str, config: dict[str, float] | None
) -> None:
    data = datums(SEQUENCES_D)
    built_in, expected = await gradient_of(lambda client: client.forward_backward(data, loss_fn, config))
    custom, found = await gradient_of(
        lambda client: client.forward_backward_custom(data, custom_policy_loss(SEQUENCES_D, loss_fn, config))
    )
    assert custom.metrics[TOTAL_LOSS_KEY] == pytest.approx(built_in.metrics["loss:sum"], rel=1e-5)
    assert_same(found, expected)


async def on_policy(client: mint.TrainingClient) -> list[TrainingSequence]:
    """The sequences with the client's own logprobs in the sampler's place."""
    output = await client.forward(datums(SEQUENCES_D), "importance_sampling")
    return [
        replace(sequence, sampler_logprobs_T=np.asarray(outputs["logprobs"].to_numpy(), dtype=np.float32))
        for sequence, outputs in zip(SEQUENCES_D, output.loss_fn_outputs, strict=True)
    ]


@pytest.mark.parametrize(
    ("estimator", "slope"),
    [
        ("k1", lambda log_ratio: np.ones_like(log_ratio)),
        ("k2", lambda log_ratio: log_ratio),
        ("k3", lambda log_ratio: 1 - np.exp(-log_ratio)),
    ],
)
async def test_on_policy_kl_in_the_loss_is_its_slope_in_the_advantages(
    gradient_of: Callable[..., Any], estimator: str, slope: Callable[[np.ndarray], np.ndarray]
) -> None:
    async def in_the_loss(client: mint.TrainingClient) -> Any:
        sequences_D = await on_policy(client)
        loss = custom_policy_loss(sequences_D, "importance_sampling", None, estimator, kl_coef=0.3)
        return await client.forward_backward_custom(datums(sequences_D), loss)

    async def in_the_advantages(client: mint.TrainingClient) -> Any:
        sequences_D = []
        for sequence in await on_policy(client):
            assert sequence.reference_logprobs_T is not None
            slope_T = slope(sequence.sampler_logprobs_T - sequence.reference_logprobs_T)
            advantages_T = sequence.advantages_T - 0.3 * slope_T * sequence.is_sampled_T
            sequences_D.append(replace(sequence, advantages_T=advantages_T.astype(np.float32)))
        return await client.forward_backward(datums(sequences_D), "importance_sampling")

    _, found = await gradient_of(in_the_loss)
    _, expected = await gradient_of(in_the_advantages)
    assert_same(found, expected)


def called(loss_fn: str, logprobs: list[list[float]], **term: Any) -> tuple[dict[str, float], list[list[float]]]:
    """Metrics and gradient of the loss of SEQUENCES_D at given trainer logprobs."""
    leaves = [torch.tensor(values, requires_grad=True) for values in logprobs]
    config = {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0} if loss_fn == "gspo" else None
    value, metrics = custom_policy_loss(SEQUENCES_D, loss_fn, config, **term)(datums(SEQUENCES_D), leaves)
    gradients = torch.autograd.grad(value, leaves)
    return metrics, [gradient.tolist() for gradient in gradients]


ON_POLICY = [[-50.0, -9.0, -8.0, -7.5], [-8.0, -50.0, -7.0]]


def test_gspo_takes_the_sampled_tokens_of_a_sequence_and_its_factor() -> None:
    metrics, (first, second) = called("gspo", ON_POLICY)
    # s = 1: minus the mean advantage, 1.5, and half of the mean of -1 and -0.5.
    assert metrics[TOTAL_LOSS_KEY] == pytest.approx(-1.5 + 0.375)
    assert first == pytest.approx([0.0, -0.5, -0.5, -0.5])
    assert second == pytest.approx([0.25, 0.0, 0.125])


def test_kl_counts_sampled_tokens_and_the_factor_and_is_reported_apart() -> None:
    metrics, (first, second) = called("importance_sampling", ON_POLICY, kl_estimator="k2", kl_coef=0.1)
    # d is -0.5, 0, 1.5 and -1, 2: (0.25 + 2.25) / 2 and half of (1 + 4) / 2, times 0.1.
    assert metrics[KL_LOSS_KEY] == pytest.approx(0.1 * (1.25 + 1.25))
    # The policy loss is -(3 * 1.5) - 0.5 * (-1 - 0.5).
    assert metrics[TOTAL_LOSS_KEY] == pytest.approx(-4.5 + 0.75 + 0.25)
    assert first == pytest.approx([0.0, -1.5 - 0.05, -1.5, -1.5 + 0.15])
    assert second == pytest.approx([0.5 - 0.05, 0.0, 0.25 + 0.1])


def test_kl_without_the_references_logprobs_is_our_mistake() -> None:
    bare = [replace(sequence, reference_logprobs_T=None) for sequence in SEQUENCES_D]
    loss = custom_policy_loss(bare, "ppo", None, "k3", kl_coef=0.1)
    with pytest.raises(AssertionError, match="needs the reference's logprobs"):
        loss(datums(bare), [torch.zeros(4, requires_grad=True), torch.zeros(3, requires_grad=True)])
