"""Which reward each sampled token answers for, and what divides the loss of a sequence: pure functions.

Axes: _G member of a group, _K turn of an episode, _T sampled token of a turn. All lists are ragged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import chz

from mint.errors import InvalidRequest
from recipe.rl.advantages import AdvantageFn
from recipe.rl.types import Trajectory, TrajectoryGroup

LengthNorm = Literal["none", "constant", "sequence_mean", "group_token_mean"]


@chz.chz(typecheck=True)
class AdvantageConfig:
    """How the rewards of an episode reach its tokens, and how much a sequence counts by its length."""

    # "episode": every token answers for the whole reward. "turn": for the rewards from its own turn on. "token": for
    # those from the token itself on (of use where the environment gives token_rewards).
    credit: Literal["episode", "turn", "token"] = "episode"
    # Weight of a reward that comes one turn later (credit="token": one sampled token later), 0 to 1.
    discount: float = 1.0
    # Factor on a sequence's loss. "none": 1. "constant": 1 / max_tokens. "sequence_mean": 1 / tokens of the episode.
    # "group_token_mean": 1 / mean tokens of the group's episodes.
    length_norm: LengthNorm = "none"

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if not 0 <= self.discount <= 1:
            raise InvalidRequest(f"advantage_config.discount={self.discount}: must be from 0 to 1.")
        if self.discount != 1 and self.credit == "episode":
            raise InvalidRequest(
                f"advantage_config.discount={self.discount} with credit='episode': there a token answers for the whole"
                " reward, whenever it comes; set credit=turn (or token), or leave the discount at 1."
            )


def token_advantages(
    group: TrajectoryGroup, advantage_fn: AdvantageFn, config: AdvantageConfig
) -> list[list[list[float]]]:
    """advantages_GKT: one number for every sampled token of the group.

    Members are compared turn by turn: turn k of those that reach it, by what each has earned from there on. A member
    that gets further than all others is compared with nobody there, and those tokens have advantage 0.
    """
    if config.credit == "episode":
        advantages_G = advantage_fn(group.get_total_rewards()).advantages(group.get_total_rewards())
        return [
            [[advantage] * len(turn.ac.tokens) for turn in trajectory.transitions]
            for trajectory, advantage in zip(group.trajectories_G, advantages_G, strict=True)
        ]
    to_go = turn_returns if config.credit == "turn" else token_returns
    members = zip(group.trajectories_G, group.final_rewards_G, strict=True)
    returns_GKT = [to_go(trajectory, final_reward, config.discount) for trajectory, final_reward in members]
    compared_GKT: list[list[list[float]]] = [[] for _ in returns_GKT]
    for k in range(max((len(returns_KT) for returns_KT in returns_GKT), default=0)):
        reached = [i for i, returns_KT in enumerate(returns_GKT) if k < len(returns_KT)]
        # A turn without tokens still has a return: its first entry, see turn_returns.
        baseline = advantage_fn([returns_GKT[i][k][0] for i in reached]) if len(reached) > 1 else None
        for i_row, i_member in enumerate(reached):
            num_tokens = len(group.trajectories_G[i_member].transitions[k].ac.tokens)
            returns_T = returns_GKT[i_member][k][:num_tokens]
            compared_GKT[i_member].append(
                [0.0 if baseline is None else baseline.advantage(i_row, value) for value in returns_T]
            )
    return compared_GKT


def turn_returns(trajectory: Trajectory, final_reward: float, discount: float) -> list[list[float]]:
    """returns_KT with R_k = Σ_{j≥k} discount^(j−k)·r_j on every token of turn k.

    r_j is what turn j earned; the group's final reward counts to the last turn. Each list has at least one entry, also
    for a turn without tokens.
    """
    rewards_K = [turn.reward for turn in trajectory.transitions]
    if rewards_K:
        rewards_K[-1] += final_reward
    return [
        [value] * max(len(turn.ac.tokens), 1)
        for value, turn in zip(_discounted_sums(rewards_K, discount), trajectory.transitions, strict=True)
    ]


def token_returns(trajectory: Trajectory, final_reward: float, discount: float) -> list[list[float]]:
    """returns_KT with R_t = Σ_{s≥t} discount^(s−t)·r_s over the sampled tokens s of the whole episode, turn after turn.

    A turn's reward is spread as its token_rewards say, or else counts to its last token; the group's final reward
    counts to the last token of all.
    """
    rewards_KT = [
        list(turn.token_rewards) if turn.token_rewards else [0.0] * (len(turn.ac.tokens) - 1) + [turn.reward]
        for turn in trajectory.transitions
    ]
    if rewards_KT:
        rewards_KT[-1][-1] += final_reward
    values = iter(_discounted_sums([reward for rewards_T in rewards_KT for reward in rewards_T], discount))
    return [[next(values) for _ in rewards_T] for rewards_T in rewards_KT]


def length_factors(group: TrajectoryGroup, length_norm: LengthNorm, max_tokens: int) -> list[float]:
    """factors_G: what the loss of each member's tokens is multiplied with.

    max_tokens: the most tokens of a turn, of which only "constant" makes use.
    """
    tokens_G = [sum(len(turn.ac.tokens) for turn in trajectory.transitions) for trajectory in group.trajectories_G]
    return _FACTORS[length_norm](tokens_G, max_tokens)


_FACTORS: dict[LengthNorm, Callable[[Sequence[int], int], list[float]]] = {
    "none": lambda tokens_G, max_tokens: [1.0] * len(tokens_G),
    "constant": lambda tokens_G, max_tokens: [1.0 / max_tokens] * len(tokens_G),
    # An episode without sampled tokens has no sequence that a factor could apply to.
    "sequence_mean": lambda tokens_G, max_tokens: [1.0 / max(tokens, 1) for tokens in tokens_G],
    "group_token_mean": lambda tokens_G, max_tokens: [len(tokens_G) / max(sum(tokens_G), 1)] * len(tokens_G),
}


def _discounted_sums(values: Sequence[float], discount: float) -> list[float]:
    """Entry i is Σ_{j≥i} discount^(j−i)·values[j]."""
    sums: list[float] = []
    total = 0.0
    for value in reversed(values):
        total = value + discount * total
        sums.append(total)
    return sums[::-1]
