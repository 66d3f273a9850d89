"""The adapter on the page docs/run_grpo.md is short and trains, and its table of settings is that of RLConfig."""

from __future__ import annotations

import asyncio
import json
import re
import types
from pathlib import Path
from typing import Any

import chz
import pytest

from recipe.environment_defaults import EnvironmentDefault
from recipe.rl.rl_core import RLConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "run_grpo.md"


def _code() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return code


def test_the_whole_script_takes_no_more_than_25_lines() -> None:
    assert len([line for line in _code().splitlines() if line.strip()]) <= 25


async def _train(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Run the page's code as a script in `folder`; the lines of its metrics.jsonl."""
    monkeypatch.chdir(folder)
    for variable in ("MINT_BASE_URL", "MINT_BASE_MODEL", "MINT_RL_BATCH", "MINT_RL_MAX_TOKENS", "MINT_RL_TEMPERATURE"):
        monkeypatch.delenv(variable, raising=False)
    page = types.ModuleType("run_grpo_page")
    # In a thread, because the page starts an event loop of its own.
    await asyncio.to_thread(exec, compile(code, str(PAGE), "exec"), vars(page))
    assert page.result.sampler_path.startswith("mint://")
    return [json.loads(line) for line in (folder / "runs/count_up/metrics.jsonl").read_text().splitlines()]


async def test_the_page_s_code_runs(
    mint_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = _code().replace("steps=12", "steps=2")
    assert code != _code()
    lines = await _train(code, tmp_path, monkeypatch)
    assert [line["step"] for line in lines] == [0, 1]
    reported = re.findall(r"^step (\d+): mean reward ([\d.]+), (\d+) replies", capfd.readouterr().out, re.MULTILINE)
    assert [(int(step), float(reward), int(number)) for step, reward, number in reported] == [
        (line["step"] + 1, round(line["env/all/reward/total"], 2), line["batch/num_datums"]) for line in lines
    ]


@pytest.mark.slow
async def test_the_reward_rises_as_the_page_says(
    mint_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards = [line["env/all/reward/total"] for line in await _train(_code(), tmp_path, monkeypatch)]
    assert len(rewards) == 12
    assert sum(rewards[:2]) / 2 < 0.15
    assert sum(rewards[-2:]) / 2 > 0.22


def test_the_table_lists_every_setting_with_its_default_and_variable() -> None:
    rows = re.findall(r"^\| (`[a-z_]+`.*) \| (.+) \| (.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {
        name: (default, variable.strip(" `"))
        for names, default, variable in rows
        for name in re.findall(r"`([a-z_]+)`", names)
    }
    fields = chz.chz_fields(RLConfig)
    assert set(listed) == set(fields)
    for name, field in fields.items():
        default, variable = listed[name]
        factory = field._default_factory
        if isinstance(factory, EnvironmentDefault):
            assert (default.strip("`"), variable) == (str(factory.default).replace("2e-05", "2e-5"), factory.variable)
        else:
            assert variable == ""
            assert str(field._default).replace("1e-08", "1e-8") in default
