"""Renderers by name, and which name suits which model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mint.errors import InvalidRequest, nearest_name
from renderers.completion import CompletionRenderer
from renderers.content_encoding import Tokenizer
from renderers.qwen3 import Qwen3Renderer, Thinking
from renderers.renderer import Renderer
from renderers.role_colon import RoleColonRenderer

RendererFactory = Callable[[Tokenizer], Renderer]

_RENDERERS: dict[str, RendererFactory] = {
    "completion": CompletionRenderer,
    "qwen3": partial(Qwen3Renderer, name="qwen3", thinking=Thinking.ENABLED),
    "qwen3_disable_thinking": partial(Qwen3Renderer, name="qwen3_disable_thinking", thinking=Thinking.DISABLED),
    "qwen3_instruct": partial(Qwen3Renderer, name="qwen3_instruct", thinking=Thinking.ABSENT),
    "role_colon": RoleColonRenderer,
}

# What follows the size in a Qwen3 name (Qwen3-30B-A3B-Instruct-2507) -> renderer.
_QWEN3_RENDERERS = {"": "qwen3", "-base": "role_colon", "-instruct-2507": "qwen3_instruct"}
_QWEN3_NAME = re.compile(r"qwen3-\d+(\.\d+)?b(-a\d+b)?(?P<variant>.*?)(-fp8|-awq)?")


def get_renderer(name: str, tokenizer: Tokenizer) -> Renderer:
    """The renderer called `name` for this tokenizer; InvalidRequest, with the nearest name, where there is none."""
    if name not in _RENDERERS:
        known = ", ".join(sorted(_RENDERERS))
        raise InvalidRequest(f"no renderer is called {name!r}: known are {known}.{nearest_name(name, _RENDERERS)}")
    return _RENDERERS[name](tokenizer)


def register_renderer(name: str, factory: RendererFactory) -> None:
    """Make `get_renderer(name, tokenizer)` return `factory(tokenizer)`. A name can be given once."""
    if name in _RENDERERS:
        raise InvalidRequest(f"a renderer is already called {name!r}: choose another name")
    _RENDERERS[name] = factory


def get_recommended_renderer_name(model_name: str) -> str:
    """The renderer whose format `model_name` was trained on.

    Known are the built-in model (mint-tiny), the Qwen3 language models by hub id, and folders whose name is one of
    these or whose config.json says qwen3. Anything else is an InvalidRequest: a wrong format costs quality in silence.
    """
    short_name = Path(model_name).name.lower()
    if short_name == "mint-tiny":
        return "qwen3_disable_thinking"
    match = _QWEN3_NAME.fullmatch(short_name)
    if match is not None and match["variant"] in _QWEN3_RENDERERS:
        return _QWEN3_RENDERERS[match["variant"]]
    if match is None and _model_type_in(Path(model_name)) in ("qwen3", "qwen3_moe"):
        return "qwen3_disable_thinking" if _is_builtin(Path(model_name)) else "qwen3"
    known = ", ".join(sorted(_RENDERERS))
    raise InvalidRequest(f"no renderer is recommended for model {model_name!r}: choose one of {known}")


def _model_type_in(folder: Path) -> str | None:
    config_file = folder / "config.json"
    if not config_file.is_file():
        return None
    return json.loads(config_file.read_text(encoding="utf-8")).get("model_type")


def _is_builtin(folder: Path) -> bool:
    from mint import builtin

    return folder.resolve() == Path(builtin.model_dir()).resolve()
