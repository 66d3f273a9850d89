"""From the rewards of a group to one advantage per member: pure functions, one per name in ADVANTAGES.

Axes: _G member of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mint.errors import InvalidRequest, nearest_name

AdvantageFn = Callable[[Sequence[float]], list[float]]


def is_constant(rewards_G: Sequence[float]) -> bool:
    """True when all members of the group have exactly the same reward: such a group says nothing about the policy."""
    return all(reward == rewards_G[0] for reward in rewards_G)


def centred(rewards_G: Sequence[float]) -> list[float]:
    """A_i = r_i - mean(r), not divided by the standard deviation (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783).

    A constant group gives exact zeros, whatever the rounding of its mean.
    """
    _check_group(rewards_G)
    if is_constant(rewards_G):
        return [0.0] * len(rewards_G)
    mean_reward = sum(rewards_G) / len(rewards_G)
    return [reward - mean_reward for reward in rewards_G]


ADVANTAGES: dict[str, AdvantageFn] = {"centred": centred}


def get_advantage_fn(name: str) -> AdvantageFn:
    """The function of that name; InvalidRequest names the nearest one when there is none."""
    if name not in ADVANTAGES:
        known = ", ".join(sorted(ADVANTAGES))
        raise InvalidRequest(f"advantage={name!r} is unknown; choose one of {known}.{nearest_name(name, ADVANTAGES)}")
    return ADVANTAGES[name]


def _check_group(rewards_G: Sequence[float]) -> None:
    if len(rewards_G) < 2:
        raise InvalidRequest(f"group_size={len(rewards_G)}: advantages need at least 2 members; set group_size >= 2.")
