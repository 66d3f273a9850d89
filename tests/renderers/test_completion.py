"""The format without a format: contents, one end of text, nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from mint.errors import InvalidRequest
from renderers import Message, ParseStatus, Renderer, get_renderer

SUM: list[Message] = [{"role": "user", "content": "3+4="}, {"role": "assistant", "content": "7"}]


@pytest.fixture
def renderer(qwen3_tokenizer: Any) -> Renderer:
    return get_renderer("completion", qwen3_tokenizer)


def test_the_prompt_is_the_content(renderer: Renderer, qwen3_tokenizer: Any) -> None:
    assert renderer.build_generation_prompt(SUM[:1]).to_ints() == qwen3_tokenizer.encode("3+4=")


def test_loss_covers_the_reply_and_the_end_of_text(renderer: Renderer, qwen3_tokenizer: Any) -> None:
    model_input, weights_T = renderer.build_supervised_example(SUM)
    assert qwen3_tokenizer.decode(model_input.to_ints()) == "3+4=7<|endoftext|>"
    trained = [token for token, weight in zip(model_input.to_ints(), weights_T, strict=True) if weight]
    assert qwen3_tokenizer.decode(trained) == "7<|endoftext|>"
    assert trained[-1:] == renderer.get_stop_sequences()


def test_the_next_prompt_extends_prompt_and_reply(renderer: Renderer) -> None:
    so_far = renderer.build_supervised_example(SUM)[0].to_ints()
    longer = renderer.build_generation_prompt([*SUM, {"role": "user", "content": "\n5+1="}]).to_ints()
    assert longer[: len(so_far)] == so_far


@pytest.mark.parametrize(
    ("text", "content", "status"),
    [
        ("7<|endoftext|>", "7", ParseStatus.COMPLETE),
        ("<|endoftext|>", "", ParseStatus.COMPLETE),
        ("7", "7", ParseStatus.CUT),
        ("7<|endoftext|>8", "7<|endoftext|>8", ParseStatus.MALFORMED),
    ],
)
def test_a_reply_is_read(
    renderer: Renderer, qwen3_tokenizer: Any, text: str, content: str, status: ParseStatus
) -> None:
    message, parsed_status = renderer.parse_response(qwen3_tokenizer.encode(text, add_special_tokens=False))
    assert (message["content"], parsed_status) == (content, status)


def test_tools_are_refused(renderer: Renderer) -> None:
    with pytest.raises(InvalidRequest, match="no form for tools"):
        renderer.build_generation_prompt([{"role": "tool", "content": "1"}])
