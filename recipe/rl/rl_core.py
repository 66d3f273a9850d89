"""The short way into reinforcement learning: `run_grpo(adapter, cfg)`, on the same loop as `recipe.rl.train`.

    class Sums(RLAdapter): ...

    run_grpo(Sums(), RLConfig(group_size=8))

docs/run_grpo.md has an adapter that runs. What is not a setting here (evaluation, schedules, several turns, other
modes of the loop) is one in `recipe.rl.train`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Any

import chz

import mint
from mint.errors import InvalidRequest
from recipe.command_line import parse_config
from recipe.environment_defaults import EnvironmentDefault
from recipe.lora_targets import LoraTargets
from recipe.optimizer_config import AdamConfig
from recipe.rl import train
from recipe.rl.adapter_dataset import AdapterDatasetBuilder, RLAdapter
from recipe.rl.kl import KLReferenceConfig

logger = logging.getLogger(__name__)

__all__ = ["RLAdapter", "RLConfig", "run_grpo", "run_grpo_async"]

_FROM_ENVIRONMENT: dict[str, EnvironmentDefault[Any]] = {
    "base_model": EnvironmentDefault("MINT_BASE_MODEL", "mint-tiny"),
    "rank": EnvironmentDefault("MINT_LORA_RANK", 16),
    "steps": EnvironmentDefault("MINT_RL_STEPS", 5),
    "batch_size": EnvironmentDefault("MINT_RL_BATCH", 8),
    "group_size": EnvironmentDefault("MINT_RL_GROUP", 4),
    "learning_rate": EnvironmentDefault("MINT_RL_LR", 2e-5),
    "max_tokens": EnvironmentDefault("MINT_RL_MAX_TOKENS", 16),
    "temperature": EnvironmentDefault("MINT_RL_TEMPERATURE", 0.8),
}


@chz.chz(typecheck=True)
class RLConfig:
    """Settings of run_grpo.

    Where a setting is given in several places, an argument in the script counts before the command line, that before
    the environment variable named here beside the setting, and that before the default.
    """

    # "mint-tiny" (in the package), a local folder or a hub id. MINT_BASE_MODEL
    base_model: str = chz.field(default_factory=_FROM_ENVIRONMENT["base_model"])
    # Rank of the LoRA adapter. MINT_LORA_RANK
    rank: int = chz.field(default_factory=_FROM_ENVIRONMENT["rank"])
    # Whether the adapter is on the MLPs, on attention and on the projection to the vocabulary.
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True
    # Steps of training, each with new replies. MINT_RL_STEPS
    steps: int = chz.field(default_factory=_FROM_ENVIRONMENT["steps"])
    # Samples, that is groups, per step. MINT_RL_BATCH
    batch_size: int = chz.field(default_factory=_FROM_ENVIRONMENT["batch_size"])
    # Replies per sample, compared with each other. MINT_RL_GROUP
    group_size: int = chz.field(default_factory=_FROM_ENVIRONMENT["group_size"])
    # Most tokens of a reply. MINT_RL_MAX_TOKENS
    max_tokens: int = chz.field(default_factory=_FROM_ENVIRONMENT["max_tokens"])
    # Sampling temperature. MINT_RL_TEMPERATURE
    temperature: float = chz.field(default_factory=_FROM_ENVIRONMENT["temperature"])
    # One of policy_update.POLICY_LOSSES.
    loss_fn: str = "importance_sampling"
    # One of advantages.ADVANTAGES.
    advantage: str = "centred"
    # Cost of one nat of KL per token to where training starts: the base model, or load_checkpoint_path.
    kl_penalty_coef: float = 0.0
    # Adam's step size. MINT_RL_LR
    learning_rate: float = chz.field(default_factory=_FROM_ENVIRONMENT["learning_rate"])
    # Adam: decay of the running means of gradient and squared gradient.
    betas: tuple[float, float] = (0.9, 0.999)
    # Adam: added to the root of the second moment.
    eps: float = 1e-8
    # Each step shrinks the weights by learning_rate · weight_decay.
    weight_decay: float = 0.0
    # mint:// path of weights to start from; None: a new adapter.
    load_checkpoint_path: str | None = None
    # Folder of the run. Started again on the same folder, a run goes on where its last checkpoint was saved.
    log_path: str = "runs/grpo"
    # Of everything random.
    seed: int = 0

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        least = {"rank": 1, "steps": 1, "batch_size": 1, "group_size": 2, "max_tokens": 1}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise InvalidRequest(f"{self._given(name)}: must be at least {minimum}.")
        for name in ("learning_rate", "temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidRequest(f"{self._given(name)}: must be positive and finite.")

    @classmethod
    def from_command_line(cls, argv: Sequence[str] | None = None, **explicit: Any) -> RLConfig:
        """The config of `key=value` arguments (None: sys.argv); what is `explicit` is not changed by them.

        --help lists every setting and leaves; an argument that does not fit is one line on stderr and exit status 2.
        """
        arguments = list(sys.argv[1:] if argv is None else argv)
        config = parse_config(cls, {}, arguments)
        for name in sorted(explicit.keys() & {argument.partition("=")[0] for argument in arguments}):
            logger.warning("%s on the command line has no effect: the script sets it to %r", name, explicit[name])
        return chz.replace(config, **explicit)

    def train_config(self, adapter: RLAdapter) -> train.Config:
        """The same run as `recipe.rl.train` is told about it."""
        return train.Config(
            model_name=self.base_model,
            dataset_builder=AdapterDatasetBuilder(
                adapter=adapter,
                model_name=self.base_model,
                group_size=self.group_size,
                groups_per_batch=self.batch_size,
                num_steps=self.steps,
                seed=self.seed,
            ),
            log_path=self.log_path,
            learning_rate=self.learning_rate,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            lora_rank=self.rank,
            lora_targets=LoraTargets(
                train_mlp=self.train_mlp, train_attn=self.train_attn, train_unembed=self.train_unembed
            ),
            load_checkpoint_path=self.load_checkpoint_path,
            advantage=self.advantage,
            loss_fn=self.loss_fn,
            optimizer=AdamConfig(
                beta1=self.betas[0], beta2=self.betas[1], eps=self.eps, weight_decay=self.weight_decay
            ),
            kl_penalty_coef=self.kl_penalty_coef,
            kl_reference_config=self._kl_reference(),
            remove_constant_reward_groups=True,
            seed=self.seed,
        )

    def _kl_reference(self) -> KLReferenceConfig | None:
        if self.kl_penalty_coef == 0:
            return None
        return KLReferenceConfig(base_model=self.base_model, load_checkpoint_path=self.load_checkpoint_path)

    def _given(self, name: str) -> str:
        """The setting and its value, with the environment variable where it may have come from there."""
        source = _FROM_ENVIRONMENT.get(name)
        value = getattr(self, name)
        if source is not None and source.is_set and str(source()) == str(value):
            return f"{source.variable}={value} (the setting {name})"
        return f"{name}={value}"


def run_grpo(
    adapter: RLAdapter, cfg: RLConfig | None = None, service: mint.ServiceClient | None = None
) -> train.RLResult:
    """Train on the adapter's task; a run that is in cfg.log_path is resumed, a finished one returns at once.

    cfg: None takes the environment and the defaults. service: the client to use; None makes one (MINT_BASE_URL).
    Where an event loop is running already, as in a notebook, use `await run_grpo_async(...)`.
    """
    return asyncio.run(run_grpo_async(adapter, cfg, service))


async def run_grpo_async(
    adapter: RLAdapter, cfg: RLConfig | None = None, service: mint.ServiceClient | None = None
) -> train.RLResult:
    """Async form of `run_grpo`."""
    config = (cfg if cfg is not None else RLConfig()).train_config(adapter)
    assert isinstance(config.dataset_builder, AdapterDatasetBuilder)
    dataset = config.dataset_builder.dataset

    num_steps_done = 0

    def evaluate(iteration: int, metrics: dict[str, Any]) -> None:
        nonlocal num_steps_done
        num_steps_done += 1
        adapter.evaluate(iteration + 1, dataset.rewards_of(iteration), int(metrics["batch/num_datums"]))

    result = await train.main(config, service, on_step=evaluate)
    if num_steps_done == 0:
        logger.warning("log_path=%s holds a finished run; for a new one use another log_path", config.log_path)
    return result
