"""The page on math RL: its mixture is one that trains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from envs.mixture import MixtureDatasetBuilder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "math_rl.md"


async def test_the_mixture_of_the_page_gives_batches_in_its_shares() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(program, str(PAGE), "exec"), names)
    data = names["dataset_builder"]
    assert isinstance(data, MixtureDatasetBuilder)
    train, test = await data()
    parts = [str(group.problem_id()).partition("/")[0] for group in train.get_batch(0)]
    assert (parts.count("easy"), parts.count("hard")) == (24, 8)
    assert test is not None and len(test.groups) == 50
