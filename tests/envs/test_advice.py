"""The advice task as messages: types, splits, and gold read from an assistant reply."""

from __future__ import annotations

import pytest

from envs import advice
from mint.errors import InvalidRequest


def test_prompts_are_single_user_messages_with_a_known_topic() -> None:
    for split in ("train", "heldout", "rl_train", "rl_heldout"):
        for prompt in advice.prompts(split)[:5]:
            assert [message["role"] for message in prompt] == ["user"]
            assert advice.gold(prompt, "") == 0.0


def test_conversations_are_scored_by_their_last_message() -> None:
    conversation = advice.conversations(1, seed=0)[0]
    assert [message["role"] for message in conversation] == ["user", "assistant"]
    assert advice.gold_of_conversation(conversation) == advice.gold(conversation[:1], conversation[1]["content"])


def test_pairs_prefer_the_answer_with_higher_gold() -> None:
    for pair in advice.pairs(20, seed=0, split="heldout"):
        assert advice.gold(pair["prompt"], pair["chosen"]) >= advice.gold(pair["prompt"], pair["rejected"]) + 0.3


def test_gold_uses_the_last_question() -> None:
    reply = "Soak the soil around the fern twice a week because wet roots rot quickly."
    first = {"role": "user", "content": "How do I bake bread?"}
    last = {"role": "user", "content": "How do I water a fern?"}
    between = {"role": "assistant", "content": "Weigh the flour."}
    assert advice.gold([first, between, last], reply) == pytest.approx(0.9)
    assert advice.gold([last, between, first], reply) < 0.3


def test_gold_refuses_prompts_without_a_question() -> None:
    with pytest.raises(InvalidRequest, match="needs a user message"):
        advice.gold([{"role": "system", "content": "Be brief."}], "Yes.")
    with pytest.raises(InvalidRequest, match="must end with an assistant message"):
        advice.gold_of_conversation([{"role": "user", "content": "How do I bake bread?"}])
