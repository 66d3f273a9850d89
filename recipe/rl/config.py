"""Settings of a run of reinforcement learning."""

from __future__ import annotations

import chz

from mint.errors import InvalidRequest
from recipe.lora_targets import LoraTargets
from recipe.metric_loggers import check_loggers
from recipe.numeric_faults import NonFiniteConfig
from recipe.optimizer_config import AdamConfig
from recipe.rl.advantages import get_advantage_fn
from recipe.rl.credit import AdvantageConfig
from recipe.rl.env_faults import EnvFaultConfig
from recipe.rl.kl import KLReferenceConfig
from recipe.rl.kl_coefficient import KLPenaltyConfig, check_kl_penalty
from recipe.rl.loop_modes import AsyncConfig, StreamMinibatchConfig
from recipe.rl.policy_update import PolicyLoss
from recipe.rl.types import RLDatasetBuilder
from recipe.schedules import LRSchedule, check_learning_rate


@chz.chz(typecheck=True)
class Config:
    """A run. The names are MinT's; `optimizer`, `eval_temperature` and `seed` are added."""

    # Base model: "mint-tiny", a local folder or a hub id.
    model_name: str
    # Makes the groups of environments to train on and to be tested on; the renderer is its affair.
    dataset_builder: RLDatasetBuilder
    # Folder of the run; an existing run in it is resumed.
    log_path: str
    # Adam's highest step size.
    learning_rate: float
    # Most tokens sampled in one turn.
    max_tokens: int
    # Sampling temperature of training; the loss is taken at the same temperature where the backend can.
    temperature: float = 1.0
    # How the learning rate falls over the iterations: "constant", "linear" or "cosine".
    lr_schedule: LRSchedule = "constant"
    # Iterations over which it first rises to its highest.
    warmup_steps: int = 0
    # Rank of the LoRA adapter.
    lora_rank: int = 32
    # Which matrices a new adapter is on.
    lora_targets: LoraTargets = chz.field(default_factory=LoraTargets)
    # mint:// path of weights to start from, with a fresh optimizer; None draws a new adapter.
    load_checkpoint_path: str | None = None
    # How the rewards of a group become advantages: one of advantages.ADVANTAGES.
    advantage: str = "centred"
    # Which token answers for which reward, and how a sequence counts by its length.
    advantage_config: AdvantageConfig = chz.field(default_factory=AdvantageConfig)
    # One of policy_update.POLICY_LOSSES.
    loss_fn: str = "importance_sampling"
    # Settings of that loss, such as {"clip_low_threshold": 0.8}.
    loss_fn_config: dict[str, float] | None = None
    # Train on the groups that are done while others still play; None: when all are done.
    stream_minibatch_config: StreamMinibatchConfig | None = None
    # Play the groups of later batches while training; None: sample with the current weights only.
    async_config: AsyncConfig | None = None
    # Optimizer steps per iteration, each on its share of the batch.
    num_substeps: int = 1
    # Adam, the learning rate aside.
    optimizer: AdamConfig = chz.field(default_factory=AdamConfig)
    # Cost of one nat of KL per token; 0 means none.
    kl_penalty_coef: float = 0.0
    # What KL is measured against; given with a coefficient of 0, KL is reported only.
    kl_reference_config: KLReferenceConfig | None = None
    # Whether that cost is in the advantages or in the loss, and whether its coefficient adapts.
    kl_penalty_config: KLPenaltyConfig = chz.field(default_factory=KLPenaltyConfig)
    # Leave groups whose members all have the same reward out of the update.
    remove_constant_reward_groups: bool = False
    # Iterations at most; None means every batch of the dataset once.
    max_steps: int | None = None
    # Evaluate before every such iteration and at the end; 0 means never.
    eval_every: int = 20
    # Sampling temperature of evaluation; 0 is argmax.
    eval_temperature: float = 1.0
    # Save after every such iteration; 0 means only at the end.
    save_every: int = 20
    # Life of checkpoints other than the last one; None means for good.
    ttl_seconds: int | None = None
    # Groups per iteration written as text beside the exported rollouts.
    num_groups_to_log: int = 4
    # Write rollouts/iteration_000012.jsonl and rollouts/test_000012.jsonl.
    rollout_json_export: bool = True
    # Server; None means MINT_BASE_URL, and without that the embedded engine.
    base_url: str | None = None
    # What happens when a loss or gradient is not finite.
    non_finite: NonFiniteConfig = chz.field(default_factory=NonFiniteConfig)
    # What happens when an environment fails.
    env_faults: EnvFaultConfig = chz.field(default_factory=EnvFaultConfig)
    # Where metrics go beside metrics.jsonl: "tensorboard", "wandb", "trackio".
    loggers: tuple[str, ...] = ()
    # Of the new adapter and of every rollout.
    seed: int = 0

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        get_advantage_fn(self.advantage)
        PolicyLoss(self.loss_fn, self.loss_fn_config).check(self.temperature, self.advantage_config.length_norm)
        check_loggers(self.loggers)
        check_learning_rate(self)
        at_least_one = {"max_tokens": self.max_tokens, "lora_rank": self.lora_rank, "num_substeps": self.num_substeps}
        if self.max_steps is not None:
            at_least_one["max_steps"] = self.max_steps
        for name, value in at_least_one.items():
            if value < 1:
                raise InvalidRequest(f"{name}={value}: must be at least 1.")
        for name in ("eval_every", "save_every", "num_groups_to_log", "eval_temperature"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name}={getattr(self, name)}: must not be negative.")
        if self.temperature <= 0:
            raise InvalidRequest(
                f"temperature={self.temperature}: must be positive; at temperature 0 all members of a group would be "
                "the same."
            )
        check_kl_penalty(self.kl_penalty_coef, self.kl_reference_config, self.kl_penalty_config, self.temperature)
        if self.stream_minibatch_config is not None and self.async_config is not None:
            raise InvalidRequest("stream_minibatch_config and async_config are both set; choose one of the two modes.")
        if "temperature" in (self.loss_fn_config or {}):
            raise InvalidRequest("loss_fn_config has 'temperature'; set the config's own temperature instead.")
