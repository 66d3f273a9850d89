"""The chat recipe from end to end, one step with each source of the reward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.envs.test_judges import Endpoint, completion
from tests.recipes.loading import load_recipe

SMALL = [
    "rl.max_steps=1",
    "rl.dataset_builder.group_size=3",
    "rl.dataset_builder.groups_per_batch=2",
    "rl.dataset_builder.num_test=2",
]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load_recipe("chat_rl")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    started = Endpoint()
    yield started
    started.server.shutdown()
    started.server.server_close()


PAIRS = ["reward.pairs.num_train=8", "reward.pairs.num_test=8"]


@pytest.mark.parametrize(
    "reward",
    ["ProxyReward", "PreferenceReward", "PreferenceReward as judge", "ModelJudgeReward", "EndpointJudgeReward"],
)
def test_each_source_of_the_reward(
    recipe: ModuleType,
    endpoint: Endpoint,
    reward: str,
    mint_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("MINT_BASE_URL", raising=False)
    endpoint.answers = lambda number, body: (200, completion("A"))
    settings = {
        "ProxyReward": [],
        "PreferenceReward": ["reward.max_steps=1", *PAIRS],
        "PreferenceReward as judge": ["reward.is_judge=True", "reward.max_steps=1", *PAIRS],
        "ModelJudgeReward": ["reward.max_steps=1", "reward.pages.num_train=16", "reward.pages.num_test=8"],
        "EndpointJudgeReward": [f"reward.base_url={endpoint.url}", "reward.model=judge"],
    }
    recipe.main([f"log_path={tmp_path / 'run'}", f"reward=chat_rl:{reward.split()[0]}", *settings[reward], *SMALL])
    (metrics,) = [json.loads(line) for line in (tmp_path / "run" / "rl" / "metrics.jsonl").read_text().splitlines()]
    printed = capsys.readouterr().out
    assert "gold on held-out prompts:" in printed
    if "judge" in reward.lower():
        assert metrics["env/all/judge/comparisons"] > 0
        assert "preferred to before by the judge:" in printed
    else:
        assert metrics["env/all/reward_source_prm"] == float(reward == "PreferenceReward")
        assert "reward on held-out prompts:" in printed
    if reward == "EndpointJudgeReward":
        # Always the first reply: nothing but position bias, which leaves a draw.
        assert metrics["env/all/judge/first_is_better"] == 1.0
        assert "preferred to before by the judge: 50%" in printed
