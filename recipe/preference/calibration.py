"""How far to trust a margin: one temperature, fitted so that P(chosen ≻ rejected) = σ(margin / temperature).

Guo et al. 2017, "On Calibration of Modern Neural Networks", arXiv:1706.04599, section 4.2, for the two-class case. The
temperature changes no ranking. Pure functions in float64. Axes: _N preference pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mint.seeds import derive_seed

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 1e-3, 1e3
_NUM_BISECTIONS = 80


@dataclass(frozen=True)
class Calibration:
    """temperature: fitted on all pairs, for use on others. cross_fitted_N: the temperature for each of these pairs,
    fitted on the half of the prompts that it is not in."""

    temperature: float
    cross_fitted_N: torch.Tensor


def fit_temperature(margins_N: torch.Tensor) -> float:
    """The temperature at which these margins, chosen less rejected, are most likely.

    Minimises the mean of -(1 - e)·log σ(m/T) - e·log σ(-m/T) with e = 1/(N + 2), the target of Platt 1999
    ("Probabilistic outputs for support vector machines") in place of 1: without it N pairs in good order would ask for
    T = 0. HIGHEST_TEMPERATURE where the margins are no better than chance; 1 where all are 0 or there are none.
    """
    margins_N = margins_N.detach().double()
    if margins_N.numel() == 0 or not bool((margins_N != 0).any()):
        return 1.0
    doubt = 1.0 / (margins_N.numel() + 2)

    def slope(inverse: float) -> float:
        """Of the objective in 1/T, in which it is convex."""
        return (margins_N * (torch.sigmoid(inverse * margins_N) - (1.0 - doubt))).mean().item()

    low, high = math.log(1.0 / HIGHEST_TEMPERATURE), math.log(1.0 / LOWEST_TEMPERATURE)
    for _ in range(_NUM_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(math.exp(middle)) > 0 else (middle, high)
    return math.exp(-(low + high) / 2)


def calibrate(margins_N: torch.Tensor, prompts_N: Sequence[str]) -> Calibration | None:
    """Temperatures for pairs with these margins and prompts; None for fewer than two prompts, which cannot be halved.

    No pair's own prompt is in the fit of its cross-fitted temperature, so what is measured with it is honest. Halves
    follow from the prompts' text: neither order nor seed of a run matters.
    """
    is_second_half_N = prompt_halves(prompts_N)
    if len(set(is_second_half_N)) < 2:
        return None
    second_N = torch.tensor(is_second_half_N)
    cross_fitted_N = torch.empty(len(prompts_N), dtype=torch.float64)
    cross_fitted_N[second_N] = fit_temperature(margins_N[~second_N])
    cross_fitted_N[~second_N] = fit_temperature(margins_N[second_N])
    return Calibration(fit_temperature(margins_N), cross_fitted_N)


def prompt_halves(prompts_N: Sequence[str]) -> list[bool]:
    """True for the pairs of every second prompt in an order drawn from the prompts' text."""
    drawn = sorted(set(prompts_N), key=lambda prompt: (derive_seed("calibration half", prompt), prompt))
    second_half = set(drawn[1::2])
    return [prompt in second_half for prompt in prompts_N]


def calibration_metrics(margins_N: torch.Tensor, calibration: Calibration, prefix: str = "test/") -> dict[str, float]:
    """temperature, and calibrated_loss: the Bradley-Terry loss of σ(m/T) with the cross-fitted temperatures."""
    losses_N = -F.logsigmoid(margins_N.double() / calibration.cross_fitted_N)
    return {f"{prefix}temperature": calibration.temperature, f"{prefix}calibrated_loss": losses_N.mean().item()}
