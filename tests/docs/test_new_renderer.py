"""The renderer that docs/new_renderer.md builds does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from renderers import Message, ParseStatus, get_renderer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "new_renderer.md"


def test_the_page_s_renderer_renders_trains_and_parses(tokenizer: Any) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    renderer = get_renderer("tags", tokenizer)
    messages: list[Message] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    prompt = renderer.build_generation_prompt(messages[:1]).to_ints()
    assert tokenizer.decode(prompt) == "<user>hi</user><assistant>"
    model_input, weights_T = renderer.build_supervised_example(messages)
    assert model_input.to_ints()[: len(prompt)] == prompt
    trained = [token for token, weight in zip(model_input.to_ints(), weights_T, strict=True) if weight]
    assert tokenizer.decode(trained) == "hello</assistant>"
    assert renderer.parse_response(trained) == (messages[1], ParseStatus.COMPLETE)
    assert renderer.parse_response(trained[:1])[1] is ParseStatus.CUT
