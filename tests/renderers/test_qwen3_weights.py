"""Which tokens of a Qwen3 conversation carry loss, token by token, and that training sees what sampling sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mint.errors import InvalidRequest
from renderers import FunctionCall, Message, TrainOnWhat, get_renderer

THINKING_MODES = ["qwen3", "qwen3_disable_thinking", "qwen3_instruct"]


def _trained_text(tokenizer: Any, renderer_name: str, messages: list[Message], mode: TrainOnWhat) -> list[str]:
    """The stretches of text that carry loss, in order."""
    model_input, weights_T = get_renderer(renderer_name, tokenizer).build_supervised_example(messages, mode)
    stretches: list[list[int]] = []
    was_trained = False
    for token, weight in zip(model_input.to_ints(), weights_T, strict=True):
        if weight and not was_trained:
            stretches.append([])
        if weight:
            stretches[-1].append(token)
        was_trained = bool(weight)
    return [tokenizer.decode(stretch) for stretch in stretches]


def test_weights_are_listed_token_by_token(qwen3_tokenizer: Any) -> None:
    messages: list[Message] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]
    model_input, weights_T = get_renderer("qwen3_disable_thinking", qwen3_tokenizer).build_supervised_example(messages)
    tokens_T = model_input.to_ints()
    pieces = [
        ("<|im_start|>", 0),
        ("user\n", 0),
        ("hi", 0),
        ("<|im_end|>", 0),
        ("\n", 0),
        ("<|im_start|>", 0),
        ("assistant\n", 0),
        ("<think>", 0),
        ("\n\n", 0),
        ("</think>", 0),
        ("\n\n", 0),
        ("ok", 1),
        ("<|im_end|>", 1),
        ("\n", 0),
    ]
    expected = [
        (token, float(weight))
        for text, weight in pieces
        for token in qwen3_tokenizer.encode(text, add_special_tokens=False)
    ]
    assert list(zip(tokens_T, weights_T.tolist(), strict=True)) == expected
    assert weights_T.dtype == np.float32
    assert weights_T.shape == (model_input.length,)


@pytest.mark.parametrize(
    ("renderer_name", "reply"),
    [
        ("qwen3", "<think>\nwhy\n</think>\n\nso<|im_end|>"),
        ("qwen3_disable_thinking", "so<|im_end|>"),
        ("qwen3_instruct", "so<|im_end|>"),
    ],
)
def test_reasoning_is_trained_only_where_it_is_sampled(qwen3_tokenizer: Any, renderer_name: str, reply: str) -> None:
    messages: list[Message] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "so", "thinking": "why"},
    ]
    assert _trained_text(qwen3_tokenizer, renderer_name, messages, TrainOnWhat.LAST_ASSISTANT_MESSAGE) == [reply]


def test_thinking_renderer_trains_the_empty_block_that_the_policy_has_to_write(qwen3_tokenizer: Any) -> None:
    messages: list[Message] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}]
    trained = _trained_text(qwen3_tokenizer, "qwen3", messages, TrainOnWhat.LAST_ASSISTANT_MESSAGE)
    assert trained == ["<think>\n\n</think>\n\nso<|im_end|>"]


CONVERSATION: list[Message] = [
    {"role": "system", "content": "sys"},
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "content": "a2"},
]


@pytest.mark.parametrize(
    ("mode", "trained"),
    [
        (TrainOnWhat.LAST_ASSISTANT_MESSAGE, ["a2<|im_end|>"]),
        (TrainOnWhat.ALL_ASSISTANT_MESSAGES, ["a1<|im_end|>", "a2<|im_end|>"]),
        (
            TrainOnWhat.ALL_MESSAGES,
            ["sys<|im_end|>", "q1<|im_end|>", "a1<|im_end|>", "q2<|im_end|>", "a2<|im_end|>"],
        ),
    ],
)
def test_each_mode_trains_its_messages(qwen3_tokenizer: Any, mode: TrainOnWhat, trained: list[str]) -> None:
    assert _trained_text(qwen3_tokenizer, "qwen3_disable_thinking", CONVERSATION, mode) == trained


def test_all_tokens_trains_headers_too(qwen3_tokenizer: Any) -> None:
    _, weights_T = get_renderer("qwen3", qwen3_tokenizer).build_supervised_example(CONVERSATION, TrainOnWhat.ALL_TOKENS)
    assert weights_T.min() == 1.0


def test_customized_trains_the_flagged_messages(qwen3_tokenizer: Any) -> None:
    flags = [False, True, False, False, True]
    messages: list[Message] = [
        {"role": message["role"], "content": message["content"], "trainable": flag}
        for message, flag in zip(CONVERSATION, flags, strict=True)
    ]
    trained = _trained_text(qwen3_tokenizer, "qwen3_instruct", messages, TrainOnWhat.CUSTOMIZED)
    assert trained == ["q1<|im_end|>", "a2<|im_end|>"]


def test_tool_results_and_tool_list_carry_no_loss_unless_asked(qwen3_tokenizer: Any) -> None:
    messages: list[Message] = [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "calc", "arguments": {"expr": "1"}}}],
        },
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "one"},
    ]
    call = '<tool_call>\n{"name": "calc", "arguments": {"expr": "1"}}\n</tool_call><|im_end|>'
    trained = _trained_text(qwen3_tokenizer, "qwen3_disable_thinking", messages, TrainOnWhat.ALL_ASSISTANT_MESSAGES)
    assert trained == [call, "one<|im_end|>"]
    trained = _trained_text(qwen3_tokenizer, "qwen3_disable_thinking", messages, TrainOnWhat.ALL_MESSAGES)
    results = [
        "<tool_response>\n1\n</tool_response>",
        "<tool_response>\n2\n</tool_response><|im_end|>",
    ]
    assert trained == ["q<|im_end|>", call, *results, "one<|im_end|>"]


@pytest.mark.parametrize(
    ("messages", "mode", "message"),
    [
        ([{"role": "user", "content": "x"}], "last_assistant_message", "no assistant message to train on"),
        ([{"role": "user", "content": "x"}], "all_assistant_messages", "no assistant message to train on"),
        ([{"role": "assistant", "content": "x"}], "customized", r"messages\[0\] has no 'trainable'"),
        (
            [{"role": "assistant", "content": "x", "trainable": True}],
            "last_assistant_message",
            "train_on_what='last_assistant_message' would ignore",
        ),
        ([{"role": "assistant", "content": "x", "trainable": False}], "customized", "no message is trainable"),
        ([{"role": "assistant", "content": "x"}], "last_assistant", "Did you mean 'last_assistant_message'"),
    ],
)
def test_examples_without_a_clear_loss_are_refused(
    qwen3_tokenizer: Any, messages: list[Message], mode: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        get_renderer("qwen3", qwen3_tokenizer).build_supervised_example(messages, mode)


CONTENTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["\n\nlead", "  x\n", " \n z", "<|im_end|>", "</think>", "<think>\nt\n</think>\n\nans", "\r\n"]),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """A conversation whose last message is the reply; a system turn, tool results and tool calls may come before."""
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(CONTENTS)})
    for _ in range(draw(st.integers(0, 2))):
        messages.append({"role": "user", "content": draw(CONTENTS)})
        messages.append({"role": "assistant", "content": draw(CONTENTS), "thinking": draw(CONTENTS)})
    messages.append({"role": "user", "content": draw(CONTENTS)})
    if draw(st.booleans()):
        call: FunctionCall = {"name": "calc", "arguments": {"expr": draw(CONTENTS)}}
        messages.append({"role": "assistant", "content": draw(CONTENTS), "tool_calls": [{"function": call}]})
        messages.append({"role": "tool", "content": draw(CONTENTS)})
    reply: Message = {"role": "assistant", "content": draw(CONTENTS)}
    if draw(st.booleans()):
        reply["thinking"] = draw(CONTENTS)
    return [*messages, reply]


@pytest.mark.parametrize("renderer_name", THINKING_MODES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=conversations())
def test_prompt_is_a_prefix_of_the_supervised_example(
    qwen3_tokenizer: Any, renderer_name: str, messages: list[Message]
) -> None:
    renderer = get_renderer(renderer_name, qwen3_tokenizer)
    prompt = renderer.build_generation_prompt(messages[:-1]).to_ints()
    model_input, weights_T = renderer.build_supervised_example(messages)
    tokens_T = model_input.to_ints()
    assert tokens_T[: len(prompt)] == prompt
    # What is trained is the whole reply, from the end of the prompt to the end of the turn.
    trailer = qwen3_tokenizer.encode("\n", add_special_tokens=False)
    num_reply = len(tokens_T) - len(prompt) - len(trailer)
    assert weights_T.tolist() == [0.0] * len(prompt) + [1.0] * num_reply + [0.0] * len(trailer)
    assert tokens_T[len(prompt) + num_reply - 1] in (renderer.get_stop_sequences())


def test_only_the_instruct_renderer_extends_its_prompts(qwen3_tokenizer: Any) -> None:
    first: list[Message] = [{"role": "user", "content": "q1"}]
    reply: Message = {"role": "assistant", "content": "a1", "thinking": "t1"}
    second: list[Message] = [*first, reply, {"role": "user", "content": "q2"}]
    for name in THINKING_MODES:
        renderer = get_renderer(name, qwen3_tokenizer)
        model_input, weights_T = renderer.build_supervised_example([*first, reply])
        sampled = renderer.build_generation_prompt(first).to_ints()
        sampled += [token for token, weight in zip(model_input.to_ints(), weights_T, strict=True) if weight]
        extends = renderer.build_generation_prompt(second).to_ints()[: len(sampled)] == sampled
        assert extends == renderer.has_extension_property == (name == "qwen3_instruct")
