"""Replies that any preference model should find worse than the chosen one, made from the chosen one.

Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mint.seeds import derive_seed
from recipe.preference.types import PreferencePair, prompt_key
from renderers import Message, get_text

PROBES = ("empty", "repeated", "cut", "refusing", "echo", "other_prompt")
REFUSAL = "I'm sorry, but I can't help with that."
NUM_REPEATS = 3

# In the first words of a reply. Where the chosen reply declines, to decline is right and no probe.
_DECLINES = re.compile(
    r"\b(?:sorry|apologi[sz]e|unable to|can(?:no|['’])t|won['’]t|(?:do|did) not feel comfortable)\b", re.I
)
_NUM_FIRST_CHARACTERS = 80


@dataclass(frozen=True)
class Probe:
    """A degraded reply and the chosen one that it was made from, each with the prompt before it."""

    name: str
    chosen: list[Message]
    degraded: list[Message]


def probes_of(pairs: Sequence[PreferencePair], max_prompts: int, seed: int = 0) -> list[Probe]:
    """Every probe that makes sense for one pair each of up to `max_prompts` prompts, in the order of PROBES.

    Which prompts and pairs these are follows from their text and the seed, not from the order of the pairs. Ties and
    chosen replies without text (a bare tool call) are left out.
    """
    usable = [pair for pair in pairs if not pair.is_tie and get_text(pair.chosen).strip()]
    by_prompt: dict[str, PreferencePair] = {}
    for pair in sorted(usable, key=lambda pair: (get_text(pair.chosen), get_text(pair.rejected))):
        by_prompt.setdefault(prompt_key(pair.prompt), pair)
    keys = sorted(by_prompt, key=lambda key: (derive_seed(seed, "probe prompt", key), key))[:max_prompts]
    chosen_pairs = [by_prompt[key] for key in keys]
    probes: list[Probe] = []
    for name in PROBES:
        for i_pair, pair in enumerate(chosen_pairs):
            other = chosen_pairs[(i_pair + 1) % len(chosen_pairs)]
            text = degraded_text(name, pair, other)
            if text is not None:
                reply = Message(role="assistant", content=text)
                probes.append(Probe(name, pair.chosen_conversation, [*pair.prompt, reply]))
    return probes


def degraded_text(name: str, pair: PreferencePair, other: PreferencePair) -> str | None:
    """The text of a probe; None where it would be the chosen reply again, or no worse than it.

    name: "empty" says nothing; "repeated" the chosen reply NUM_REPEATS times; "cut" the first half of its characters;
    "refusing" REFUSAL; "echo" the prompt's last message; "other_prompt" the chosen reply of `other`.
    """
    chosen = get_text(pair.chosen).strip()
    if name == "empty":
        text = ""
    elif name == "repeated":
        text = " ".join([chosen] * NUM_REPEATS)
    elif name == "cut":
        text = chosen[: len(chosen) // 2].strip()
    elif name == "refusing":
        text = chosen if _DECLINES.search(chosen[:_NUM_FIRST_CHARACTERS]) else REFUSAL
    elif name == "echo":
        text = get_text(pair.prompt[-1]).strip()
    else:
        assert name == "other_prompt", f"unknown probe {name!r}"
        text = get_text(other.chosen).strip()
    is_the_empty_probe_again = name != "empty" and not text
    return None if text == chosen or is_the_empty_probe_again else text
