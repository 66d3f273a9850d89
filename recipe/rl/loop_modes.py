"""When sampling and training take turns: settings of the modes other than on-policy, and what a mode is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import chz

from mint.errors import InvalidRequest


@chz.chz(typecheck=True)
class StreamMinibatchConfig:
    """Train on a part of the batch as soon as it has been played, while the rest still plays."""

    # Parts of each substep's share of the groups.
    num_minibatches: int

    # typecheck=True checks types last; the rule below compares numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if self.num_minibatches < 1:
            raise InvalidRequest(f"stream_minibatch_config.num_minibatches={self.num_minibatches}: must be at least 1.")


@chz.chz(typecheck=True)
class AsyncConfig:
    """Sample the groups of later batches while training on those that are done."""

    # An update uses groups whose weights are at most this many iterations older than those that it changes.
    max_steps_off_policy: int

    # typecheck=True checks types last; the rule below compares numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if self.max_steps_off_policy < 1:
            raise InvalidRequest(
                f"async_config.max_steps_off_policy={self.max_steps_off_policy}: must be at least 1; for training on"
                " fresh samples alone leave async_config out."
            )


class LoopMode(ABC):
    """One way to run the iterations of a stage."""

    @abstractmethod
    async def run_iteration(self, iteration: int, metrics: dict[str, Any]) -> None:
        """One batch into the weights; `metrics` is filled on the way.

        Raises NonFiniteError for an update that was refused, EnvironmentFailed where too many environments failed.
        """

    def loop_state(self) -> dict[str, Any]:
        """What a checkpoint has to record of the mode itself."""
        return {}

    async def aclose(self) -> None:
        """End what the mode has under way. Nothing, unless a mode says otherwise."""
        return
