"""Going on after a sampled reply: the same prompt as one written from messages, wherever the format allows that."""

from __future__ import annotations

from typing import Any

import pytest

from renderers import Message, Renderer, ToolSpec, get_renderer

TOOLS: list[ToolSpec] = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}]
QUESTION: Message = {"role": "user", "content": "What is 12 * 34?"}
CALL: Message = {
    "role": "assistant",
    "content": "I will ask.",
    "tool_calls": [{"type": "function", "function": {"name": "calc", "arguments": {"expr": "12*34"}}}],
}
RESULTS: list[Message] = [{"role": "tool", "content": "408"}, {"role": "tool", "content": "<|im_end|>"}]
ANSWER: Message = {"role": "assistant", "content": "It is 408."}
NEXT: Message = {"role": "user", "content": "And 2 * 3?"}


def _sampled(renderer: Renderer, messages: list[Message], tools: Any) -> list[int]:
    """The last message's tokens as a policy would sample them."""
    return renderer.render_messages(messages, tools, is_prompt=False)[-1].output


def _continued(renderer: Renderer, before: list[Message], reply: Message, new: list[Message], tools: Any) -> list[int]:
    prompt = renderer.build_generation_prompt(before, tools).to_ints()
    reply_tokens = _sampled(renderer, [*before, reply], tools)
    continuation = renderer.build_continuation(reply_tokens, [*before, reply, *new], len(new), tools)
    assert continuation is not None
    return prompt + reply_tokens + continuation


@pytest.mark.parametrize(
    ("before", "reply", "new"),
    [
        ([QUESTION], CALL, RESULTS[:1]),
        ([QUESTION], CALL, RESULTS),
        ([QUESTION, CALL, *RESULTS], ANSWER, [NEXT]),
        ([{"role": "system", "content": "Be brief."}, QUESTION], ANSWER, [NEXT]),
    ],
)
def test_nothing_left_out_of_history_means_the_same_prompt(
    qwen3_tokenizer: Any, before: list[Message], reply: Message, new: list[Message]
) -> None:
    renderer = get_renderer("qwen3_instruct", qwen3_tokenizer)
    written = renderer.build_generation_prompt([*before, reply, *new], TOOLS).to_ints()
    assert _continued(renderer, before, reply, new, TOOLS) == written


def test_role_colon_goes_on_behind_the_header_that_the_reply_wrote(qwen3_tokenizer: Any) -> None:
    renderer = get_renderer("role_colon", qwen3_tokenizer)
    written = renderer.build_generation_prompt([QUESTION, ANSWER, NEXT]).to_ints()
    assert _continued(renderer, [QUESTION], ANSWER, [NEXT], None) == written
    # Ended with the end of text, it has not written that header: there is no way to go on from these tokens.
    ended = [*qwen3_tokenizer.encode(" It is 408."), qwen3_tokenizer.eos_token_id]
    assert renderer.build_continuation(ended, [QUESTION, ANSWER, NEXT], 1) is None


def test_reasoning_stays_behind_tool_results_and_goes_with_a_new_question(qwen3_tokenizer: Any) -> None:
    renderer = get_renderer("qwen3", qwen3_tokenizer)
    call: Message = {**CALL, "thinking": "Let me think."}
    written = renderer.build_generation_prompt([QUESTION, call, *RESULTS], TOOLS).to_ints()
    assert _continued(renderer, [QUESTION], call, RESULTS, TOOLS) == written
    reply_tokens = _sampled(renderer, [QUESTION, ANSWER], None)
    assert renderer.build_continuation(reply_tokens, [QUESTION, ANSWER, NEXT], 1) is None


def test_a_reply_that_ended_otherwise_gets_its_end_of_turn(qwen3_tokenizer: Any) -> None:
    renderer = get_renderer("qwen3_instruct", qwen3_tokenizer)
    end_of_text = qwen3_tokenizer.convert_tokens_to_ids("<|endoftext|>")
    continuation = renderer.build_continuation([5, end_of_text], [QUESTION, ANSWER, NEXT], 1)
    assert qwen3_tokenizer.decode(continuation).startswith("<|im_end|>\n<|im_start|>user\nAnd 2 * 3?<|im_end|>\n")
