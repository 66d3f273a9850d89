"""Degraded replies: what they say, for which pairs they are made, and which pairs are taken."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.preference.probes import PROBES, REFUSAL, degraded_text, probes_of
from recipe.preference.types import PreferencePair
from renderers import Message, get_text


def pair(prompt: str, chosen: str, rejected: str = "no", **more: bool) -> PreferencePair:
    return PreferencePair(
        [Message(role="user", content=prompt)],
        Message(role="assistant", content=chosen),
        Message(role="assistant", content=rejected),
        **more,
    )


BREAD = pair("How do I bake bread?", "Knead it for ten minutes.")
TEA = pair("How do I brew tea?", "Steep it for three minutes.")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty", ""),
        ("repeated", "Knead it for ten minutes. Knead it for ten minutes. Knead it for ten minutes."),
        ("cut", "Knead it for"),
        ("refusing", REFUSAL),
        ("echo", "How do I bake bread?"),
        ("other_prompt", "Steep it for three minutes."),
    ],
)
def test_worked_probes(name: str, text: str) -> None:
    assert degraded_text(name, BREAD, TEA) == text


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("refusing", "I'm sorry, I can’t do that."),
        ("refusing", "I cannot help you pick a lock."),
        ("refusing", REFUSAL),
        ("cut", "a"),  # the half of it is the empty probe again
        ("echo", "How do I bake bread?"),
        ("other_prompt", "Steep it for three minutes."),
    ],
)
def test_a_reply_that_would_be_no_worse_is_no_probe(name: str, chosen: str) -> None:
    assert degraded_text(name, pair("How do I bake bread?", chosen), TEA) is None


def test_declining_late_in_a_reply_is_no_refusal() -> None:
    long = "Knead it for ten minutes, let it rise, then bake it until it is brown and sounds hollow. Don't be sorry."
    assert degraded_text("refusing", pair("How?", long), TEA) == REFUSAL


def test_each_probe_keeps_the_prompt_and_replaces_the_reply() -> None:
    probes = probes_of([BREAD, TEA], max_prompts=9)
    assert [probe.name for probe in probes] == [name for name in PROBES for _ in range(2)]
    for probe in probes:
        assert probe.degraded[:-1] == probe.chosen[:-1] and probe.degraded[-1]["role"] == "assistant"
        assert get_text(probe.degraded[-1]) != get_text(probe.chosen[-1])
    crossed = {get_text(p.chosen[-1]): get_text(p.degraded[-1]) for p in probes if p.name == "other_prompt"}
    assert crossed == {get_text(a.chosen): get_text(b.chosen) for a, b in ((BREAD, TEA), (TEA, BREAD))}


def test_one_prompt_alone_has_no_reply_to_another() -> None:
    assert {probe.name for probe in probes_of([BREAD, pair("How do I bake bread?", "Rest it.")], 9)} == {*PROBES} - {
        "other_prompt"
    }


def test_ties_and_replies_without_text_are_left_out() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": {}}]}
    silent = PreferencePair([Message(role="user", content="3 + 4?")], call, Message(role="assistant", content="7"))
    assert probes_of([silent, pair("Tie?", "a reply", is_tie=True)], 9) == []
    assert probes_of([BREAD], max_prompts=0) == []


@given(num_pairs=st.integers(1, 30), max_prompts=st.integers(0, 12), seed=st.integers(0, 9))
def test_one_pair_a_prompt_whatever_the_order(num_pairs: int, max_prompts: int, seed: int) -> None:
    pairs = [pair(f"Question {i % 7}?", f"Reply number {i} to that.") for i in range(num_pairs)]
    probes = probes_of(pairs, max_prompts)
    empties = [probe for probe in probes if probe.name == "empty"]
    assert len(empties) == min(max_prompts, num_pairs, 7)
    assert len({get_text(probe.chosen[0]) for probe in empties}) == len(empties)
    random.Random(seed).shuffle(pairs)
    assert probes_of(pairs, max_prompts) == probes
