"""Policy losses that the API has no name for, as functions of the logprobs: GSPO, and any loss with KL added to it.

Axes: _T target token, _D training sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from mint import types
from mint.custom_losses import couples_only_within, reads_weighted_tokens
from mint.token_losses import token_losses
from recipe.rl.datums import TrainingSequence
from recipe.rl.gspo import gspo, gspo_config
from recipe.rl.kl_loss import kl_loss

if TYPE_CHECKING:
    from torch import Tensor

    CustomLoss = Callable[[list[types.Datum], list[Tensor]], tuple[Tensor, dict[str, float]]]

# The names under which the two parts come back.
TOTAL_LOSS_KEY = "total_loss:sum"
KL_LOSS_KEY = "kl_loss:sum"


def custom_policy_loss(
    sequences_D: Sequence[TrainingSequence],
    loss_fn: str,
    loss_fn_config: Mapping[str, float] | None,
    kl_estimator: str | None = None,
    kl_coef: float = 0.0,
) -> CustomLoss:
    """What forward_backward_custom takes for these sequences: Σ_D policy loss + kl_coef · loss_factor · Σ_T estimator.

    kl_estimator: "k1", "k2" or "k3", for which every sequence needs its reference_logprobs_T; None leaves KL out.
    """

    # The weight of a datum is one where `is_sampled_T` is true, and zero elsewhere.
    @couples_only_within(range(len(sequences_D)))
    @reads_weighted_tokens
    def loss(datums_D: list[types.Datum], trainer_logprobs_D: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        import torch

        total, kl_total = torch.zeros(()), torch.zeros(())
        for sequence, trainer_logprobs_T in zip(sequences_D, trainer_logprobs_D, strict=True):
            # At the other targets trainer and sampler have nothing to compare.
            is_sampled_T = torch.from_numpy(sequence.is_sampled_T)
            own_T = trainer_logprobs_T[is_sampled_T]
            inputs = {
                "logprobs": torch.from_numpy(sequence.sampler_logprobs_T)[is_sampled_T],
                "advantages": torch.from_numpy(sequence.advantages_T)[is_sampled_T] * sequence.loss_factor,
                "weights": torch.ones_like(own_T),
            }
            if loss_fn == "gspo":
                total = total + gspo(own_T, inputs["logprobs"], inputs["advantages"], gspo_config(loss_fn_config))
            else:
                total = total + token_losses(loss_fn, own_T, inputs, loss_fn_config).sum()
            if kl_estimator is not None:
                assert sequence.reference_logprobs_T is not None, "KL in the loss needs the reference's logprobs"
                reference_T = torch.from_numpy(sequence.reference_logprobs_T)[is_sampled_T]
                kl_total = kl_total + sequence.loss_factor * kl_loss(kl_estimator, own_T, reference_T)
        kl_total = kl_coef * kl_total
        return total + kl_total, {TOTAL_LOSS_KEY: (total + kl_total).item(), KL_LOSS_KEY: kl_total.item()}

    return loss
