"""GSPO: the ratio of new to old policy is that of the whole reply, and is clipped as a whole.

Zheng et al. 2025, arXiv:2507.18071. With p and q the logprobs of trainer and sampler and |y| the sampled tokens of a
sequence, s = exp(mean over its tokens of p − q), and the loss of a sequence with one advantage A is
−min(s·A, clip(s, low, high)·A). Computed in the paper's token form (GSPO-token, section 4.3), which has the same value
and gradient where all tokens have one advantage, and where they do not (KL penalty, turn credit) gives each its own:
−1/|y| Σ_t min(s_t·A_t, clip(s_t, low, high)·A_t) with s_t = sg(s)·exp(p_t − sg(p_t)). sg stops the gradient.

Axes: _T sampled token of one sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from mint.errors import InvalidRequest, nearest_name

if TYPE_CHECKING:
    from torch import Tensor

# Bounds of s itself: 1 - 3e-4 and 1 + 4e-4, as in the paper's experiments. A ratio that is a geometric mean over the
# reply moves far less than that of one token.
GSPO_DEFAULTS: Mapping[str, float] = MappingProxyType({"clip_low_threshold": 0.9997, "clip_high_threshold": 1.0004})
# log s beyond this is held, so that s and with it the gradient stay finite.
MAX_LOG_RATIO = 20.0


def gspo_config(config: Mapping[str, float] | None) -> dict[str, float]:
    """Both of GSPO_DEFAULTS' settings, those of `config` in place of the defaults; InvalidRequest for any other."""
    given = dict(config or {})
    for key in given:
        if key not in GSPO_DEFAULTS:
            raise InvalidRequest(
                f"loss_fn_config has {key!r}, which loss_fn='gspo' does not know (it knows"
                f" {', '.join(GSPO_DEFAULTS)}).{nearest_name(key, GSPO_DEFAULTS)}"
            )
    settings = {**GSPO_DEFAULTS, **given}
    low, high = settings["clip_low_threshold"], settings["clip_high_threshold"]
    if not 0 <= low <= high:
        raise InvalidRequest(f"clip_low_threshold={low}, clip_high_threshold={high}: need 0 <= low <= high")
    return settings


def gspo(
    trainer_logprobs_T: Tensor, sampler_logprobs_T: Tensor, advantages_T: Tensor, config: Mapping[str, float]
) -> Tensor:
    """The loss of one sequence, given its sampled tokens: a scalar that carries the gradient of trainer_logprobs_T.

    config: as gspo_config gives it.
    """
    fixed_T = trainer_logprobs_T.detach()
    log_ratio = (fixed_T - sampler_logprobs_T).mean().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratios_T = log_ratio.exp() * (trainer_logprobs_T - fixed_T).exp()
    clipped_T = ratios_T.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -(ratios_T * advantages_T).minimum(clipped_T * advantages_T).mean()
