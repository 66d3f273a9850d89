"""What a config refuses, by its text, and what the command line can set."""

from __future__ import annotations

from typing import Any

import chz
import pytest

from recipe.rl.credit import AdvantageConfig
from recipe.rl.kl_coefficient import KLPenaltyConfig
from recipe.rl.train import Config, KLReferenceConfig
from recipe.rl.types import RLDataset, RLDatasetBuilder


@chz.chz(typecheck=True)
class NoData(RLDatasetBuilder):
    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        raise AssertionError("not built in these tests")


def config(**changes: Any) -> Config:
    values = {"model_name": "m", "dataset_builder": NoData(), "log_path": "p", "learning_rate": 1e-4, "max_tokens": 8}
    return Config(**(values | changes))


PER_SEQUENCE = AdvantageConfig(length_norm="sequence_mean")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_fn": "ppoo"}, r"loss_fn='ppoo' is not a policy loss; choose one of .* Did you mean 'ppo'\?"),
        ({"loss_fn": "cross_entropy"}, "loss_fn='cross_entropy' is not a policy loss"),
        ({"num_substeps": 0}, "num_substeps=0: must be at least 1"),
        ({"max_steps": 0}, "max_steps=0: must be at least 1"),
        ({"max_tokens": 0}, "max_tokens=0: must be at least 1"),
        ({"temperature": 0.0}, "temperature=0.0: .*must be positive"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0: must not be negative"),
        ({"eval_every": -1}, "eval_every=-1: must not be negative"),
        ({"kl_penalty_coef": 0.1}, "kl_penalty_coef=0.1: .*set kl_reference_config.base_model"),
        ({"loss_fn_config": {"temperature": 0.7}}, "loss_fn_config has 'temperature'"),
        ({"advantage": "standardized"}, r"advantage='standardized' is unknown.* Did you mean 'standardised'\?"),
        ({"loss_fn": "gspo", "temperature": 0.8}, "loss_fn='gspo' with temperature=0.8: .*set temperature=1"),
        ({"loss_fn": "gspo", "advantage_config": PER_SEQUENCE}, "length_norm='sequence_mean' with loss_fn='gspo'"),
        ({"loss_fn": "gspo", "loss_fn_config": {"beta": 1.0}}, "'beta', which loss_fn='gspo' does not know"),
        ({"loss_fn": "dro", "advantage_config": PER_SEQUENCE}, "length_norm='sequence_mean' with loss_fn='dro'"),
        ({"kl_penalty_config": KLPenaltyConfig(form="loss_k3")}, "kl_penalty_config is set with kl_penalty_coef=0"),
    ],
)
def test_a_bad_value_is_refused_with_its_rule(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_a_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match="learning_rate"):
        config(learning_rate="fast")


def test_a_penalty_with_a_reference_is_accepted() -> None:
    reference = KLReferenceConfig(base_model="m", load_checkpoint_path="mint://run/weights/sft")
    assert config(kl_penalty_coef=0.1, kl_reference_config=reference).kl_reference_config == reference


def test_nested_fields_are_set_from_the_command_line() -> None:
    preset = chz.Blueprint(Config).apply({"dataset_builder": NoData()})
    argv = ["model_name=m", "log_path=p", "learning_rate=1e-3", "max_tokens=4", "optimizer.grad_clip_norm=2"]
    made = preset.make_from_argv([*argv, "kl_reference_config.base_model=m", "loss_fn=ppo"])
    assert (made.optimizer.grad_clip_norm, made.loss_fn) == (2.0, "ppo")
    assert made.kl_reference_config is not None and made.kl_reference_config.base_model == "m"


def test_what_concerns_advantages_and_the_penalty_is_set_from_the_command_line() -> None:
    preset = chz.Blueprint(Config).apply({"dataset_builder": NoData()})
    argv = ["model_name=m", "log_path=p", "learning_rate=1e-3", "max_tokens=4", "kl_reference_config.base_model=m"]
    argv += ["advantage=leave_one_out", "advantage_config.credit=turn", "advantage_config.discount=0.9"]
    argv += ["kl_penalty_coef=0.1", "kl_penalty_config.discount=1", "kl_penalty_config.adaptive.target=3"]
    made = preset.make_from_argv(argv)
    assert (made.advantage, made.advantage_config.credit, made.advantage_config.discount) == (
        "leave_one_out",
        "turn",
        0.9,
    )
    assert made.kl_penalty_config.discount == 1
    assert made.kl_penalty_config.adaptive is not None and made.kl_penalty_config.adaptive.target == 3


def test_a_misspelt_field_names_the_nearest_one() -> None:
    preset = chz.Blueprint(Config).apply({"dataset_builder": NoData()})
    with pytest.raises(Exception, match="learning_rate"):
        preset.make_from_argv(["model_name=m", "log_path=p", "learning_rat=1e-3", "max_tokens=4"])
