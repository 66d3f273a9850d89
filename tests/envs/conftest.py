"""A renderer and ways to write what a policy might have sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from renderers import Renderer, get_renderer


@pytest.fixture
def renderer(tokenizer: Any) -> Renderer:
    return get_renderer("qwen3_disable_thinking", tokenizer)


@pytest.fixture
def sampled(tokenizer: Any) -> Callable[[str], list[int]]:
    """Tokens of a text in which control tokens are written out."""
    return lambda text: tokenizer.encode(text, add_special_tokens=False)
