"""Pairs that repeat or contradict other pairs, and what is left without them.

Pure functions on texts as numbers: `number_pairs` gives every distinct text one. What is found is given as positions.

Axes: _N preference pair, _R distinct text.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import networkx

from recipe.preference.text_clusters import near_duplicate_leaders, normalised
from recipe.preference.types import PreferencePair
from renderers import Message, get_text
from renderers.messages import get_thinking, get_tool_calls

Reason = Literal["equal replies", "duplicate", "both orders", "tie and preference", "cycle", "near duplicate"]
"""Why a pair is not clean; the first that applies, in this order."""

REASONS: tuple[Reason, ...] = (
    "equal replies", "duplicate", "both orders", "tie and preference", "cycle", "near duplicate",
)  # fmt: skip


class TextNumbers:
    """Numbers texts in the order in which they come; texts that are equal once normalised have one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, messages: Sequence[Message]) -> int:
        """The number of a prompt or of a reply."""
        text = normalised("\n".join(_text_of(message, is_alone=len(messages) == 1) for message in messages))
        return self._numbers.setdefault(text, len(self._numbers))

    def near_numbers(self) -> list[int]:
        """near_R: for each text the number of the first one that it nearly equals."""
        return near_duplicate_leaders(list(self._numbers))


@dataclass(frozen=True)
class NumberedPair:
    """Prompt and replies of a pair as numbers of texts."""

    prompt: int
    chosen: int
    rejected: int
    is_tie: bool

    @property
    def replies(self) -> tuple[int, int, int]:
        """Equal for pairs of the same prompt and the same two replies, whichever is preferred."""
        return self.prompt, min(self.chosen, self.rejected), max(self.chosen, self.rejected)

    @property
    def annotation(self) -> Hashable:
        """Equal for pairs that say the same; a tie says the same in both orders."""
        return (self.replies, True) if self.is_tie else (self.prompt, self.chosen, self.rejected)

    def renumbered(self, number_R: Sequence[int]) -> NumberedPair:
        """The pair with each number replaced, for example by that of the text which it nearly equals."""
        return NumberedPair(number_R[self.prompt], number_R[self.chosen], number_R[self.rejected], self.is_tie)


@dataclass(frozen=True)
class CleanPairs:
    """Positions that are kept, in order, and why each of the others is not."""

    kept: list[int]
    dropped: dict[int, Reason]

    def num_dropped(self) -> dict[str, int]:
        """How many pairs were dropped for each reason, all reasons named."""
        counts = Counter(self.dropped.values())
        return {reason: counts[reason] for reason in REASONS}


def number_pairs(pairs_N: Sequence[PreferencePair], numbers: TextNumbers) -> list[NumberedPair]:
    """Each pair with its texts as numbers."""
    return [
        NumberedPair(
            numbers.number(pair.prompt), numbers.number([pair.chosen]), numbers.number([pair.rejected]), pair.is_tie
        )
        for pair in pairs_N
    ]


def repeated(pairs_N: Sequence[NumberedPair]) -> list[list[int]]:
    """Groups of two or more pairs that say the same of the same replies."""
    return [group for group in _grouped([pair.annotation for pair in pairs_N]) if len(group) > 1]


def in_both_orders(pairs_N: Sequence[NumberedPair]) -> list[list[int]]:
    """Groups of pairs of the same two replies, some of which prefer one reply and some the other; no ties."""
    preferences = [i for i, pair in enumerate(pairs_N) if not pair.is_tie and pair.chosen != pair.rejected]
    groups = _grouped([pairs_N[i].replies for i in preferences], preferences)
    return [group for group in groups if len({pairs_N[i].chosen for i in group}) > 1]


def on_cycles(pairs_N: Sequence[NumberedPair]) -> list[list[int]]:
    """For each prompt with a cycle (a over b, b over c, c over a), the pairs that lie on one.

    Two replies count as their majority says; where both orders are as frequent they are no step of a cycle.
    """
    cycles: list[list[int]] = []
    for group in _grouped([pair.prompt for pair in pairs_N]):
        votes = Counter(
            (pairs_N[i].chosen, pairs_N[i].rejected)
            for i in group
            if not pairs_N[i].is_tie and pairs_N[i].chosen != pairs_N[i].rejected
        )
        steps = [(better, worse) for (better, worse), n in votes.items() if n > votes[worse, better]]
        if len(steps) < 3:
            continue
        part_of: dict[int, int] = {}
        for i_part, part in enumerate(networkx.strongly_connected_components(networkx.DiGraph(steps))):
            part_of |= dict.fromkeys(part, i_part)
        # A step lies on a cycle exactly where both its ends are in one strongly connected part.
        circular = {step for step in steps if part_of[step[0]] == part_of[step[1]]}
        found = [i for i in group if not pairs_N[i].is_tie and (pairs_N[i].chosen, pairs_N[i].rejected) in circular]
        if found:
            cycles.append(found)
    return cycles


def clean_pairs(pairs_N: Sequence[NumberedPair], near_R: Sequence[int] | None = None) -> CleanPairs:
    """The pairs without those that repeat or contradict others.

    Of pairs that say the same the first stays. Of two replies in both orders the majority stays, or nothing where
    there is none; beside a preference a tie goes; what lies on a cycle goes. near_R: near duplicates go too.
    """
    dropped: dict[int, Reason] = {i: "equal replies" for i, pair in enumerate(pairs_N) if pair.chosen == pair.rejected}
    # Contradictions are settled by all annotations, so before repetitions go.
    contradicted: dict[int, Reason] = {}
    for group in in_both_orders(pairs_N):
        votes = Counter(pairs_N[i].chosen for i in group)
        (winner, most), (_, fewest) = votes.most_common(2)
        contradicted |= {i: "both orders" for i in group if most == fewest or pairs_N[i].chosen != winner}
    preferred = {pair.replies for pair in pairs_N if not pair.is_tie}
    contradicted |= {
        i: "tie and preference" for i, pair in enumerate(pairs_N) if pair.is_tie and pair.replies in preferred
    }
    for group in on_cycles(pairs_N):
        contradicted |= {i: "cycle" for i in group if i not in contradicted}
    for group in repeated(pairs_N):
        dropped |= {i: "duplicate" for i in group[1:] if i not in dropped and i not in contradicted}
    dropped |= {i: reason for i, reason in contradicted.items() if i not in dropped}
    kept = [i for i in range(len(pairs_N)) if i not in dropped]
    if near_R is not None:
        for group in repeated([pairs_N[i].renumbered(near_R) for i in kept]):
            dropped |= {kept[i]: "near duplicate" for i in group[1:]}
        kept = [i for i in kept if i not in dropped]
    return CleanPairs(kept, dropped)


def _grouped(keys: Sequence[Hashable], positions: Sequence[int] | None = None) -> list[list[int]]:
    """Positions with equal keys, in the order in which the keys first come."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for position, key in zip(positions if positions is not None else range(len(keys)), keys, strict=True):
        groups[key].append(position)
    return list(groups.values())


def _text_of(message: Message, *, is_alone: bool) -> str:
    """All that a message says. The role of a message alone, a user's prompt or a reply, goes without saying."""
    parts = [] if is_alone and message["role"] in ("user", "assistant") else [f"{message['role']}:"]
    thinking, calls = get_thinking(message), get_tool_calls(message)
    parts += [f"<think>{thinking}</think>"] if thinking else []
    parts.append(get_text(message))
    parts += [json.dumps(dict(call), sort_keys=True, ensure_ascii=False) for call in calls]
    return "\n".join(parts)
