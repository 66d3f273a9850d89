"""Which sequences begin alike, at how many levels, and where sharing that beginning pays.

A node stands for a prefix; below it are the longer prefixes and the sequences that continue it. What a node adds to
the prefix of its parent is computed once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# A prefix costs each layer some calls, and every token after it one more merge of two attention parts. Both in
# tokens: what must be saved in any case, and per token that continues the prefix.
_MIN_SAVED_TOKENS = 32
_MIN_SAVED_PER_CONTINUATION = 0.05
# Levels of one tree: each costs a merge, and a pathological batch must not cost hundreds.
_MAX_LEVELS = 8


@dataclass(eq=False)
class PrefixNode:
    """The first `depth` tokens of every sequence below it.

    sequence_ids are the sequences that continue this prefix by themselves (or end with it); children continue it for
    several.
    """

    depth: int
    children: list[PrefixNode] = field(default_factory=list)
    sequence_ids: list[int] = field(default_factory=list)


def shared_prefixes(sequences: Sequence[np.ndarray]) -> PrefixNode:
    """The root (depth 0) of the tree of prefixes that are worth sharing.

    The cost is linear in the number of tokens, and n log n in the number of sequences.
    """
    return _worthwhile(_tree(sequences), [len(sequence) for sequence in sequences])


def _tree(sequences: Sequence[np.ndarray]) -> PrefixNode:
    """Every common prefix of two sequences as a node.

    Neighbours in lexicographic order have the longest common prefixes, so one pass over that order is enough.
    """
    # Big-endian bytes of numbers that are not negative sort as the numbers do.
    order = sorted(range(len(sequences)), key=lambda i: (sequences[i].astype(">u8").tobytes(), i))
    root = PrefixNode(0)
    path = [root]
    previous = None
    for i in order:
        common = _common_length(sequences[previous], sequences[i]) if previous is not None else 0
        _close(path, common)
        if len(sequences[i]) == path[-1].depth:
            path[-1].sequence_ids.append(i)
        else:
            path.append(PrefixNode(len(sequences[i]), sequence_ids=[i]))
        previous = i
    _close(path, 0)
    return root


def _close(path: list[PrefixNode], depth: int) -> None:
    """Hang the nodes of the path that are deeper than `depth` onto their parents; the path then ends at `depth`."""
    while path[-1].depth > depth:
        node = path.pop()
        if path[-1].depth < depth:
            path.append(PrefixNode(depth))
        path[-1].children.append(node)


def _worthwhile(tree: PrefixNode, lengths: Sequence[int]) -> PrefixNode:
    """The tree without the nodes that do not pay: what they hold belongs to the next node above."""
    parents_first = [tree]
    for node in parents_first:
        parents_first += node.children
    # Sequences, their tokens, and how many continue a node each for itself, were it kept.
    count, tokens, continuing = {}, {}, {}
    for node in reversed(parents_first):
        count[node] = len(node.sequence_ids) + sum(count[child] for child in node.children)
        tokens[node] = sum(lengths[i] for i in node.sequence_ids) + sum(tokens[child] for child in node.children)
        continuing[node] = len(node.sequence_ids) + sum(
            1 if _pays(child, node.depth, count, tokens, continuing) else continuing[child] for child in node.children
        )
    root = PrefixNode(0)
    waiting = [(tree, root, 0)]
    while waiting:
        node, above, level = waiting.pop()
        if node is not tree and level < _MAX_LEVELS and _pays(node, above.depth, count, tokens, continuing):
            kept = PrefixNode(node.depth)
            above.children.append(kept)
            above, level = kept, level + 1
        above.sequence_ids += node.sequence_ids
        waiting += [(child, above, level) for child in reversed(node.children)]
    return root


def _pays(
    node: PrefixNode, depth_above: int, count: dict[PrefixNode, int], tokens: dict[PrefixNode, int],
    continuing: dict[PrefixNode, int],
) -> bool:  # fmt: skip
    """Whether the node saves more tokens than it costs, under a kept node of `depth_above` tokens."""
    saved = (continuing[node] - 1) * (node.depth - depth_above)
    num_continuations = tokens[node] - count[node] * node.depth
    return saved >= _MIN_SAVED_TOKENS + _MIN_SAVED_PER_CONTINUATION * num_continuations


def _common_length(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length
