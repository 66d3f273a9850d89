"""Learning-rate schedules: pure functions of the step."""

from __future__ import annotations

import math
from typing import Literal, Protocol, get_args

from mint.errors import InvalidRequest, nearest_name

LRSchedule = Literal["constant", "linear", "cosine"]


def learning_rate_at(step: int, num_steps: int, peak: float, schedule: LRSchedule, warmup_steps: int = 0) -> float:
    """The learning rate of optimizer step `step` (0-based) in a run of `num_steps`.

    Warm-up rises in equal parts and reaches `peak` at its last step: step i has peak·(i + 1)/warmup_steps. After it,
    with p = (step − warmup_steps)/(num_steps − warmup_steps), "constant" stays at peak, "linear" is peak·(1 − p) and
    "cosine" is peak·(1 + cos πp)/2. The first step after warm-up is at peak and no step of the run is at zero, so a
    run of one step learns. A warm-up longer than the run is cut off by its end.
    """
    if schedule not in get_args(LRSchedule):
        raise InvalidRequest(
            f"lr_schedule={schedule!r}: must be one of {', '.join(get_args(LRSchedule))}."
            f"{nearest_name(str(schedule), get_args(LRSchedule))}"
        )
    if warmup_steps < 0:
        raise InvalidRequest(f"warmup_steps={warmup_steps}: must not be negative")
    if not 0 <= step < num_steps:
        raise InvalidRequest(f"step={step}: must be in [0, num_steps={num_steps})")
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / (num_steps - warmup_steps)
    if schedule == "linear":
        return peak * (1 - progress)
    if schedule == "cosine":
        return peak * (1 + math.cos(math.pi * progress)) / 2
    return peak


class HasLearningRate(Protocol):
    """The three fields by which a stage's Config sets its learning rate."""

    @property
    def learning_rate(self) -> float:
        """Highest learning rate of the run."""
        ...

    @property
    def lr_schedule(self) -> LRSchedule:
        """See `learning_rate_at`."""
        ...

    @property
    def warmup_steps(self) -> int:
        """See `learning_rate_at`."""
        ...


def scheduled_learning_rate(config: HasLearningRate, step: int, num_steps: int) -> float:
    """`learning_rate_at` with a stage's settings."""
    return learning_rate_at(step, num_steps, config.learning_rate, config.lr_schedule, config.warmup_steps)


def check_learning_rate(config: HasLearningRate) -> None:
    """Raise InvalidRequest for settings that no schedule can use."""
    for name in ("learning_rate", "warmup_steps"):
        if not getattr(config, name) >= 0:
            raise InvalidRequest(f"{name}={getattr(config, name)}: must not be negative")
