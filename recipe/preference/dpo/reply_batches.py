"""A batch of examples: its datums, and loss and metrics from the logprobs that the trainer gives for them.

Axes: _D datum, _T target token, _R reply of one role, _N preference pair, _E example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mint import types
from recipe.preference.dpo.config import LossConfig
from recipe.preference.dpo.examples import Example, ExampleReply, Role
from recipe.preference.dpo.losses import ReplyLogprobs, kl_estimate, kto_losses, pair_losses
from recipe.preference.losses import wilson_interval


@dataclass(frozen=True)
class ReplyBatch:
    """The datums of some examples, replies to one prompt side by side, and which reply each of them is."""

    datums_D: list[types.Datum]
    replies_D: list[ExampleReply]
    num_examples: int

    @classmethod
    def of(cls, examples_E: Sequence[Example]) -> ReplyBatch:
        """The batch of these examples."""
        replies_D = [reply for example in examples_E for reply in example.replies]
        return cls([reply.rendered.to_datum() for reply in replies_D], replies_D, len(examples_E))

    @property
    def num_tokens(self) -> int:
        """Tokens the model reads for this batch."""
        return sum(datum.model_input.length for datum in self.datums_D)

    @property
    def place_in_role_D(self) -> list[int]:
        """How many replies in the same role come before each; the two of a pair have the same place."""
        roles = [reply.role for reply in self.replies_D]
        return [roles[:i].count(role) for i, role in enumerate(roles)]

    def logprobs_of(self, role: Role, trainer_logprobs_D: Sequence[torch.Tensor]) -> ReplyLogprobs:
        """What a loss sees of the replies in this role, in the order of the batch; float64, with gradient.

        trainer_logprobs_D: the logprobs_T of every datum.
        """
        policy, reference, num_tokens = [], [], []
        for reply, trainer_logprobs_T in zip(self.replies_D, trainer_logprobs_D, strict=True):
            if reply.role is role:
                weights_T = reply.rendered.weights_T.double()
                policy.append((weights_T * trainer_logprobs_T.double()).sum())
                num_tokens.append(weights_T.sum())
                reference.append(reply.reference_logprob)
        has_reference = bool(reference) and None not in reference
        return ReplyLogprobs(
            torch.stack(policy) if policy else torch.zeros(0, dtype=torch.float64),
            torch.stack(num_tokens) if policy else torch.zeros(0, dtype=torch.float64),
            torch.tensor(reference, dtype=torch.float64) if has_reference else None,
        )


def loss_and_metrics(
    batch: ReplyBatch, config: LossConfig, trainer_logprobs_D: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    """The mean loss of the batch, with gradient, and what docs/metrics.md lists."""
    chosen, rejected = (batch.logprobs_of(role, trainer_logprobs_D) for role in (Role.CHOSEN, Role.REJECTED))
    row, settings = config.row, config.settings()
    metrics: dict[str, float] = {}
    if row.is_of_pairs:
        losses, chosen_rewards, rejected_rewards = pair_losses(row, settings, chosen, rejected)
    else:
        kl = kl_estimate(batch.logprobs_of(Role.MISMATCHED, trainer_logprobs_D))
        both = ReplyLogprobs(
            torch.cat([chosen.policy_R, rejected.policy_R]),
            torch.cat([chosen.num_tokens_R, rejected.num_tokens_R]),
            torch.cat([side.reference_R for side in (chosen, rejected) if side.reference_R is not None]),
        )
        num_chosen = len(chosen.policy_R)
        is_desirable_R = torch.arange(len(both.policy_R)) < num_chosen
        losses = kto_losses(settings, both, is_desirable_R, kl)
        rewards_R = row.reward(both, settings).detach()
        chosen_rewards, rejected_rewards = rewards_R[:num_chosen], rewards_R[num_chosen:]
        distances_R = torch.where(is_desirable_R, 1.0, -1.0) * (rewards_R - settings.beta * kl)
        metrics |= {"kto_kl": kl.item(), "label_accuracy": _share_positive(distances_R)}
    loss = losses.mean()
    metrics |= {"loss": loss.item()}
    for name, logprobs, rewards in (("chosen", chosen, chosen_rewards), ("rejected", rejected, rejected_rewards)):
        if len(rewards):
            per_token = (logprobs.policy_R.sum() / logprobs.num_tokens_R.sum()).item()
            metrics |= {f"{name}_reward": rewards.mean().item(), f"{name}_logprob_per_token": per_token}
    if len(chosen_rewards) == len(rejected_rewards) == batch.num_examples:
        margins_N = (chosen_rewards - rejected_rewards).detach()
        metrics |= {"pair_accuracy": _share_positive(margins_N), "mean_margin": margins_N.mean().item()}
    return loss, metrics


def with_interval(metrics: dict[str, float], num_pairs: int) -> dict[str, float]:
    """The metrics with the 95 % interval of the pair accuracy, where there is one."""
    if "pair_accuracy" not in metrics:
        return metrics
    low, high = wilson_interval(metrics["pair_accuracy"], num_pairs)
    return metrics | {"pair_accuracy_low": low, "pair_accuracy_high": high}


def _share_positive(values: torch.Tensor) -> float:
    """Share of values above zero; a zero counts half."""
    return ((values > 0).double() + 0.5 * (values == 0).double()).mean().item()
