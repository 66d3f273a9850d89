"""The environment that docs/new_env.md builds is short and trains."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "new_env.md"


def _code() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return code


def test_the_environment_takes_fewer_than_forty_lines() -> None:
    code_lines = [line for line in _code().split("config =")[0].splitlines() if line.strip()]
    assert len(code_lines) < 40


async def _train(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Run the page's code as a script in `folder`; the lines of its metrics.jsonl."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MINT_BASE_URL", raising=False)
    # A module, as config classes must live in one.
    page = types.ModuleType("new_env_page")
    monkeypatch.setitem(sys.modules, page.__name__, page)
    # In a thread, because the page starts an event loop of its own.
    await asyncio.to_thread(exec, compile(code, str(PAGE), "exec"), vars(page))
    lines = [json.loads(line) for line in (folder / "runs/brief/metrics.jsonl").read_text().splitlines()]
    assert page.result.metrics["env/all/num_words"] == lines[-1]["env/all/num_words"]
    return lines


async def test_the_page_s_code_runs(mint_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = _code().replace("num_epochs=15", "num_epochs=2")
    assert code != _code()
    lines = await _train(code, tmp_path, monkeypatch)
    # Two questions, two to a batch, two epochs.
    assert [line["step"] for line in lines] == [0, 1]
    assert 0 < lines[0]["env/all/num_words"] <= 32
    assert {"env/all/parse_error", "env/all/cut_off", "env/all/context_overflow"} <= set(lines[0])


@pytest.mark.slow
async def test_answers_get_shorter_as_the_page_says(
    mint_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = await _train(_code(), tmp_path, monkeypatch)
    num_words = [line["env/all/num_words"] for line in lines]
    assert len(num_words) == 15
    assert sum(num_words[-3:]) / 3 < sum(num_words[:3]) / 3 - 3
