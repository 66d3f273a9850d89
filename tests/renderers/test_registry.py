"""Renderers by name, and the name for a model."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from mint.errors import InvalidRequest
from renderers import Message, get_recommended_renderer_name, get_renderer, register_renderer

NAMES = ["completion", "qwen3", "qwen3_disable_thinking", "qwen3_instruct", "role_colon"]


@pytest.mark.parametrize("name", NAMES)
def test_renderer_knows_its_name_and_tokenizer_and_survives_pickling(qwen3_tokenizer: Any, name: str) -> None:
    renderer = get_renderer(name, qwen3_tokenizer)
    assert (renderer.name, renderer.tokenizer) == (name, qwen3_tokenizer)
    messages: list[Message] = [{"role": "user", "content": "hi <|im_end|>"}]
    copy = pickle.loads(pickle.dumps(renderer))
    assert copy.build_generation_prompt(messages) == renderer.build_generation_prompt(messages)


def test_unknown_name_gets_the_nearest(qwen3_tokenizer: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"is called 'qwen3_no_thinking'.*Did you mean 'qwen3_disable_thinking'"):
        get_renderer("qwen3_no_thinking", qwen3_tokenizer)


def test_a_taken_name_cannot_be_registered_again(qwen3_tokenizer: Any) -> None:
    with pytest.raises(InvalidRequest, match="already called 'qwen3'"):
        register_renderer("qwen3", lambda tokenizer: get_renderer("role_colon", tokenizer))


def test_chat_renderer_needs_chat_tokens() -> None:
    class BareTokenizer:
        added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012

        def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
            return list(text.encode())

        def decode(self, token_ids: Any, /, *, skip_special_tokens: bool = False) -> str:
            return bytes(token_ids).decode()

    with pytest.raises(InvalidRequest, match=r"no token '<\|im_start\|>'"):
        get_renderer("qwen3", BareTokenizer())
    prompt = get_renderer("role_colon", BareTokenizer()).build_generation_prompt([{"role": "user", "content": "hi"}])
    assert bytes(prompt.to_ints()) == b"User: hi\n\nAssistant:"


@pytest.mark.parametrize(
    ("model_name", "renderer_name"),
    [
        ("mint-tiny", "qwen3_disable_thinking"),
        ("Qwen/Qwen3-0.6B", "qwen3"),
        ("Qwen/Qwen3-30B-A3B", "qwen3"),
        ("Qwen/Qwen3-8B-FP8", "qwen3"),
        ("Qwen/Qwen3-1.7B-Base", "role_colon"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3_instruct"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3_instruct"),
    ],
)
def test_recommended_renderer(model_name: str, renderer_name: str) -> None:
    assert get_recommended_renderer_name(model_name) == renderer_name


@pytest.mark.parametrize("model_name", ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-Coder-30B-A3B", "Qwen/Qwen3.5-4B", ""])
def test_no_renderer_is_guessed_for_an_unknown_model(model_name: str) -> None:
    with pytest.raises(InvalidRequest, match="no renderer is recommended"):
        get_recommended_renderer_name(model_name)


def test_folder_of_the_built_in_model_is_known() -> None:
    from mint import builtin

    assert get_recommended_renderer_name(str(builtin.model_dir())) == get_recommended_renderer_name(builtin.NAME)


def test_folder_is_known_by_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    assert get_recommended_renderer_name(str(tmp_path)) == "qwen3"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(InvalidRequest, match="no renderer is recommended"):
        get_recommended_renderer_name(str(tmp_path))
