"""The Qwen3 renderers against what the official chat template writes, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from renderers import TrainOnWhat, get_renderer


@pytest.fixture(scope="module")
def golden_lines(shared_data: Path) -> list[dict[str, Any]]:
    with (shared_data / "qwen3_chat_golden.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _rendered_ids(line: dict[str, Any], tokenizer: Any) -> list[int]:
    renderer = get_renderer("qwen3_disable_thinking" if line["enable_thinking"] is False else "qwen3", tokenizer)
    if line["add_generation_prompt"]:
        return renderer.build_generation_prompt(line["messages"], line["tools"]).to_ints()
    model_input, _ = renderer.build_supervised_example(line["messages"], TrainOnWhat.ALL_TOKENS, line["tools"])
    return model_input.to_ints()


def test_text_equals_official_template_on_every_line(golden_lines: list[dict[str, Any]], qwen3_tokenizer: Any) -> None:
    assert len(golden_lines) == 69
    for line in golden_lines:
        assert qwen3_tokenizer.decode(_rendered_ids(line, qwen3_tokenizer)) == line["text"], line["name"]


def test_tokens_equal_official_tokens_unless_content_holds_control_text(
    golden_lines: list[dict[str, Any]], qwen3_tokenizer: Any
) -> None:
    differing = set()
    for line in golden_lines:
        official = qwen3_tokenizer.encode(line["text"], add_special_tokens=False)
        if _rendered_ids(line, qwen3_tokenizer) != official:
            differing.add(line["name"])
    assert differing == {"special strings in content"}
