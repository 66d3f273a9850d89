"""What a training loop does when a step is refused because a loss or gradient is not finite.

The engine changes nothing in such a step: weights and optimizer are those of the step before. The loop then stops, or
leaves the batch out, or goes back to its last checkpoint and on from there with the next batch, as one does after a
spike in the loss (PaLM, arXiv:2204.02311, section 5.1).
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import chz

from mint import types
from mint.errors import CheckpointError, InvalidRequest, NonFiniteError, NotFound
from recipe.checkpoint_utils import CheckpointRecord, RunIdentity, load_records, save_checkpoint

if TYPE_CHECKING:
    import mint

logger = logging.getLogger(__name__)

_LOOP_STATE_KEY = "num_refused_steps"


@chz.chz(typecheck=True)
class NonFiniteConfig:
    """The rule for a step whose loss or gradient is not finite."""

    # "stop" ends the run with the error, "skip" leaves the batch out, "roll_back" also takes weights and optimizer of
    # the last checkpoint.
    action: Literal["stop", "skip", "roll_back"] = "stop"
    # Refused steps of a run after which it stops all the same.
    max_refused: int = 10

    # typecheck=True checks types last; the rule below compares numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if self.max_refused < 1:
            raise InvalidRequest(
                f"non_finite.max_refused={self.max_refused}: must be at least 1; to stop at the first refused step, "
                "set non_finite.action=stop"
            )


class NumericFaults:
    """Applies the rule for one run and counts its refused steps; the count is part of what a checkpoint records."""

    def __init__(self, config: NonFiniteConfig, client: mint.TrainingClient, log_path: str | Path) -> None:
        self._config = config
        self._client = client
        self._log_path = log_path
        self._num_refused = 0

    @classmethod
    async def open(
        cls,
        config: NonFiniteConfig,
        client: mint.TrainingClient,
        log_path: str | Path,
        identity: RunIdentity,
        record: CheckpointRecord | None,
    ) -> NumericFaults:
        """For a new run, or for one resumed from `record`. A new run that may roll back saves where it starts."""
        faults = cls(config, client, log_path)
        if record is not None:
            faults._num_refused = int(record.loop_state.get(_LOOP_STATE_KEY, 0))
        elif config.action == "roll_back":
            await save_checkpoint(client, f"{0:06d}", log_path, step=0, identity=identity)
        return faults

    def loop_state(self) -> dict[str, Any]:
        """What a checkpoint has to record: nothing, as long as no step was refused."""
        return {_LOOP_STATE_KEY: self._num_refused} if self._num_refused else {}

    async def handle(self, error: NonFiniteError, step: int) -> dict[str, float]:
        """The metrics of the refused step `step`; raises NonFiniteError where the rule is to stop."""
        if self._config.action == "stop":
            raise NonFiniteError(
                f"step {step}: {error}. The checkpoints so far are good; to leave such a batch out and go on, start "
                "again with non_finite.action=skip (or roll_back)"
            ) from error
        self._num_refused += 1
        if self._num_refused > self._config.max_refused:
            raise NonFiniteError(
                f"step {step}: {error}. {self._num_refused} steps of this run were refused, more than "
                f"non_finite.max_refused={self._config.max_refused}; lower the learning rate or look at the data"
            ) from error
        metrics = {"faults/refused_steps": float(self._num_refused)}
        if self._config.action == "skip":
            logger.warning("step %d: %s; the batch is left out", step, error)
            return metrics
        record = await self._load_last_checkpoint(step)
        logger.warning("step %d: %s; going on from checkpoint %r of step %d", step, error, record.name, record.step)
        return {**metrics, "faults/rolled_back_to_step": float(record.step)}

    async def _load_last_checkpoint(self, step: int) -> CheckpointRecord:
        """The newest checkpoint up to `step` that can be loaded, into the client."""
        problems: list[Exception] = []
        for record in reversed(load_records(self._log_path)):
            if record.state_path is None or record.step > step:
                continue
            try:
                await self._client.load_state_with_optimizer(record.state_path)
                return record
            except (CheckpointError, NotFound) as problem:
                logger.warning("checkpoint %r of step %d is not used: %s", record.name, record.step, problem)
                problems.append(problem)
        newest = problems[0] if problems else f"{self._log_path} has recorded none"
        raise CheckpointError(f"step {step} was refused and there is no checkpoint to roll back to: {newest}")


async def step_outcome(
    backward: mint.APIFuture[types.ForwardBackwardOutput], optim_step: mint.APIFuture[types.OptimStepResponse]
) -> tuple[types.ForwardBackwardOutput, types.OptimStepResponse]:
    """Both answers of a submitted step; NonFiniteError where it was refused, or where a metric is not finite."""
    output = await backward
    response = await optim_step
    check_finite(output)
    return output, response


def check_finite(output: types.ForwardBackwardOutput) -> None:
    """NonFiniteError for an answer with a metric that is not finite.

    The embedded engine refuses such a request. A server may have taken it: rolling back is the rule that helps there.
    """
    bad = {name: value for name, value in output.metrics.items() if not math.isfinite(value)}
    if bad:
        named = ", ".join(f"{name}={value}" for name, value in bad.items())
        raise NonFiniteError(f"the request was taken although {named}")
