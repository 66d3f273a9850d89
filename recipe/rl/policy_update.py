"""One batch of training sequences into the weights.

The API sums the loss over tokens, and nothing here divides it: the gradient of a batch is the sum over its sampled
tokens. Adam's step does not depend on that scale, so any constant divisor (Dr. GRPO's, say) would give the same
weights; a per-sequence mean, which would weigh tokens of short answers more, is deliberately not taken.

Axes: _T target token, _D training sequence.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import mint
from mint import types
from mint.errors import InvalidRequest, nearest_name
from recipe.numeric_faults import step_outcome
from recipe.rl.datums import TrainingSequence
from recipe.rl.metrics import TrainedSequence

T = TypeVar("T")

logger = logging.getLogger(__name__)

# The losses of the API that take logprobs and advantages.
POLICY_LOSSES = ("importance_sampling", "ppo", "cispo", "dro")


@dataclass(frozen=True)
class PolicyLoss:
    """Which loss, and its settings as the server takes them."""

    loss_fn: str
    loss_fn_config: dict[str, float] | None = None

    def __post_init__(self) -> None:
        if self.loss_fn not in POLICY_LOSSES:
            known = ", ".join(POLICY_LOSSES)
            raise InvalidRequest(
                f"loss_fn={self.loss_fn!r} is not a policy loss; choose one of {known}."
                f"{nearest_name(self.loss_fn, POLICY_LOSSES)}"
            )


def policy_loss_at(
    temperature: float, loss_fn: str, loss_fn_config: dict[str, float] | None, training_client: mint.TrainingClient
) -> PolicyLoss:
    """The loss at the sampling temperature where the backend takes it there, so that the first step is on-policy.

    A backend says so with `supports_temperature`; one that does not is warned about.
    """
    if temperature != 1 and not getattr(training_client, "supports_temperature", False):
        logger.warning(
            "temperature=%s: this server computes the loss at temperature 1, so the logprobs of sampler and trainer"
            " differ from the first step on; use temperature=1 to train on-policy",
            temperature,
        )
    elif temperature != 1:
        return PolicyLoss(loss_fn, {**(loss_fn_config or {}), "temperature": temperature})
    return PolicyLoss(loss_fn, loss_fn_config)


@dataclass(frozen=True)
class PolicyUpdate:
    """What the optimizer steps of one batch returned."""

    trained_D: list[TrainedSequence]
    # loss (per sampled token, mean over the batch) and optim/<name> of the last optimizer step.
    metrics: dict[str, float]


async def update_policy(
    training_client: mint.TrainingClient,
    sequences_D: Sequence[TrainingSequence],
    loss: PolicyLoss,
    adam_params: types.AdamParams,
    num_substeps: int = 1,
) -> PolicyUpdate:
    """One optimizer step for each of `num_substeps` parts of the batch, all submitted before any is waited for.

    Advantages and sampler logprobs stay what they were, so every part after the first is a little off-policy. A batch
    of fewer sequences than parts takes one step per sequence.
    """
    assert sequences_D, "an update needs at least one sequence"
    parts = split_evenly(sequences_D, num_substeps)
    submitted = []
    for part_D in parts:
        datums_D = [sequence.to_datum() for sequence in part_D]
        backward = training_client.forward_backward(datums_D, loss.loss_fn, loss_fn_config=loss.loss_fn_config)
        submitted.append((part_D, backward, training_client.optim_step(adam_params)))
    trained_D: list[TrainedSequence] = []
    loss_sum, metrics = 0.0, {}
    for part_D, backward, optim_step in submitted:
        output, response = await step_outcome(backward, optim_step)
        loss_sum += output.metrics["loss:sum"]
        for sequence, outputs in zip(part_D, output.loss_fn_outputs, strict=True):
            trained_D.append(TrainedSequence(sequence, outputs["logprobs"].to_numpy()))
        metrics = response.metrics or {}
    num_tokens = sum(sequence.num_sampled for sequence in sequences_D)
    return PolicyUpdate(
        trained_D,
        {
            "loss": loss_sum / num_tokens,
            # Metric names of the API carry a reduction ("grad_norm:mean"), which says nothing about a single step.
            **{f"optim/{name.split(':')[0]}": value for name, value in metrics.items()},
        },
    )


def split_evenly(items: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    """Consecutive parts whose sizes differ by one at most, larger ones first; none is empty."""
    num_parts = min(num_parts, len(items))
    bounds = [0]
    for i_part in range(num_parts):
        bounds.append(bounds[-1] + len(items) // num_parts + (i_part < len(items) % num_parts))
    return [items[bounds[i] : bounds[i + 1]] for i in range(num_parts)]
