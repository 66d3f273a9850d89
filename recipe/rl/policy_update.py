"""One batch of training sequences into the weights.

The API sums the loss over tokens, and nothing here divides it: the gradient of a batch is the sum over its sampled
tokens. Adam's step does not depend on that scale, so any constant divisor (Dr. GRPO's, say) would give the same
weights. A divisor that differs from sequence to sequence, such as its length, does matter: it is the sequence's
`loss_factor`, 1 unless `advantage_config.length_norm` says otherwise.

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
from recipe.numeric_faults import check_finite
from recipe.rl.custom_loss import KL_LOSS_KEY, TOTAL_LOSS_KEY, custom_policy_loss
from recipe.rl.datums import TrainingSequence
from recipe.rl.gspo import gspo_config
from recipe.rl.metrics import TrainedSequence

T = TypeVar("T")

logger = logging.getLogger(__name__)

# The losses of the API that take logprobs and advantages, and those that go through forward_backward_custom.
API_LOSSES = ("importance_sampling", "ppo", "cispo", "dro")
CUSTOM_LOSSES = ("gspo",)
POLICY_LOSSES = (*API_LOSSES, *CUSTOM_LOSSES)


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

    def check(self, temperature: float, length_norm: str) -> None:
        """InvalidRequest unless the loss fits the sampling temperature and the length normalisation of a run."""
        if self.loss_fn in CUSTOM_LOSSES and temperature != 1:
            raise InvalidRequest(
                f"loss_fn={self.loss_fn!r} with temperature={temperature}: a custom loss sees logprobs at"
                " temperature 1, where the sampled tokens would be off-policy; set temperature=1."
            )
        if self.loss_fn == "gspo":
            gspo_config(self.loss_fn_config)
        if self.loss_fn == "gspo" and length_norm != "none":
            raise InvalidRequest(
                f"advantage_config.length_norm={length_norm!r} with loss_fn='gspo', which is a mean over the tokens of"
                " a sequence already; set length_norm=none."
            )
        if self.loss_fn == "dro" and length_norm != "none":
            raise InvalidRequest(
                f"advantage_config.length_norm={length_norm!r} with loss_fn='dro', whose quadratic term is not scaled"
                " with the advantages; set length_norm=none."
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
class KLTerm:
    """KL to a reference as a term of the loss; the sequences bring the reference's logprobs."""

    # "k1", "k2" or "k3", see `kl_loss`.
    estimator: str
    coef: float


@dataclass(frozen=True)
class PolicyUpdate:
    """What the optimizer steps of one batch returned."""

    trained_D: list[TrainedSequence]
    # loss (per sampled token, mean over the batch), where KL is part of it loss_kl, and optim/<name> of the last step.
    metrics: dict[str, float]


SubmittedBackward = tuple[Sequence[TrainingSequence], "mint.APIFuture[types.ForwardBackwardOutput]"]


@dataclass(frozen=True)
class SubmittedStep:
    """An optimizer step under way: the requests whose gradients it sums, each with its sequences, and the step."""

    backwards: Sequence[SubmittedBackward]
    optim_step: mint.APIFuture[types.OptimStepResponse]


async def update_policy(
    training_client: mint.TrainingClient,
    sequences_D: Sequence[TrainingSequence],
    loss: PolicyLoss,
    adam_params: types.AdamParams,
    num_substeps: int = 1,
    kl: KLTerm | None = None,
) -> PolicyUpdate:
    """One optimizer step for each of `num_substeps` parts of the batch, all submitted before any is waited for.

    Advantages and sampler logprobs stay what they were, so every part after the first is a little off-policy. A batch
    of fewer sequences than parts takes one step per sequence.
    """
    assert sequences_D, "an update needs at least one sequence"
    steps = []
    for part_D in split_evenly(sequences_D, num_substeps):
        backward = submit_backward(training_client, part_D, loss, kl)
        steps.append(SubmittedStep([(part_D, backward)], training_client.optim_step(adam_params)))
    return await finished_update(steps, loss, kl)


async def finished_update(steps: Sequence[SubmittedStep], loss: PolicyLoss, kl: KLTerm | None) -> PolicyUpdate:
    """What the steps of one batch returned, once all are done; NonFiniteError where a request was refused."""
    trained_D: list[TrainedSequence] = []
    sums = {name: 0.0 for name in _loss_keys(loss, kl)}
    metrics: dict[str, float] = {}
    for step in steps:
        for part_D, backward in step.backwards:
            output = await backward
            check_finite(output)
            for name, key in _loss_keys(loss, kl).items():
                sums[name] += output.metrics[key]
            for sequence, outputs in zip(part_D, output.loss_fn_outputs, strict=True):
                trained_D.append(TrainedSequence(sequence, outputs["logprobs"].to_numpy()))
        metrics = (await step.optim_step).metrics or {}
    num_tokens = sum(row.sequence.num_sampled for row in trained_D)
    return PolicyUpdate(
        trained_D,
        {
            **{name: loss_sum / num_tokens for name, loss_sum in sums.items()},
            # Metric names of the API carry a reduction ("grad_norm:mean"), which says nothing about a single step.
            **{f"optim/{name.split(':')[0]}": value for name, value in metrics.items()},
        },
    )


def submit_backward(
    training_client: mint.TrainingClient, part_D: Sequence[TrainingSequence], loss: PolicyLoss, kl: KLTerm | None
) -> mint.APIFuture[types.ForwardBackwardOutput]:
    """One request for the whole loss, so that a step is taken with all of its gradient or not at all."""
    datums_D = [sequence.to_datum() for sequence in part_D]
    if loss.loss_fn in API_LOSSES and kl is None:
        return training_client.forward_backward(datums_D, loss.loss_fn, loss_fn_config=loss.loss_fn_config)
    term = {} if kl is None else {"kl_estimator": kl.estimator, "kl_coef": kl.coef}
    return training_client.forward_backward_custom(
        datums_D, custom_policy_loss(part_D, loss.loss_fn, loss.loss_fn_config, **term)
    )


def _loss_keys(loss: PolicyLoss, kl: KLTerm | None) -> dict[str, str]:
    """Our metrics of the loss, and what the answer of `submit_backward` calls their sums."""
    if loss.loss_fn in API_LOSSES and kl is None:
        return {"loss": "loss:sum"}
    return {"loss": TOTAL_LOSS_KEY} | ({} if kl is None else {"loss_kl": KL_LOSS_KEY})


def split_evenly(items: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    """Consecutive parts whose sizes differ by one at most, larger ones first; none is empty."""
    num_parts = min(num_parts, len(items))
    bounds = [0]
    for i_part in range(num_parts):
        bounds.append(bounds[-1] + len(items) // num_parts + (i_part < len(items) % num_parts))
    return [items[bounds[i] : bounds[i + 1]] for i in range(num_parts)]
