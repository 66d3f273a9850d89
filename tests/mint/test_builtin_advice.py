"""The demo task's text and its gold score: graded, honest, deterministic, and no length cue."""

from __future__ import annotations

import random
from collections.abc import Iterable
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.builtin import advice
from mint.builtin.gold import PARTS
from mint.builtin.topics import (
    FAMILIES,
    TOPICS,
    VAGUE_ACTIONS,
    VAGUE_AMOUNTS,
    VAGUE_DETAILS,
    VAGUE_REASONS,
    Split,
    Topic,
)
from mint.errors import InvalidRequest

SPLITS: tuple[Split, ...] = ("train", "heldout", "rl_train", "rl_heldout")
GOOD = "Plan: twice a week, soak the soil around the fern, early in the morning, because wet roots rot quickly."


def test_splits_are_disjoint_and_cover_every_family() -> None:
    keys = [{topic.key for topic in advice.topics_of(split)} for split in SPLITS]
    assert [len(k) for k in keys] == [48, 16, 48, 16]
    assert len(set().union(*keys)) == len(TOPICS) == 128
    for split in SPLITS:
        assert {topic.family.name for topic in advice.topics_of(split)} == {family.name for family in FAMILIES}


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.key)
def test_every_topic_can_reach_full_gold_and_fall_to_almost_none(topic: Topic) -> None:
    rng = random.Random(topic.key)
    assert [advice.gold_score(topic.key, advice.house_answer(topic, rng, 1.0, stray=0.0)) for _ in range(20)] == [
        1.0
    ] * 20
    assert max(advice.gold_score(topic.key, advice.house_answer(topic, rng, 0.0, stray=0.0)) for _ in range(20)) <= 0.15


def test_gold_climbs_slot_by_slot() -> None:
    def plan(amount: str, action: str, detail: str, reason: str) -> str:
        return f"Plan: {amount}, {action}, {detail}, because {reason}."

    ladder = [
        plan("now and then", "do your best with it", "with some care", "it never hurts to try"),
        plan("now and then", "do your best with the fern", "with some care", "it never hurts to try"),
        plan("now and then", "do your best with the fern", "early in the morning", "it never hurts to try"),
        plan("every day", "do your best with the fern", "early in the morning", "it never hurts to try"),
        plan("twice a week", "do your best with the fern", "early in the morning", "it never hurts to try"),
        plan("twice a week", "do your best with the fern", "early in the morning", "wet roots rot quickly"),
        plan("twice a week", "soak the soil around the fern", "early in the morning", "wet roots rot quickly"),
    ]
    expected = [0.0, 0.15, 0.25, 0.35, 0.45, 0.6, 1.0]
    assert [advice.gold_score("How do I water a fern?", text) for text in ladder] == pytest.approx(expected)


def test_gold_reads_plain_registers_too() -> None:
    text = "You could soak the soil around your fern twice a week because wet roots rot quickly."
    assert advice.gold_score("water a fern", text) == pytest.approx(0.9)
    assert advice.gold_parts("watering a fern", text)["detail"] == 0.0


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("", 0.0),
        ("   \n", 0.0),
        ("fern", 0.15),
        ("fern fern fern fern fern fern fern fern.", 0.06),
        (GOOD[:-1], 0.7),
        (f"{GOOD} {GOOD}", 0.3),
        (GOOD.replace("fern", "chisel"), 0.5),
        (GOOD.replace("Plan: ", "Plan: maybe "), 0.8),
        ("fern soil light leaves morning window twice week roots rot because air.", 0.2),
        ("zzz qqq " * 30 + GOOD, 0.2),
    ],
)
def test_gold_is_low_for_gamed_or_empty_text(text: str, most: float) -> None:
    assert advice.gold_score("water a fern", text) <= most + 1e-9


def test_listing_every_phrase_of_the_topic_scores_low() -> None:
    family = TOPICS[0].family
    everything = [a.format(o="the fern") for a in family.actions]
    everything += [*family.details, *family.amounts, *(f"because {reason}" for reason in family.reasons)]
    assert advice.gold_score("water a fern", ", ".join(everything) + ".") < 0.05


@given(st.text(max_size=300))
def test_gold_stays_in_range_for_any_text(text: str) -> None:
    assert 0.0 <= advice.gold_score("water a fern", text) <= 1.0


@given(st.sampled_from(TOPICS), st.integers(0, 5), st.integers(0, 10**6))
def test_saying_a_good_answer_twice_never_pays(topic: Topic, form: int, seed: int) -> None:
    prompt = advice.phrase_prompt(topic, form)
    once = advice.house_answer(topic, random.Random(seed), 0.8)
    score = advice.gold_score(prompt, once)
    assert advice.gold_score(prompt, f"{once} {once}") <= 0.5 * score


@given(st.sampled_from(TOPICS), st.integers(0, 5))
def test_every_phrasing_names_its_topic(topic: Topic, form: int) -> None:
    assert advice.find_topic(advice.phrase_prompt(topic, form)) == topic


def test_unknown_topic_is_refused_with_the_fix() -> None:
    with pytest.raises(InvalidRequest, match="names no topic of the advice task; use a key such as 'water a fern'"):
        advice.gold_score("How do I fly a kite?", "Run.")


def test_prompts_cover_the_topics_evenly_from_the_start() -> None:
    first = advice.prompts("rl_train")[:48]
    assert len({advice.find_topic(prompt).key for prompt in first}) == 48
    assert len(set(advice.prompts("rl_train"))) == 48 * 6


def test_sft_answers_are_middling_and_vary() -> None:
    scores = [
        advice.gold_score(user["content"], reply["content"]) for user, reply in advice.sft_conversations(1000, seed=0)
    ]
    assert 0.45 <= mean(scores) <= 0.6
    assert pstdev(scores) > 0.2


def test_text_is_deterministic_by_seed() -> None:
    assert (
        advice.sft_conversations(5, seed=3)
        == advice.sft_conversations(5, seed=3)
        != advice.sft_conversations(5, seed=4)
    )
    assert (
        advice.preference_pairs(5, seed=3) == advice.preference_pairs(5, seed=3) != advice.preference_pairs(5, seed=4)
    )


def test_pairs_have_a_gold_gap_and_no_length_cue() -> None:
    pairs = advice.preference_pairs(1000, seed=1)
    gaps = [advice.gold_score(p["prompt"], p["chosen"]) - advice.gold_score(p["prompt"], p["rejected"]) for p in pairs]
    assert min(gaps) >= 0.3
    for length in (len, lambda text: len(text.split())):
        sizes = [(length(p["chosen"]), length(p["rejected"])) for p in pairs]
        assert abs(mean((c > r) + 0.5 * (c == r) for c, r in sizes) - 0.5) < 0.06


def test_vague_phrases_have_the_length_of_concrete_ones() -> None:
    def words(phrases: Iterable[str]) -> float:
        return mean(len(phrase.split()) for phrase in phrases)

    for vague, name in (
        (VAGUE_ACTIONS, "actions"),
        (VAGUE_DETAILS, "details"),
        (VAGUE_AMOUNTS, "amounts"),
        (VAGUE_REASONS, "reasons"),
    ):
        concrete = words(phrase for family in FAMILIES for phrase in getattr(family, name))
        assert abs(words(vague) - concrete) < 1.2


def test_the_parts_of_gold_add_up_to_one() -> None:
    assert sum(PARTS.values()) == pytest.approx(1.0)
