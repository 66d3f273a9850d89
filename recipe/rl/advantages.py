"""From the rewards of a group to one advantage per member: pure functions, one per name in ADVANTAGES.

An advantage is scale · (reward − baseline); the functions differ in the baseline and the scale. docs/losses.md has the
formulas and the papers. What else distinguishes one paper from another, which token answers for which reward and what
divides the loss, is in `credit`.

Axes: _G member of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mint.errors import InvalidRequest, nearest_name

# Keeps rewards that differ by rounding alone from being blown up to advantages of about 1.
STANDARD_DEVIATION_FLOOR = 1e-6


@dataclass(frozen=True)
class Baseline:
    """What the rewards of a group are held against, a number for each member, and the scale of the difference."""

    baselines_G: list[float]
    scale: float = 1.0

    def advantage(self, i_member: int, reward: float) -> float:
        """The advantage of a reward of that member."""
        return self.scale * (reward - self.baselines_G[i_member])

    def advantages(self, rewards_G: Sequence[float]) -> list[float]:
        """The advantage of each member's reward."""
        assert len(rewards_G) == len(self.baselines_G), f"{len(rewards_G)} rewards, {len(self.baselines_G)} baselines"
        return [self.advantage(i_member, reward) for i_member, reward in enumerate(rewards_G)]


AdvantageFn = Callable[[Sequence[float]], Baseline]


def is_constant(rewards_G: Sequence[float]) -> bool:
    """True when all members of the group have exactly the same reward: such a group says nothing about the policy."""
    return all(reward == rewards_G[0] for reward in rewards_G)


def centred(rewards_G: Sequence[float]) -> Baseline:
    """A_i = r_i − mean(r), not divided by the standard deviation (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783)."""
    _check_group(rewards_G)
    return Baseline([_mean(rewards_G)] * len(rewards_G))


def standardised(rewards_G: Sequence[float]) -> Baseline:
    """A_i = (r_i − mean(r)) / (std(r) + 1e-6), std over the group with 1/G (GRPO, Shao et al. 2024, arXiv:2402.03300).

    Every group that is not constant then has the same say, however little its rewards differ.
    """
    _check_group(rewards_G)
    mean_reward = _mean(rewards_G)
    # hypot scales as it goes, so that squares of very large or very small rewards neither overflow nor vanish.
    std = math.hypot(*(reward - mean_reward for reward in rewards_G)) / math.sqrt(len(rewards_G))
    return Baseline([mean_reward] * len(rewards_G), 1.0 / (std + STANDARD_DEVIATION_FLOOR))


def leave_one_out(rewards_G: Sequence[float]) -> Baseline:
    """A_i = r_i − mean of the other members' r (RLOO, Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740).

    The baseline does not depend on the member's own reply, so the gradient is unbiased. It is G / (G − 1) times
    `centred`: with groups of one size the same update under Adam.
    """
    _check_group(rewards_G)
    return Baseline([_mean([*rewards_G[:i], *rewards_G[i + 1 :]]) for i in range(len(rewards_G))])


ADVANTAGES: dict[str, AdvantageFn] = {
    "centred": centred,
    "standardised": standardised,
    "leave_one_out": leave_one_out,
}


def get_advantage_fn(name: str) -> AdvantageFn:
    """The function of that name; InvalidRequest names the nearest one when there is none."""
    if name not in ADVANTAGES:
        known = ", ".join(sorted(ADVANTAGES))
        raise InvalidRequest(f"advantage={name!r} is unknown; choose one of {known}.{nearest_name(name, ADVANTAGES)}")
    return ADVANTAGES[name]


def _mean(rewards: Sequence[float]) -> float:
    """The mean, and of equal numbers exactly that number, so that constant groups have advantages of exactly zero."""
    return rewards[0] if is_constant(rewards) else sum(rewards) / len(rewards)


def _check_group(rewards_G: Sequence[float]) -> None:
    if len(rewards_G) < 2:
        raise InvalidRequest(f"group_size={len(rewards_G)}: advantages need at least 2 members; set group_size >= 2.")
