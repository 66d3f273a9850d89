"""The Bradley-Terry model of preferences: P(chosen ≻ rejected) = σ(r_chosen − r_rejected).

Pure functions of reward tensors. Axes: _N preference pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F


def bradley_terry(chosen_rewards_N: torch.Tensor, rejected_rewards_N: torch.Tensor) -> torch.Tensor:
    """losses_N = −log σ(r_chosen − r_rejected), finite with a finite gradient at any finite margin.

    The gradient with respect to the margin is −σ(−margin): a pair the model already orders well hardly counts.
    Bradley and Terry (1952); as a loss for reward models, Christiano et al. (2017).
    """
    return -F.logsigmoid(_margins(chosen_rewards_N, rejected_rewards_N))


@dataclass(frozen=True)
class PairStatistics:
    """How well rewards order N pairs."""

    # Mean Bradley-Terry loss.
    loss: float
    # Share of pairs with a positive margin; a margin of exactly zero counts half.
    accuracy: float
    # Mean of r_chosen − r_rejected.
    mean_margin: float
    num_pairs: int


def pair_statistics(chosen_rewards_N: torch.Tensor, rejected_rewards_N: torch.Tensor) -> PairStatistics:
    """Loss, accuracy and margin of N >= 1 pairs, without gradient."""
    chosen_N, rejected_N = chosen_rewards_N.detach(), rejected_rewards_N.detach()
    margins_N = _margins(chosen_N, rejected_N)
    is_ordered_N = (margins_N > 0).double() + 0.5 * (margins_N == 0).double()
    return PairStatistics(
        loss=bradley_terry(chosen_N, rejected_N).mean().item(),
        accuracy=is_ordered_N.mean().item(),
        mean_margin=margins_N.mean().item(),
        num_pairs=margins_N.numel(),
    )


def wilson_interval(share: float, num_trials: float, z: float = 1.959964) -> tuple[float, float]:
    """Low and high end of the interval for a share observed in `num_trials` trials (Wilson 1927); z = 1.96 is 95 %.

    Unlike share ± z·σ it stays inside [0, 1] and is right for few trials and shares near 0 and 1.
    """
    assert num_trials > 0, "an interval needs at least one trial"
    centre = (share + z * z / (2 * num_trials)) / (1 + z * z / num_trials)
    spread = math.sqrt(share * (1 - share) / num_trials + z * z / (4 * num_trials**2))
    half_width = z * spread / (1 + z * z / num_trials)
    return max(0.0, centre - half_width), min(1.0, centre + half_width)


def _margins(chosen_rewards_N: torch.Tensor, rejected_rewards_N: torch.Tensor) -> torch.Tensor:
    assert chosen_rewards_N.shape == rejected_rewards_N.shape and chosen_rewards_N.ndim == 1, (
        f"one reward per reply: {tuple(chosen_rewards_N.shape)} chosen, {tuple(rejected_rewards_N.shape)} rejected"
    )
    return chosen_rewards_N - rejected_rewards_N
