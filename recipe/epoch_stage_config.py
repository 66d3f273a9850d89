"""Settings that every stage with passes over a fixed set of examples has."""

from __future__ import annotations

import chz

from mint.errors import InvalidRequest
from recipe.metric_loggers import check_loggers
from recipe.numeric_faults import NonFiniteConfig
from recipe.optimizer_config import AdamConfig
from recipe.schedules import LRSchedule, check_learning_rate


@chz.chz(typecheck=True)
class EpochStageConfig:
    """A run from a model to its last checkpoint, over examples that do not change; stages add what they train on."""

    # Folder of the run. Started again on the same folder, a run goes on where its last checkpoint was saved.
    log_path: str
    # "mint-tiny", a local folder or a hub id.
    model_name: str = "mint-tiny"
    # None: the one recommended for the model.
    renderer_name: str | None = None
    # mint:// path of a state to start from: its weights, with a fresh optimizer. None: a new adapter.
    load_checkpoint_path: str | None = None
    lora_rank: int = 32
    # Adam's highest step size.
    learning_rate: float = 1e-4
    # How it falls over the run: "constant", "linear" or "cosine".
    lr_schedule: LRSchedule = "linear"
    # Steps over which it first rises to its highest.
    warmup_steps: int = 0
    # Adam, the learning rate aside.
    optimizer: AdamConfig = chz.field(default_factory=AdamConfig)
    num_epochs: int = 1
    # Stop after this many steps; the learning rate is scheduled over the steps that are run. None: all epochs.
    max_steps: int | None = None
    # Steps between evaluations; one before the first step and one after the last are always made. 0: only those.
    eval_every: int = 0
    # Steps between checkpoints; the final one is always saved. 0: only that.
    save_every: int = 0
    # How long periodic checkpoints are kept, in seconds; the final one stays. None: for good.
    ttl_seconds: int | None = None
    # What happens when a loss or gradient is not finite.
    non_finite: NonFiniteConfig = chz.field(default_factory=NonFiniteConfig)
    # Where metrics go beside metrics.jsonl: "tensorboard", "wandb", "trackio".
    loggers: tuple[str, ...] = ()
    # Everything random follows from this, such as the new adapter and the order of the data.
    seed: int = 0

    # typecheck=True checks types last; the rules below compare values.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _ranges(self) -> None:
        check_loggers(self.loggers)
        check_learning_rate(self)
        lowest = {"lora_rank": 1, "num_epochs": 1, "max_steps": 1, "ttl_seconds": 1, "eval_every": 0, "save_every": 0}
        for name, minimum in lowest.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise InvalidRequest(f"{name}={value}: must be at least {minimum}")
        if self.ttl_seconds is not None and self.save_every == 0:
            raise InvalidRequest(
                f"ttl_seconds={self.ttl_seconds} with save_every=0: only periodic checkpoints have a time to live; "
                "set save_every, or leave ttl_seconds out"
            )
