"""Does a renderer suit a model: its chat template, its stops, and replies that survive being written and read.

Axes: _T token of a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recipe.check_result import Check, Outcome
from renderers import Message, Renderer

SAMPLE: list[Message] = [
    {"role": "system", "content": "You give short, practical advice."},
    {"role": "user", "content": "How can I sleep better?"},
    {"role": "assistant", "content": "Keep the bedroom dark, and put the phone away an hour before bed."},
    {"role": "user", "content": "And if I still lie awake?"},
    {"role": "assistant", "content": "Get up, read a few pages in dim light,\nand go back when you are tired."},
]
"""Several turns, a system message, a line break."""

_REPLIES = (
    "Drink water.",
    "First line.\n\n- second line: naïve café, 東京, 🙂\n- third",
    "Type <|im_end|> and </s>, then go on.",
)
"""Replies that a round trip could lose: line breaks, characters of several bytes, text like a control token."""


@dataclass(frozen=True)
class Difference:
    """The first position at which two token sequences differ, and what stands there (None: the end)."""

    position: int
    ours: int | None
    theirs: int | None


def first_difference(ours_T: Sequence[int], theirs_T: Sequence[int]) -> Difference | None:
    """None where the sequences are equal."""
    for position in range(max(len(ours_T), len(theirs_T))):
        ours = ours_T[position] if position < len(ours_T) else None
        theirs = theirs_T[position] if position < len(theirs_T) else None
        if ours != theirs:
            return Difference(position, ours, theirs)
    return None


def check_chat_template(renderer: Renderer, tokenizer: Any, recommended: str | None) -> Check:
    """Token by token, the sample as an example and as a prompt, by the renderer and by the tokenizer's own template.

    recommended: the renderer that this model's name calls for; None where it is not known.
    """
    name = "chat template"
    if not tokenizer.chat_template:
        return Check(name, Outcome.NOTE, "the tokenizer has no chat template to compare with")
    if renderer.name == recommended == "role_colon":
        return Check(name, Outcome.NOTE, "not compared: role_colon is plain text, for base models")
    example, _ = renderer.build_supervised_example(SAMPLE)
    prompt = renderer.build_generation_prompt(SAMPLE[:-1])
    num_tokens = 0
    for what, model_input, messages in (("example", example, SAMPLE), ("prompt", prompt, SAMPLE[:-1])):
        ours_T = model_input.to_ints()
        theirs_T = _template_tokens(tokenizer, messages, renderer.name, add_generation_prompt=what == "prompt")
        difference = first_difference(ours_T, theirs_T)
        if difference is not None:
            before = repr(tokenizer.decode(ours_T[max(0, difference.position - 6) : difference.position]))
            detail = (
                f"the {what} differs first at token {difference.position} (ours has {len(ours_T)}, the template's "
                f"{len(theirs_T)}), after {before}: ours {_token(difference.ours, tokenizer)}, "
                f"the template's {_token(difference.theirs, tokenizer)}"
            )
            return Check(name, Outcome.FAIL, detail, _template_remedy(renderer.name, recommended))
        num_tokens += len(ours_T)
    return Check(name, Outcome.OK, f"same: {num_tokens} tokens, an example and a prompt")


def _template_tokens(
    tokenizer: Any, messages: Sequence[Message], renderer_name: str, *, add_generation_prompt: bool
) -> list[int]:
    switches = {"enable_thinking": False} if renderer_name.endswith("disable_thinking") else {}
    tokens = tokenizer.apply_chat_template(
        list(messages), tokenize=True, return_dict=False, add_generation_prompt=add_generation_prompt, **switches
    )
    return list(tokens)


def _token(token: int | None, tokenizer: Any) -> str:
    return "the end" if token is None else f"{token} {tokenizer.decode([token])!r}"


def _template_remedy(name: str, recommended: str | None) -> str:
    if recommended is not None and recommended != name:
        return f"use --renderer {recommended} (renderer_name={recommended} in a recipe), which this model was made for"
    return (
        "try another --renderer; if none is the same, the model speaks a format of its own: "
        "docs/new_renderer.md shows how to write its renderer"
    )


def check_round_trip(renderer: Renderer, tokenizer: Any) -> Check:
    """Replies as trained on: they continue the prompt they would be sampled from, end with a stop, and parse back."""
    name = "parse round trip"
    remedy = "the renderer is at fault: look at its parse_response and get_stop_sequences"
    for reply in _REPLIES:
        messages: list[Message] = [*SAMPLE[:-1], {"role": "assistant", "content": reply}]
        prompt_T = renderer.build_generation_prompt(messages[:-1]).to_ints()
        example, weights_T = renderer.build_supervised_example(messages)
        tokens_T = example.to_ints()
        if tokens_T[: len(prompt_T)] != prompt_T:
            return Check(name, Outcome.FAIL, f"the example of {reply!r} does not begin with its prompt", remedy)
        reply_T = [token for token, weight in zip(tokens_T, weights_T, strict=True) if weight > 0]
        if not _ends_with_a_stop(reply_T, renderer, tokenizer):
            return Check(name, Outcome.FAIL, f"the tokens of {reply!r} do not end with a stop", remedy)
        message, status = renderer.parse_response(reply_T)
        if not status or message["content"] != reply:
            detail = f"{reply!r} was read back as {message['content']!r} ({status.value})"
            return Check(name, Outcome.FAIL, detail, remedy)
    return Check(name, Outcome.OK, f"{len(_REPLIES)} replies continue their prompt, end with a stop and are read back")


def _ends_with_a_stop(reply_T: Sequence[int], renderer: Renderer, tokenizer: Any) -> bool:
    stops = renderer.get_stop_sequences()
    text = str(tokenizer.decode(list(reply_T)))
    return any(text.endswith(stop) if isinstance(stop, str) else reply_T[-1] == stop for stop in stops)


def describe_stops(renderer: Renderer, tokenizer: Any) -> str:
    """The stops as a person reads them: ids with their text, or strings."""
    stops = renderer.get_stop_sequences()
    return ", ".join(repr(stop) if isinstance(stop, str) else _token(stop, tokenizer) for stop in stops)
