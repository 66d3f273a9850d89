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

import chz

import mint
from mint import types
from mint.errors import InvalidRequest, nearest_name
from recipe.rl.datums import TrainingSequence
from recipe.rl.metrics import TrainedSequence

T = TypeVar("T")

logger = logging.getLogger(__name__)

# The losses of the API that take logprobs and advantages.
POLICY_LOSSES = ("importance_sampling", "ppo", "cispo", "dro")


@chz.chz(typecheck=True)
class OptimizerConfig:
    """Adam, the learning rate aside."""

    # Decay of the running mean of the gradient.
    beta1: float = 0.9
    # Decay of the running mean of its square.
    beta2: float = 0.95
    # Added to the root of the second moment.
    eps: float = 1e-8
    # Decoupled weight decay per step, in units of the learning rate.
    weight_decay: float = 0.0
    # Largest norm of the batch's summed gradient; 0 means no limit. It grows with the number of tokens in the batch.
    grad_clip_norm: float = 0.0

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        for name in ("eps", "weight_decay", "grad_clip_norm"):
            if not getattr(self, name) >= 0:
                raise InvalidRequest(f"optimizer.{name}={getattr(self, name)}: must not be negative.")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InvalidRequest(f"optimizer.{name}={getattr(self, name)}: must be in [0, 1).")

    def adam_params(self, learning_rate: float) -> types.AdamParams:
        """As the API wants it."""
        return types.AdamParams(
            learning_rate=learning_rate,
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.eps,
            weight_decay=self.weight_decay,
            grad_clip_norm=self.grad_clip_norm,
        )


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
        output = await backward
        loss_sum += output.metrics["loss:sum"]
        for sequence, outputs in zip(part_D, output.loss_fn_outputs, strict=True):
            trained_D.append(TrainedSequence(sequence, outputs["logprobs"].to_numpy()))
        metrics = (await optim_step).metrics or {}
    num_tokens = sum(sequence.num_sampled for sequence in sequences_D)
    return PolicyUpdate(
        trained_D, {"loss": loss_sum / num_tokens, **{f"optim/{name}": value for name, value in metrics.items()}}
    )


def split_evenly(items: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    """Consecutive parts whose sizes differ by one at most, larger ones first; none is empty."""
    num_parts = min(num_parts, len(items))
    bounds = [0]
    for i_part in range(num_parts):
        bounds.append(bounds[-1] + len(items) // num_parts + (i_part < len(items) % num_parts))
    return [items[bounds[i] : bounds[i + 1]] for i in range(num_parts)]
