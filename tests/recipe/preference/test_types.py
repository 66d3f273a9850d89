"""What a pair must be."""

from __future__ import annotations

from typing import Any

import pytest

from mint.errors import InvalidRequest
from recipe.preference.types import PreferencePair

PROMPT = [{"role": "user", "content": "Tea or coffee?"}]


def _pair(**changes: Any) -> PreferencePair:
    values: dict[str, Any] = {
        "prompt": PROMPT,
        "chosen": {"role": "assistant", "content": "Tea."},
        "rejected": {"role": "assistant", "content": "Coffee."},
    }
    return PreferencePair(**(values | changes))


def test_conversations_end_with_their_reply() -> None:
    pair = _pair()
    assert [message["content"] for message in pair.chosen_conversation] == ["Tea or coffee?", "Tea."]
    assert [message["content"] for message in pair.rejected_conversation] == ["Tea or coffee?", "Coffee."]


def test_swapped_exchanges_the_replies_and_keeps_the_rest() -> None:
    pair = _pair(source="survey", strength=2.5)
    assert pair.swapped() == _pair(chosen=pair.rejected, rejected=pair.chosen, source="survey", strength=2.5)
    assert pair.swapped().swapped() == pair


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rejected": {"role": "assistant", "content": " Tea.\n"}}, "chosen and rejected are equal ('Tea.')"),
        ({"chosen": {"role": "user", "content": "Tea."}}, "chosen has role 'user': it must be an assistant message"),
        ({"rejected": {"role": "assistant"}}, "['content'] must be a string, got NoneType"),
        ({"prompt": []}, "a conversation needs at least one message"),
        (
            {"prompt": [*PROMPT, {"role": "assistant", "content": "Well"}]},
            "the prompt ends with an assistant message: it must end before the reply",
        ),
    ],
)
def test_a_broken_pair_is_refused_with_the_reason(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _pair(**changes)
    assert words in str(caught.value)


def test_a_pair_is_of_strength_one_and_no_tie_unless_it_says_so() -> None:
    pair, tie = _pair(), _pair(is_tie=True)
    assert (pair.strength, pair.is_tie) == (1.0, False)
    assert (tie.strength, tie.is_tie) == (1.0, True)
    assert tie != pair
    assert tie.swapped().is_tie


@pytest.mark.parametrize("strength", [0.0, -1.0, float("nan"), float("inf")])
def test_a_strength_is_finite_and_above_zero(strength: float) -> None:
    with pytest.raises(InvalidRequest, match=f"strength={strength}: must be a finite number above 0.*is_tie=True"):
        _pair(strength=strength)


def test_a_tie_has_no_strength() -> None:
    with pytest.raises(InvalidRequest, match=r"strength=2\.0 with is_tie=True: a tie has no strength"):
        _pair(strength=2.0, is_tie=True)


def test_replies_that_differ_only_in_their_tool_call_are_different() -> None:
    def call(city: str) -> dict[str, Any]:
        arguments = {"city": city}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": arguments}}],
        }

    pair = _pair(chosen=call("Oslo"), rejected=call("Rome"))
    assert pair.chosen != pair.rejected
