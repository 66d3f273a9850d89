"""Whole runs with other advantages, losses and KL penalties than the default ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import chz
import pytest

import mint
from mint.checkpoint_store import CheckpointStore
from recipe.checkpoint_utils import load_records
from recipe.rl import train
from recipe.rl.credit import AdvantageConfig
from recipe.rl.kl import KLReferenceConfig
from recipe.rl.kl_coefficient import AdaptiveKLConfig, KLPenaltyConfig
from recipe.rl.rl_core import RLAdapter, RLConfig
from recipe.run_log import read_metrics


class Vowels(RLAdapter):
    """The reward is the share of vowels in a reply of up to four tokens."""

    def build_dataset(self) -> list[str]:
        return ["a", "b", "c", "d"]

    def make_prompt(self, sample: str, tokenizer: Any) -> list[int]:
        return tokenizer.encode(f"{sample}:")

    def compute_reward(self, response: str, sample: str) -> float:
        return sum(character in "aeiou" for character in response) / max(len(response), 1)

    def get_stop_sequences(self, tokenizer: Any) -> list[int]:
        # Replies of different lengths, for what depends on them.
        return list(range(100, 400))


@pytest.fixture
def run(service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run the stage in its own folder under tmp_path; the lines of its metrics without timings."""

    async def start(folder: str = "run", *, steps: int = 2, **changes: Any) -> list[dict[str, Any]]:
        short = RLConfig(
            base_model=str(tiny_model_dir), rank=4, steps=steps, batch_size=4, group_size=8, max_tokens=4,
            temperature=1.0, learning_rate=1e-2, log_path=str(tmp_path / folder),
        )  # fmt: skip
        config = chz.replace(short.train_config(Vowels()), num_groups_to_log=0, rollout_json_export=False, **changes)
        await train.main(config, service)
        lines = read_metrics(tmp_path / folder)
        return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]

    return start


VARIANTS: dict[str, dict[str, Any]] = {
    "GRPO": {
        "advantage": "standardised",
        "advantage_config": AdvantageConfig(length_norm="sequence_mean"),
        "loss_fn": "ppo",
    },
    "Dr. GRPO": {"advantage_config": AdvantageConfig(length_norm="constant"), "loss_fn": "ppo"},
    "DAPO": {
        "advantage": "standardised",
        "advantage_config": AdvantageConfig(length_norm="group_token_mean"),
        "loss_fn": "ppo",
        "loss_fn_config": {"clip_high_threshold": 1.28},
    },
    "RLOO": {"advantage": "leave_one_out"},
    "GSPO": {"advantage": "standardised", "loss_fn": "gspo", "num_substeps": 2},
    "by token": {"advantage_config": AdvantageConfig(credit="token", discount=0.9)},
}


@pytest.mark.parametrize("name", VARIANTS)
async def test_the_first_step_of_every_variant_is_on_policy_and_moves_the_weights(
    run: Callable[..., Any], name: str
) -> None:
    first, _ = await run(**VARIANTS[name])
    assert first["optim/update_norm"] > 0
    if "num_substeps" not in VARIANTS[name]:
        assert abs(first["kl_sample_train_v1"]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
async def test_every_variant_raises_the_reward(run: Callable[..., Any], name: str) -> None:
    rewards = [line["env/all/reward/total"] for line in await run(steps=25, **VARIANTS[name])]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.08


async def test_a_constant_factor_on_the_loss_changes_no_step_of_adam(run: Callable[..., Any]) -> None:
    plain = await run("plain")
    constant = await run("constant", advantage_config=AdvantageConfig(length_norm="constant"))
    # max_tokens is 4: a power of two, so that not even rounding differs, Adam's eps aside.
    assert constant[0]["optim/grad_norm"] == pytest.approx(plain[0]["optim/grad_norm"] / 4)
    assert constant[0]["optim/update_norm"] == pytest.approx(plain[0]["optim/update_norm"], rel=1e-3)


def kl(folder: Path, **penalty: Any) -> dict[str, Any]:
    return {
        "kl_reference_config": KLReferenceConfig(base_model=str(folder)),
        "kl_penalty_coef": 1.0,
        "kl_penalty_config": KLPenaltyConfig(**penalty),
    }


@pytest.mark.parametrize("form", ["loss_k1", "loss_k2", "loss_k3"])
async def test_kl_in_the_loss_is_zero_at_the_reference_and_is_reported(
    run: Callable[..., Any], tiny_model_dir: Path, form: str
) -> None:
    first, second = await run(**kl(tiny_model_dir, form=form))
    assert first["loss_kl"] == pytest.approx(0.0, abs=1e-5)
    if form != "loss_k1":
        assert second["loss_kl"] > 1e-4
    assert (first["kl_penalty_coef"], second["kl_penalty_coef"]) == (1.0, 1.0)


@pytest.mark.parametrize("penalty", [{"form": "loss_k2"}, {"form": "loss_k3"}, {"discount": 1.0}])
async def test_a_penalty_keeps_the_policy_near_its_reference(
    run: Callable[..., Any], tiny_model_dir: Path, penalty: dict[str, Any]
) -> None:
    reference = KLReferenceConfig(base_model=str(tiny_model_dir))
    free = await run("free", steps=6, kl_reference_config=reference)
    held = await run("held", steps=6, **kl(tiny_model_dir, **penalty))
    assert held[-1]["kl_policy_base"] < 0.5 * free[-1]["kl_policy_base"]
    assert "kl_penalty_coef" not in free[0]


async def test_an_adaptive_coefficient_is_resumed_with_the_run(
    run: Callable[..., Any], tiny_model_dir: Path, tmp_path: Path, mint_home: Path
) -> None:
    settings = kl(tiny_model_dir, adaptive=AdaptiveKLConfig(target=0.05))
    whole = await run("whole", steps=4, **settings)
    await run("parts", steps=2, **settings)
    parts = await run("parts", steps=4, **settings)
    coefficients = [line["kl_penalty_coef"] for line in whole]
    # No KL at first, which is below the target; at most 2 % a step.
    assert coefficients[:2] == [1.0, pytest.approx(0.98)]
    assert len(set(coefficients)) == 4
    assert [line["kl_penalty_coef"] for line in parts] == coefficients

    def adapter(folder: str) -> bytes:
        state_path = load_records(tmp_path / folder)[-1].state_path
        assert state_path is not None
        return CheckpointStore(mint_home).verify(state_path)["adapter_model.safetensors"].read_bytes()

    assert adapter("parts") == adapter("whole")
