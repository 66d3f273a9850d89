"""KL to a reference policy as a term of the loss: Schulman's three estimators, finite whatever the logprobs.

With d = log pi(a|s) - log pi_ref(a|s) of a token drawn from pi (Schulman, "Approximating KL divergence", 2020):

    k1 = d                   slope in log pi   1              its expected gradient is zero: as a loss it does nothing
    k2 = d^2 / 2                               d              the gradient of KL(pi || pi_ref)
    k3 = exp(-d) - 1 + d                       1 - exp(-d)    the gradient of KL(pi_ref || pi)

The values of k1 and k3 average to KL(pi || pi_ref), that of k2 nearly so; the right-hand column is about the gradient,
which is all that a loss passes on (Tang and Munos 2025, arXiv:2506.09477). GRPO takes k3 (arXiv:2402.03300, eq. 4).

Axes: _T sampled token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Beyond exp(20), about 5e8 times as likely under the reference, k3 goes on as its tangent. Of the tokens that a policy
# draws at most one in 5e8 can be there.
MAX_LOG_RATIO = 20.0


def k1(log_ratios_T: Tensor) -> Tensor:
    """d."""
    return log_ratios_T


def k2(log_ratios_T: Tensor) -> Tensor:
    """d^2 / 2."""
    return 0.5 * log_ratios_T.square()


def k3(log_ratios_T: Tensor) -> Tensor:
    """exp(-d) - 1 + d, and its tangent at d = -20 for d below that, so that value and slope stay finite."""
    negated_T = -log_ratios_T
    inner_T = negated_T.clamp(max=MAX_LOG_RATIO)
    slope = math.expm1(MAX_LOG_RATIO)
    tangent_T = slope - MAX_LOG_RATIO + slope * (negated_T - MAX_LOG_RATIO)
    # A choice and not a sum: in a sum the tangent's large slope would cancel only up to rounding.
    return tangent_T.where(negated_T > MAX_LOG_RATIO, inner_T.expm1() - inner_T)


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_loss(estimator: str, trainer_logprobs_T: Tensor, reference_logprobs_T: Tensor) -> Tensor:
    """The estimator summed over the tokens given: a scalar that carries the gradient of trainer_logprobs_T."""
    return ESTIMATORS[estimator](trainer_logprobs_T - reference_logprobs_T).sum()
