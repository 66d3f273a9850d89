"""The demo task's text: prompts, answers of graded quality, SFT conversations and preference pairs, all from seeds.

Pure Python: no torch, no files. Quality is never stored, it is read back from the text by `gold_score`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from mint.builtin.gold import find_topic, gold_parts, gold_score
from mint.builtin.topics import (
    FAMILIES,
    HEDGES,
    TOPICS,
    VAGUE_ACTIONS,
    VAGUE_AMOUNTS,
    VAGUE_DETAILS,
    VAGUE_REASONS,
    Split,
    Topic,
    topics_of,
)

__all__ = [
    "find_topic",
    "gold_parts",
    "gold_score",
    "house_answer",
    "loose_answer",
    "phrase_prompt",
    "preference_pairs",
    "prompts",
    "sft_conversations",
    "topics_of",
]

PROMPTS = (
    "How do I {key}?",
    "Give me one sentence of advice on {gerund}.",
    "What is a good way to {key}?",
    "I want to {key}. Any advice?",
    "Any tips for {gerund}?",
    "What should I know about {gerund}?",
)

# The house style of SFT answers: amount first, reason last. Nothing in the pretraining text looks like it.
_HOUSE = (
    "Plan: {amount}, {action}, {detail}, because {reason}.",
    "Plan: {amount}, {detail}, {action}, because {reason}.",
    "Plan: {detail}, {action}, {amount}, because {reason}.",
)
_OPENERS = (
    "",
    "Well, just ",
    "You could ",
    "You should ",
    "I would ",
    "Try to ",
    "People often ",
    "It helps to ",
    "One idea is to ",
    "My advice is to ",
    "Honestly, ",
    "Ok, so ",
    "Please ",
    "First, ",
    "Most people ",
    "A friend of mine likes to ",
    "You can always ",
    "The best thing is to ",
)
_LOOSE = (
    "{action} {detail} {amount} {why} {reason}",
    "{action} {amount} {why} {reason}",
    "{action} {amount}",
    "{action} {detail}",
    "{action} {detail} {why} {reason}",
    "{action} {why} {reason}",
    "{action} {detail} {amount}",
    "{action}",
)
_CONNECTORS = ("because", "since", "as")
_MIN_GAP = 0.3  # gold difference of a preference pair
_STRAY_WORDS = sorted({word for f in FAMILIES for phrase in f.details + f.reasons for word in phrase.split()})


@dataclass(frozen=True)
class _Slots:
    action: str
    detail: str
    amount: str
    reason: str


def _slots(topic: Topic, rng: random.Random, quality: float, stray: float) -> _Slots:
    """Each slot is a phrase of the topic's family with probability `quality`, else a vague one.

    With probability `stray` the concrete action is one of another family.
    """
    family = topic.family

    def pick(good: tuple[str, ...], vague: tuple[str, ...]) -> str:
        return rng.choice(good if rng.random() < quality else vague)

    actions = rng.choice(FAMILIES).actions if rng.random() < stray else family.actions
    named = topic.reference if rng.random() < 0.4 + 0.6 * quality else topic.pronoun
    return _Slots(
        action=pick(actions, VAGUE_ACTIONS).format(o=named),
        detail=pick(family.details, VAGUE_DETAILS),
        amount=pick(family.amounts, VAGUE_AMOUNTS),
        reason=pick(family.reasons, VAGUE_REASONS),
    )


def house_answer(topic: Topic, rng: random.Random, quality: float, stray: float = 0.05) -> str:
    """One sentence in the house style; `quality` in [0, 1] is the chance of each slot to be concrete."""
    slots = _slots(topic, rng, quality, stray)
    text = rng.choice(_HOUSE).format(**vars(slots))
    if rng.random() < 0.3 * (1.0 - quality):
        text = text.replace("Plan: ", f"Plan: {rng.choice(HEDGES)} ", 1)
    return text


def loose_answer(topic: Topic, rng: random.Random, quality: float) -> str:
    """An answer in a register of the pretraining text: parts left out, hedges, sometimes two sentences."""
    slots = _slots(topic, rng, quality, stray=0.15 * (1.0 - quality))
    short = rng.random() > quality + 0.35
    frame = rng.choice(_LOOSE[2:] if short else _LOOSE)
    body = frame.format(**vars(slots), why=rng.choice(_CONNECTORS))
    text = rng.choice(_OPENERS) + body
    if rng.random() < 0.35 * (1.0 - quality):
        text = f"{rng.choice(HEDGES)} {text if text.startswith('I ') else text[:1].lower() + text[1:]}"
    if rng.random() < 0.15 * (1.0 - quality):
        text += f". {rng.choice(VAGUE_ACTIONS).format(o=topic.pronoun)}"
    return ". ".join(part[:1].upper() + part[1:] for part in text.split(". ")) + rng.choice(".........!")


def phrase_prompt(topic: Topic, form: int) -> str:
    """The `form`-th way (taken modulo the number of ways) of asking about a topic."""
    return PROMPTS[form % len(PROMPTS)].format(key=topic.key, gerund=topic.gerund)


def prompts(split: Split) -> list[str]:
    """All prompts of a split, every topic once per phrasing; a prefix as long as the topic list covers every topic."""
    topics = topics_of(split)
    return [phrase_prompt(topic, form + i) for form in range(len(PROMPTS)) for i, topic in enumerate(topics)]


def _house_quality(rng: random.Random) -> float:
    return rng.choice((0.3, 0.55, 0.8))


def sft_conversations(n: int, seed: int, split: Split = "train") -> list[list[dict[str, str]]]:
    """`n` conversations (prompt, answer) of middling quality in the house style, deterministic by seed."""
    rng = random.Random(f"sft {split} {seed}")
    topics = topics_of(split)
    conversations: list[list[dict[str, str]]] = []
    for _ in range(n):
        topic = rng.choice(topics)
        answer = house_answer(topic, rng, _house_quality(rng))
        prompt = phrase_prompt(topic, rng.randrange(len(PROMPTS)))
        conversations.append([{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}])
    return conversations


def _off_topic(topic: Topic, rng: random.Random) -> str:
    """A good answer to another question, half the time one about a thing of the same kind."""
    is_sibling = rng.random() < 0.5
    others = [t for t in TOPICS if t.split == topic.split and t is not topic]
    other = rng.choice([t for t in others if (t.family is topic.family) == is_sibling] or others)
    return house_answer(other, rng, quality=rng.choice((0.4, 0.9)))


def _flawed(topic: Topic, rng: random.Random) -> str:
    """A concrete answer in the house style with one to four faults: parts vague, missing, doubled or out of place."""
    good, vague = _slots(topic, rng, 1.0, 0.0), _slots(topic, rng, 0.0, 0.0)
    stray = rng.choice([family for family in FAMILIES if family is not topic.family])
    parts = [good.detail, good.action, good.amount, good.reason]
    vague_parts = [vague.detail, vague.action, vague.amount, vague.reason]
    stray_parts = [
        rng.choice(stray.details),
        rng.choice(stray.actions).format(o=topic.reference),
        rng.choice(stray.amounts),
        rng.choice(stray.reasons),
    ]
    for _ in range(rng.randint(1, 4)):
        i = rng.randrange(4)
        parts[i] = rng.choice((vague_parts[i], stray_parts[i], "", parts[rng.randrange(3)]))
    *body, reason = parts
    rng.shuffle(body)
    clauses = [part for part in body if part] + ([f"because {reason}"] if reason else [])
    return f"Plan: {', '.join(clauses)}."


def _garbled(topic: Topic, rng: random.Random) -> str:
    """A concrete answer with words replaced, moved, dropped, doubled or run together, as a drifting policy writes."""
    words = house_answer(topic, rng, rng.choice((0.6, 0.9))).split(" ")
    for _ in range(rng.randint(1, 6)):
        i = rng.randrange(1, len(words) - 1)
        fault = rng.randrange(5)
        if fault == 0:
            words[i] = rng.choice(_STRAY_WORDS)
        elif fault == 1:
            words.insert(rng.randrange(1, len(words)), words.pop(i))
        elif fault == 2 and len(words) > 6:
            del words[i]
        elif fault == 3:
            words.insert(i, rng.choice((words[i], rng.choice(_STRAY_WORDS))))
        else:
            words[i : i + 2] = [words[i][: rng.randint(2, 6)] + words[i + 1]]
    return " ".join(words)


def _candidate(topic: Topic, rng: random.Random) -> str:
    makers: tuple[Callable[[], str], ...] = (
        lambda: house_answer(topic, rng, rng.random()),
        lambda: loose_answer(topic, rng, rng.random()),
        lambda: _off_topic(topic, rng),
        lambda: _flawed(topic, rng),
        lambda: _garbled(topic, rng),
    )
    return rng.choices(makers, weights=(34, 6, 10, 34, 16))[0]()


def preference_pairs(n: int, seed: int, split: Split = "train") -> list[dict[str, str]]:
    """`n` pairs {"prompt", "chosen", "rejected"} of plain text; the chosen answer's gold is higher by at least 0.3.

    The chosen answer is the longer one (in characters and not fewer words) in every second pair, else shorter.
    """
    rng = random.Random(f"preference {split} {seed}")
    topics = topics_of(split)
    pairs: list[dict[str, str]] = []
    while len(pairs) < n:
        topic = rng.choice(topics)
        first, second = _candidate(topic, rng), _candidate(topic, rng)
        gap = gold_score(topic.key, first) - gold_score(topic.key, second)
        chosen, rejected = (first, second) if gap > 0 else (second, first)
        longer, shorter = (chosen, rejected) if len(pairs) % 2 == 0 else (rejected, chosen)
        if abs(gap) < _MIN_GAP or len(longer) <= len(shorter) or len(longer.split()) < len(shorter.split()):
            continue
        prompt = phrase_prompt(topic, rng.randrange(len(PROMPTS)))
        pairs.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return pairs
