"""Sequences -> micro-batches: shared prefixes, length buckets, a token budget.

Axes: _N packed tokens of a micro-batch, _B rows of an attention block, _T positions of a row.

A micro-batch packs its sequences without padding, but for up to three tokens at its end. Sequences that begin alike
(the members of a GRPO group, all prompts behind the same worked examples) can share their prefix, at several levels:
each is stored once, followed by everything that continues it. Only attention needs rectangles, so rows of similar
length are padded together there (`Rows`) and nowhere else.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from mint.engine.coupling import connected
from mint.engine.prefix_tree import PrefixNode, shared_prefixes
from mint.engine.products import ROW_MULTIPLE

# Rows join an attention block while they are at least this fraction of its longest row.
_BUCKET_FRACTION = 0.7
# What shares a prefix may stay together up to so many times its longest sequence, whatever the budget says: most of
# that memory is needed anyhow, and each further micro-batch computes the prefix once more.
_SHARING_ALLOWANCE = 1.5
# Micro-batches that are all alike take less memory than some full and one nearly empty. How much more than the mean the
# fullest may hold: tried in turn, until no more micro-batches are needed than with the whole budget.
_EVENNESS = (1.02, 1.06, 1.12)


@dataclass(frozen=True)
class Rows:
    """Runs of packed tokens of similar length that attend causally to themselves, the longest first.

    index_BT[b, t] is the packed index of token t of row b; where t is past the end of the row it repeats an index that
    is valid but must be ignored. Together the blocks of a micro-batch hold every packed token once.
    """

    index_BT: np.ndarray
    lengths_B: np.ndarray

    @classmethod
    def of(cls, runs: Sequence[tuple[int, int]]) -> Rows:
        """Rows of (start, length)."""
        starts_B, lengths_B = np.asarray(runs, dtype=np.int64).T
        positions_T = np.arange(lengths_B.max())
        index_BT = starts_B[:, None] + np.where(positions_T < lengths_B[:, None], positions_T, 0)
        return cls(index_BT, lengths_B)


@dataclass(frozen=True)
class Prefix:
    """Packed tokens start..stop are a shared prefix: each of the tokens stop..end that follow attends to all of it.

    Prefixes nest: one that lies among the continuations of another is itself a continuation.
    """

    start: int
    stop: int
    end: int


@dataclass(frozen=True)
class MicroBatch:
    """Packed tokens, their positions, and where each sequence's tokens are.

    token_index[i] maps position t of the i-th sequence of this micro-batch to its packed index; prefixes shared by
    several sequences map to the same index. `sequence_ids` are the caller's indices of the sequences. Up to three
    tokens at the end are nobody's.
    """

    tokens_N: np.ndarray
    positions_N: np.ndarray
    blocks: list[Rows]
    prefixes: list[Prefix]
    sequence_ids: list[int]
    token_index: list[np.ndarray]


@dataclass(frozen=True)
class _Member:
    """A sequence of a micro-batch and the shared prefixes it continues, the shortest first."""

    sequence_id: int
    path: tuple[PrefixNode, ...]


def plan_micro_batches(
    sequences: Sequence[np.ndarray], token_budget: int, share_prefixes: bool = True,
    groups: Sequence[int] | None = None,
) -> list[MicroBatch]:  # fmt: skip
    """Split token sequences into micro-batches of at most `token_budget` packed tokens.

    A sequence that is longer has one to itself, and what shares a prefix may take half as much again as its longest.
    Sequences with the same entry in `groups` stay together where they fit. The plan depends on the sequences, their
    order and their groups alone.
    """
    lengths = [len(sequence) for sequence in sequences]
    root = shared_prefixes(sequences) if share_prefixes else PrefixNode(0, sequence_ids=list(range(len(sequences))))
    everything = _measured(root, lengths, groups)
    batches = _packed(everything, token_budget)
    if len(batches) > 1 and groups is None:  # a smaller budget would divide groups
        batches = _evened(everything, batches, token_budget)
    return [_micro_batch(sequences, batch.members) for batch in batches]


@dataclass(frozen=True)
class _Unit:
    """A sequence, or a prefix with all that continues it. num_tokens: what it adds to the prefixes above."""

    num_tokens: int
    longest: int
    first_id: int
    groups: frozenset[int]
    node: PrefixNode | None = None
    parts: list[_Unit] = field(default_factory=list)


class _Open:
    """A micro-batch that is being filled."""

    def __init__(self) -> None:
        self.members: list[_Member] = []
        self.num_tokens = 0
        self._stored: set[PrefixNode] = set()

    def missing(self, path: tuple[PrefixNode, ...]) -> int:
        """Tokens of the prefixes of a path that it does not hold yet."""
        return _depth(path) - max((node.depth for node in path if node in self._stored), default=0)

    def add(self, unit: _Unit, path: tuple[PrefixNode, ...]) -> None:
        """Take a unit in, with what is missing of its path."""
        self.num_tokens += unit.num_tokens + self.missing(path)
        self._stored.update(path)
        self.members += _members(unit, path)


def _packed(everything: _Unit, token_budget: int) -> list[_Open]:
    """Micro-batches of at most so many tokens, filled."""
    packer = _Packer(token_budget)
    packer.place(everything, ())
    return packer.batches


def _evened(everything: _Unit, batches: list[_Open], token_budget: int) -> list[_Open]:
    """Micro-batches that are evenly full, where they take no more of them and of tokens than `batches`, else those."""
    num_tokens = sum(batch.num_tokens for batch in batches)
    for factor in _EVENNESS:
        even = _packed(everything, min(token_budget, int(factor * num_tokens / len(batches))))
        if len(even) <= len(batches) and sum(batch.num_tokens for batch in even) <= num_tokens:
            return even
    return batches


class _Packer:
    """Fills micro-batches in the order of the tree, so that what shares a prefix stays together where it fits."""

    def __init__(self, token_budget: int) -> None:
        self.batches: list[_Open] = []
        self._budget = token_budget - token_budget % ROW_MULTIPLE
        self._rooms: list[tuple[int, int]] = []  # (tokens left, index), the fullest first
        self._latest = -1

    def place(self, unit: _Unit, path: tuple[PrefixNode, ...]) -> None:
        """Add a unit whole where it fits, or to a new micro-batch, else part by part, the prefix repeated."""
        index = self._fitting(unit, path)
        if index is None and unit.node is not None and unit.num_tokens + _depth(path) > self._limit(unit, path):
            below = _below(unit.node, path)
            for part in unit.parts:
                self.place(part, below)
            return
        if index is None:
            self.batches.append(_Open())
            index = len(self.batches) - 1
        else:
            del self._rooms[bisect_left(self._rooms, (self._room(index), index))]
        self.batches[index].add(unit, path)
        insort(self._rooms, (self._room(index), index))
        self._latest = index

    def _limit(self, unit: _Unit, path: tuple[PrefixNode, ...]) -> int:
        """Tokens of a micro-batch for a unit that shares something, within itself or with what is there already."""
        is_shared = bool(path) or (unit.node is not None and unit.node.depth > 0)
        return max(self._budget, int(_SHARING_ALLOWANCE * unit.longest)) if is_shared else self._budget

    def _room(self, index: int) -> int:
        return self._budget - self.batches[index].num_tokens

    def _fitting(self, unit: _Unit, path: tuple[PrefixNode, ...]) -> int | None:
        """The latest micro-batch, if that holds a prefix of the unit, else the fullest that has room.

        Units come longest first, so short ones fill what long ones left (best fit decreasing).
        """
        if path and self.batches:
            latest = self.batches[self._latest]
            missing, room = latest.missing(path), self._limit(unit, path) - latest.num_tokens
            if missing < _depth(path) and unit.num_tokens + missing <= room:
                return self._latest
        first = bisect_left(self._rooms, (unit.num_tokens + _depth(path), -1))
        return self._rooms[first][1] if first < len(self._rooms) else None


def _measured(node: PrefixNode, lengths: Sequence[int], groups: Sequence[int] | None, depth_above: int = 0) -> _Unit:
    """The node as a unit. Parts that have a group in common become one, which adds nothing to the prefix."""
    parts = [_measured(child, lengths, groups, node.depth) for child in node.children]
    for i in node.sequence_ids:
        own_groups = frozenset() if groups is None else frozenset([groups[i]])
        parts.append(_Unit(lengths[i] - node.depth, lengths[i], i, own_groups))
    if groups is not None:
        runs = connected(parts, lambda part: part.groups)
        parts = [run[0] if len(run) == 1 else _unit(PrefixNode(node.depth), 0, run) for run in runs]
    return _unit(node, node.depth - depth_above, parts)


def _depth(path: tuple[PrefixNode, ...]) -> int:
    """Tokens of the longest prefix of a path."""
    return path[-1].depth if path else 0


def _members(unit: _Unit, path: tuple[PrefixNode, ...]) -> Iterator[_Member]:
    """Every sequence of a unit."""
    if unit.node is None:
        yield _Member(unit.first_id, path)
        return
    below = _below(unit.node, path)
    for part in unit.parts:
        yield from _members(part, below)


def _unit(node: PrefixNode, num_new: int, parts: list[_Unit]) -> _Unit:
    """A prefix that adds so many tokens, with what continues it, in the order of placing: the longest first, so that
    rows pad little."""
    parts = sorted(parts, key=lambda part: (-part.longest, part.first_id))
    num_tokens = num_new + sum(part.num_tokens for part in parts)
    longest = max((part.longest for part in parts), default=0)
    first_id = min((part.first_id for part in parts), default=0)
    return _Unit(num_tokens, longest, first_id, frozenset().union(*(part.groups for part in parts)), node, parts)


def _below(node: PrefixNode, path: tuple[PrefixNode, ...]) -> tuple[PrefixNode, ...]:
    """The path of what continues a node; the node of a group adds nothing to the prefix above."""
    return (*path, node) if node.depth > _depth(path) else path


def _micro_batch(sequences: Sequence[np.ndarray], members: Sequence[_Member]) -> MicroBatch:
    """Pack sequences that are in the order of the tree: each prefix right before everything that continues it."""
    layout = _Layout(sequences)
    paths = _still_shared(members)
    for member, path in zip(members, paths, strict=True):
        layout.add(member.sequence_id, path)
    layout.close(())
    layout.fill()
    runs = sorted(layout.runs, key=lambda run: (-run[1], run[0]))
    return MicroBatch(
        tokens_N=np.concatenate(layout.tokens),
        positions_N=np.concatenate(layout.positions),
        blocks=[Rows.of(runs[part]) for part in _buckets([length for _, length in runs])],
        prefixes=layout.prefixes,
        sequence_ids=[member.sequence_id for member in members],
        token_index=layout.token_index,
    )


def _still_shared(members: Sequence[_Member]) -> list[tuple[PrefixNode, ...]]:
    """Paths without the prefixes that, in this micro-batch, one sequence or one longer prefix alone continues."""
    edges = {edge for member in members for edge in pairwise(member.path)}
    continuing = Counter(above for above, _ in edges)
    continuing.update(member.path[-1] for member in members if member.path)
    return [tuple(node for node in member.path if continuing[node] > 1) for member in members]


class _Layout:
    """Packed tokens of a micro-batch while it grows. runs: (start, length) of what attends causally to itself."""

    def __init__(self, sequences: Sequence[np.ndarray]) -> None:
        self._sequences = sequences
        self._open: list[tuple[PrefixNode, int, int]] = []  # with the run of each
        self._size = 0
        self.tokens: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.runs: list[tuple[int, int]] = []
        self.prefixes: list[Prefix] = []
        self.token_index: list[np.ndarray] = []

    def add(self, sequence_id: int, path: tuple[PrefixNode, ...]) -> None:
        """Append what is new of a sequence: the prefixes of its path that are not stored, and its own tokens."""
        self.close(path)
        sequence = self._sequences[sequence_id]
        for node in path[len(self._open) :]:
            depth_above = self._open[-1][0].depth if self._open else 0
            self._open.append((node, *self._append(sequence, depth_above, node.depth)))
        spans = [(start, stop) for _, start, stop in self._open]
        spans.append(self._append(sequence, _depth(path), len(sequence)))
        self.token_index.append(np.concatenate([np.arange(start, stop) for start, stop in spans]))

    def close(self, path: tuple[PrefixNode, ...]) -> None:
        """End the stored prefixes that are not part of `path`."""
        num_kept = 0
        while num_kept < min(len(self._open), len(path)) and self._open[num_kept][0] is path[num_kept]:
            num_kept += 1
        for _, start, stop in self._open[num_kept:]:
            if self._size > stop:
                self.prefixes.append(Prefix(start, stop, self._size))
        del self._open[num_kept:]

    def fill(self) -> None:
        """Repeat the last token up to a multiple. The copies lengthen its run, where no other token looks at them."""
        missing = -self._size % ROW_MULTIPLE
        self.tokens.append(np.repeat(self.tokens[-1][-1:], missing))
        self.positions.append(np.repeat(self.positions[-1][-1:], missing))
        first, length = self.runs[-1]
        self.runs[-1] = (first, length + missing)

    def _append(self, sequence: np.ndarray, start: int, stop: int) -> tuple[int, int]:
        """Pack positions start..stop of a sequence; (first, one past the last) packed index."""
        first = self._size
        if stop > start:
            self.tokens.append(sequence[start:stop])
            self.positions.append(np.arange(start, stop))
            self.runs.append((first, stop - start))
            self._size += stop - start
        return first, self._size


def _buckets(lengths: Sequence[int]) -> list[slice]:
    """Consecutive runs of a descending list whose shortest is at least _BUCKET_FRACTION of the longest."""
    slices, first = [], 0
    for i, length in enumerate(lengths):
        if length < _BUCKET_FRACTION * lengths[first]:
            slices.append(slice(first, i))
            first = i
    slices.append(slice(first, len(lengths)))
    return slices
