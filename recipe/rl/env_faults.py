"""What a run does when environments fail: the rule, and when there have been too many of them.

Axes: _P group of the batch (problem).
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Any, Literal

import chz

from mint.errors import InvalidRequest, MintError
from recipe.rl.types import RolloutBatch

logger = logging.getLogger(__name__)

_LOOP_STATE_KEY = "env_faults"


class EnvironmentFailed(MintError, RuntimeError):
    """An environment failed and the rule is to stop; the message says which one, where, and with what traceback."""


@chz.chz(typecheck=True)
class EnvFaultConfig:
    """The rule for an environment that raises, hangs, or returns a wrong type or a number that is not finite.

    By default its group is left out of the batch and the run goes on: an iteration costs far more to sample than one
    group is worth, and a tool that fails now and then should not end a run of days. Nothing is retried, because a group
    that fails on what the policy wrote would only be sampled again. A defect in an environment still shows at once: if
    no group comes through, the first iteration ends the run, and a defect that hits some groups ends it as soon as they
    are more than the share below. What is left out is not drawn at random, so the share should stay small.

    Failures of the engine and the policy, and groups that are too small, are no environment faults: they always stop.
    """

    # "drop" leaves the group out, "retry" plays it again first, with fresh environments and seeds; "stop" ends the run
    # at the first fault.
    on_fault: Literal["drop", "retry", "stop"] = "drop"
    # With "retry": attempts after the first one; a group that fails in all of them is dropped.
    max_retries: int = 2
    # Seconds that one call of an environment may take, scoring with a model included; None: no limit. High enough that
    # only what will never return meets it.
    deadline_s: float | None = 3600.0
    # Largest share of dropped groups in the window; more stop the run.
    max_failed_share: float = 0.1
    # The window: the latest iterations that together have this many groups. A run that has had fewer counts as if the
    # rest had been good. A window in which no group came through stops the run whatever the share.
    window_groups: int = 100

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        for name in ("max_retries", "window_groups"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"env_faults.{name}={getattr(self, name)}: must be at least 1.")
        if not 0 <= self.max_failed_share <= 1:
            raise InvalidRequest(f"env_faults.max_failed_share={self.max_failed_share}: must be between 0 and 1.")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise InvalidRequest(f"env_faults.deadline_s={self.deadline_s}: must be positive, or None for no limit.")

    @property
    def num_attempts(self) -> int:
        """How often a group is played at most."""
        return 1 + (self.max_retries if self.on_fault == "retry" else 0)


@dataclass(frozen=True)
class _IterationFaults:
    """What the window keeps of an iteration."""

    num_groups: int
    num_dropped: int
    first_cause: str | None


class FaultWindow:
    """The failed groups of the latest iterations. A checkpoint records it, so that a resumed run decides the same."""

    def __init__(self, config: EnvFaultConfig, loop_state: dict[str, Any] | None = None) -> None:
        """loop_state: that of the checkpoint a run goes on from."""
        self._config = config
        self._iterations = [_IterationFaults(**entry) for entry in (loop_state or {}).get(_LOOP_STATE_KEY, [])]

    def loop_state(self) -> dict[str, Any]:
        """What a checkpoint has to record."""
        return {_LOOP_STATE_KEY: [asdict(entry) for entry in self._iterations]}

    def add(self, rollouts: RolloutBatch, name: str) -> None:
        """Count a batch; EnvironmentFailed with the first cause where too many groups failed.

        name: what the batch is called in messages, such as "iteration_000012", as its file of rollouts is.
        """
        cause = None
        if rollouts.num_dropped > 0:
            first = rollouts.first_cause
            cause = f"{name}, {first.summary}\n{first.traceback}".rstrip()
            logger.warning(
                "%s: %d of %d groups were dropped, the first for: %s",
                name,
                rollouts.num_dropped,
                rollouts.num_groups,
                first.summary,
            )
        self._iterations.append(_IterationFaults(rollouts.num_groups, rollouts.num_dropped, cause))
        self._forget_the_old()
        self._check()

    def _forget_the_old(self) -> None:
        num_groups = sum(entry.num_groups for entry in self._iterations)
        while num_groups - self._iterations[0].num_groups >= self._config.window_groups:
            num_groups -= self._iterations.pop(0).num_groups

    def _check(self) -> None:
        config = self._config
        num_groups = sum(entry.num_groups for entry in self._iterations)
        num_dropped = sum(entry.num_dropped for entry in self._iterations)
        num_counted = max(num_groups, config.window_groups)
        if num_dropped == 0:
            return
        if num_dropped == num_groups:
            rule = "no group came through"
        elif num_dropped > config.max_failed_share * num_counted:
            rule = f"more than env_faults.max_failed_share={config.max_failed_share:g} of {num_counted} groups"
        else:
            return
        first_cause = next(entry.first_cause for entry in self._iterations if entry.first_cause is not None)
        raise EnvironmentFailed(
            f"environments failed in {num_dropped} of the last {num_groups} groups: {rule}. Every failed call is in the"
            f" run's rollouts; the first one was in {first_cause}"
        )
