"""How good a piece of advice is, read from its text alone; the reference that no preference model ever sees.

Six parts add up to 1: the object is named (0.15), a concrete action that suits the topic (0.30), how to do it (0.10),
how much or how often (0.20), a real reason (0.15), no vague or hedging words (0.10). Factors below 1 punish bad form:
no full stop, several sentences, repetition, another topic's object, phrase lists, unknown words, great length.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise

from mint.builtin.topics import (
    FAMILIES,
    HEDGES,
    TOPICS,
    VAGUE_ACTIONS,
    VAGUE_AMOUNTS,
    VAGUE_DETAILS,
    VAGUE_REASONS,
    Family,
    Topic,
)
from mint.errors import InvalidRequest

PARTS: dict[str, float] = {
    "object": 0.15,
    "action": 0.30,
    "detail": 0.10,
    "amount": 0.20,
    "reason": 0.15,
    "direct": 0.10,
}

# Words that join the phrases of an answer: openers, connectors, the house style.
GLUE = (
    "well just you could should i would try to people often most it helps one idea is my advice a friend of mine likes "
    "honestly ok so here goes first and then because since as plan for with do not also think them your "
    "in on at by or this if can some say want always be never please sure right answer best thing make start simply"
)
_CONNECTOR = r"(?:because|since|as)"
_NUMBER = r"(?:an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|forty|fifty|every|\d+)"
_UNIT = r"(?:seconds?|minutes?|hours?|days?|weeks?|months?|times|morning|evening|night|monday|friday|saturday|percent)"
_ANY_AMOUNT = re.compile(rf"\b(?:once(?! in a while)|twice)\b|\b{_NUMBER}(?: \w+)? {_UNIT}\b")
_MAX_WORDS = 40
_MAX_GLUE_WORDS = 10


def _any_of(phrases: tuple[str, ...]) -> str:
    return "(?:" + "|".join(re.escape(phrase) for phrase in sorted(phrases, key=len, reverse=True)) + ")"


def _with_object(actions: tuple[str, ...], topic: Topic) -> str:
    slot = rf"(?:(?:the |a |an |your |my )?{re.escape(topic.noun)}|it|them)"
    return "(?:" + "|".join(re.escape(a).replace(r"\{o\}", slot) for a in actions) + ")"


_BY_PHRASE: dict[str, Topic] = {phrase: topic for topic in TOPICS for phrase in (topic.key, topic.gerund)}
_TOPIC_PHRASE = re.compile(rf"\b{_any_of(tuple(_BY_PHRASE))}\b")
_NOUNS = {topic.noun for topic in TOPICS}
_NOUN = re.compile(rf"\b{_any_of(tuple(_NOUNS))}\b")
_HEDGE = re.compile(rf"\b{_any_of(tuple(hedge.lower() for hedge in HEDGES))}\b")
_VAGUE = re.compile(
    rf"\b{_any_of(VAGUE_DETAILS + VAGUE_AMOUNTS + VAGUE_REASONS)}\b|"
    + "|".join(r"\b" + re.escape(a).replace(r"\{o\}", r"(?:\w+ ){0,3}?\w+") + r"\b" for a in VAGUE_ACTIONS)
)


def _family_phrases(family: Family) -> tuple[str, ...]:
    return family.actions + family.details + family.amounts + family.reasons


def _lexicon() -> frozenset[str]:
    sources = [GLUE, *HEDGES, *VAGUE_ACTIONS, *VAGUE_DETAILS, *VAGUE_AMOUNTS, *VAGUE_REASONS]
    sources += [phrase for family in FAMILIES for phrase in _family_phrases(family)]
    sources += [f"{topic.key} {topic.gerund}" for topic in TOPICS]
    return frozenset(_words(" ".join(sources).lower()))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text)


LEXICON = _lexicon()


def find_topic(topic_or_prompt: str) -> Topic:
    """The topic that a key ("water a fern") or a prompt that contains one is about.

    Raises:
        InvalidRequest: if the text names no topic of this world.
    """
    match = _TOPIC_PHRASE.search(topic_or_prompt.lower())
    if match is None:
        raise InvalidRequest(
            f"{topic_or_prompt!r} names no topic of the advice task; use a key such as {TOPICS[0].key!r} or a prompt "
            f"made by mint.builtin.advice."
        )
    return _BY_PHRASE[match.group()]


@lru_cache(maxsize=len(TOPICS))
def _patterns(topic: Topic) -> dict[str, re.Pattern[str]]:
    family = topic.family
    return {
        "action": re.compile(rf"\b{_with_object(family.actions, topic)}\b"),
        "detail": re.compile(rf"\b{_any_of(family.details)}\b"),
        "amount": re.compile(rf"\b{_any_of(family.amounts)}\b"),
        "reason": re.compile(rf"\b{_CONNECTOR},? {_any_of(family.reasons)}(?=\W*$)"),
        "object": re.compile(rf"\b{re.escape(topic.noun)}\b"),  # last: the object also stands inside the action
    }


def gold_parts(topic_or_prompt: str, text: str) -> dict[str, float]:
    """Credit in [0, 1] for each of PARTS, before the form factors."""
    topic = find_topic(topic_or_prompt)
    low = " ".join(text.lower().split())
    found = {name: float(bool(pattern.search(low))) for name, pattern in _patterns(topic).items()}
    if not found["amount"] and _ANY_AMOUNT.search(low):
        found["amount"] = 0.5
    vague = bool(_VAGUE.search(low) or _HEDGE.search(low))
    found["direct"] = float(bool(found["action"]) and not vague)
    return found


def form_factor(topic_or_prompt: str, text: str) -> float:
    """In [0, 1]: 1 for one clean sentence of known words about one topic, smaller for each fault of form."""
    topic = find_topic(topic_or_prompt)
    low = " ".join(text.lower().split())
    words = _words(low)
    if not words:
        return 0.0
    ends = len(re.findall(r"[.!?](?=\s|$)", low))
    factor = 1.0 if low[-1] in ".!?" else 0.7
    factor *= 1.0 if ends <= 1 else 0.7 if ends == 2 else 0.4
    factor *= _repetition_factor(words, topic)
    factor *= _stuffing_factor(low, words, topic)
    factor *= 0.5 if _names_another_object(low, topic) else 1.0
    factor *= 0.85 ** len(_HEDGE.findall(low))
    unknown = sum(word not in LEXICON for word in words) / len(words)
    factor *= 1.0 - unknown
    return factor if len(words) <= _MAX_WORDS else factor * _MAX_WORDS / len(words) * 0.5


def _names_another_object(low: str, topic: Topic) -> bool:
    """True if a topic's object other than this one stands outside this topic's own phrases ("near a bright window")."""
    for pattern in _patterns(topic).values():
        low = pattern.sub(" , ", low)
    return bool(_NOUN.search(low))


def _repetition_factor(words: list[str], topic: Topic) -> float:
    trigrams = Counter(zip(words, words[1:], words[2:], strict=False))  # windows of one list differ in length
    repeats = sum(count - 1 for count in trigrams.values())
    doubled = sum(a == b for a, b in pairwise(words))
    content = Counter(word for word in words if len(word) > 3 and word not in _words(topic.noun))
    worst = max(content.values(), default=0)
    factor = 0.5 if repeats or doubled else 1.0
    factor *= 0.5 if repeats > 3 or worst > 3 else 1.0
    return factor * (0.6 if low_variety(words) else 1.0)


def low_variety(words: list[str]) -> bool:
    """True if fewer than six in ten words of a longer text differ."""
    return len(words) > 12 and len(set(words)) / len(words) < 0.6


def _stuffing_factor(low: str, words: list[str], topic: Topic) -> float:
    factor = 1.0
    covered = 0
    for name, pattern in _patterns(topic).items():
        matches = [m.group() for m in pattern.finditer(low)]
        covered += sum(len(_words(m)) for m in matches)
        if name != "object" and len(set(matches)) > 1:
            factor *= 0.75 if len(set(matches)) == 2 else 0.4
    covered += sum(len(_words(m.group())) for m in _VAGUE.finditer(low))
    glue = len(words) - covered
    return factor if glue <= _MAX_GLUE_WORDS else factor * _MAX_GLUE_WORDS / glue


def gold_score(topic_or_prompt: str, text: str) -> float:
    """Quality of `text` as advice on a topic (its key, or a prompt about it), in [0, 1]. Empty text scores 0."""
    parts = gold_parts(topic_or_prompt, text)
    total = sum(PARTS[name] * parts[name] for name in PARTS)
    return round(total * form_factor(topic_or_prompt, text), 6)
