"""What the methods of an environment must return: each check gives the value as the rest of the stage uses it.

A value of another type is a WrongType, a number that is not finite a NonFiniteError. Booleans and numpy scalars are
numbers.

Axes: _G member of a group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from mint import types
from mint.errors import NonFiniteError
from recipe.rl.env_calls import shown
from recipe.rl.types import Env, Metrics, Observation, StepResult, StopCondition, WrongType


def checked_envs(envs_G: Any) -> list[Env]:
    """The result of make_envs(): at least one Env."""
    if not isinstance(envs_G, Sequence) or not all(isinstance(env, Env) for env in envs_G):
        raise WrongType(f"returned {shown(envs_G)}; it must be a list of Env")
    if not envs_G:
        raise WrongType("returned no environments; it must return one for each member of the group")
    return list(envs_G)


def checked_first_prompt(result: Any) -> tuple[Observation, StopCondition]:
    """The result of initial_observation()."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise WrongType(f"returned {shown(result)}; it must be (observation, stop condition)")
    return _checked_prompt("the observation", result[0]), _checked_stop("the stop condition", result[1])


def checked_step(result: Any, num_tokens: int) -> StepResult:
    """The result of step() for an action of that many tokens, with plain numbers.

    Of the last step, the next observation is not looked at.
    """
    if not isinstance(result, StepResult):
        raise WrongType(f"returned {shown(result)}; it must be a StepResult")
    if not isinstance(result.episode_done, bool | np.bool_):
        raise WrongType(f"episode_done is {shown(result.episode_done)}; it must be a bool")
    if not result.episode_done:
        _checked_prompt("next_observation", result.next_observation)
        _checked_stop("next_stop_condition", result.next_stop_condition)
    reward = checked_number("reward", result.reward)
    return replace(
        result,
        reward=reward,
        episode_done=bool(result.episode_done),
        token_rewards=_checked_token_rewards(result.token_rewards, reward, num_tokens),
        metrics=checked_metrics(result.metrics),
        logs=_checked_logs(result.logs),
    )


def _checked_token_rewards(token_rewards: Any, reward: float, num_tokens: int) -> list[float] | None:
    if token_rewards is None:
        return None
    if not isinstance(token_rewards, Sequence):
        raise WrongType(f"token_rewards is {shown(token_rewards)}; it must be a list of numbers, or None")
    if len(token_rewards) != num_tokens:
        raise WrongType(
            f"{len(token_rewards)} token_rewards for an action of {num_tokens} tokens; return one for each, the stop"
            " token included"
        )
    numbers = [checked_number(f"token_rewards[{i}]", value) for i, value in enumerate(token_rewards)]
    if not math.isclose(math.fsum(numbers), reward, rel_tol=1e-6, abs_tol=1e-6):
        raise WrongType(
            f"the token_rewards sum to {math.fsum(numbers)} and the reward is {reward}; they spread the reward over the"
            " tokens, so their sum must be the reward"
        )
    return numbers


def checked_group_rewards(scored_G: Any, group_size: int) -> list[tuple[float, Metrics]]:
    """The result of compute_group_rewards() for a group of that size."""
    if not isinstance(scored_G, Sequence):
        raise WrongType(f"returned {shown(scored_G)}; it must be a list with (reward, metrics) for each member")
    if len(scored_G) != group_size:
        raise WrongType(f"returned {len(scored_G)} results for {group_size} members; return one each.")
    checked_G: list[tuple[float, Metrics]] = []
    for i_member, scored in enumerate(scored_G):
        if not isinstance(scored, Sequence) or len(scored) != 2:
            raise WrongType(f"member {i_member} has {shown(scored)}; it must be (reward, metrics)")
        reward, metrics = scored
        member = f"member {i_member}: "
        checked_G.append((checked_number(f"{member}reward", reward), checked_metrics(metrics, member)))
    return checked_G


def checked_tags(tags: Any) -> list[str]:
    """The result of logging_tags()."""
    if not isinstance(tags, Sequence) or isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise WrongType(f"returned {shown(tags)}; it must be a list of str")
    return list(tags)


def checked_number(name: str, value: Any) -> float:
    """A finite number as a float."""
    if not isinstance(value, Real | np.bool_):
        raise WrongType(f"{name} is {shown(value)}; it must be a number.")
    if not math.isfinite(value):
        raise NonFiniteError(f"{name} is {value}; it must be finite. Clamp it or fix the scoring.")
    return float(value)


def checked_metrics(metrics: Any, member: str = "") -> Metrics:
    """Finite numbers by name, as floats."""
    if not isinstance(metrics, dict) or not all(isinstance(name, str) for name in metrics):
        raise WrongType(f"{member}metrics is {shown(metrics)}; it must be a dict of numbers by name")
    return {name: checked_number(f"{member}{name}", value) for name, value in metrics.items()}


def _checked_logs(logs: Any) -> dict[str, str | int | float]:
    """Logs are only shown, so that numbers which JSON cannot hold become text."""
    if not isinstance(logs, dict):
        raise WrongType(f"logs is {shown(logs)}; it must be a dict of text and numbers by name")
    plain: dict[str, str | int | float] = {}
    for name, value in logs.items():
        value = value.item() if isinstance(value, np.generic) else value
        if not isinstance(name, str) or not isinstance(value, str | int | float):
            raise WrongType(f"logs has {name!r}: {shown(value)}; it must be text or a number by name")
        plain[name] = str(value) if isinstance(value, float) and not math.isfinite(value) else value
    return plain


def _checked_prompt(name: str, observation: Any) -> Observation:
    if not isinstance(observation, types.ModelInput):
        raise WrongType(f"{name} is {shown(observation)}; it must be a mint.types.ModelInput")
    if observation.length == 0:
        raise WrongType(f"{name} is empty; a prompt has at least one token")
    return observation


def _checked_stop(name: str, stop: Any) -> Any:
    is_list = isinstance(stop, Sequence) and not isinstance(stop, str)
    if not is_list or not any(all(isinstance(entry, kind) for entry in stop) for kind in (int, str)):
        raise WrongType(f"{name} is {shown(stop)}; it must be a list of token ids or of strings")
    return stop
