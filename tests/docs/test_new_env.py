"""The environment that docs/new_env.md builds is short and trains."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import types
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "new_env.md"


def _code() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return code


def test_the_environment_takes_fewer_than_forty_lines() -> None:
    code_lines = [line for line in _code().split("config =")[0].splitlines() if line.strip()]
    assert len(code_lines) < 40


async def test_the_page_s_code_trains(mint_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MINT_BASE_URL", raising=False)
    # A module, as config classes must live in one.
    page = types.ModuleType("new_env_page")
    monkeypatch.setitem(sys.modules, page.__name__, page)
    # In a thread, because the page starts an event loop of its own.
    await asyncio.to_thread(exec, compile(_code(), str(PAGE), "exec"), vars(page))
    metrics = page.result.metrics
    assert 0 < metrics["env/all/num_words"] <= 32
    lines = [json.loads(line) for line in (tmp_path / "runs/brief/metrics.jsonl").read_text().splitlines()]
    # Two questions, two to a batch, two epochs.
    assert [line["step"] for line in lines] == [0, 1]
    assert {"env/all/parse_error", "env/all/cut_off", "env/all/context_overflow"} <= set(lines[0])
