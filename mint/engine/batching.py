"""Sequences -> micro-batches: length buckets, shared prefixes, a token budget.

Axes: _N packed tokens of a micro-batch, _S sequences, _B rows of an attention block, _T positions of a row.

A micro-batch packs its sequences without padding. Sequences that begin alike (the members of a GRPO group) can share
their prefix: it is stored once, and every member attends to it. Only attention needs rectangles, so rows of similar
length are padded together there (`AttentionBlock`) and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

# Rows join an attention block while they are at least this fraction of its longest row.
_BUCKET_FRACTION = 0.7
# Sharing costs a second attention call and a mask per layer; below these it does not pay.
_MIN_SHARED_TOKENS = 16
_MIN_SAVED_FRACTION = 0.15


@dataclass(frozen=True)
class Rows:
    """Padding and unpadding indices of equally treated token runs, in packed order.

    pad_BT[b, t] is the packed index of token t of row b; where t is past the end of the row it repeats an index that
    is valid but must be ignored. unpad_N lists, in packed order, the flat positions of the real tokens in (B, T).
    """

    start: int
    stop: int
    lengths_B: np.ndarray
    pad_BT: np.ndarray
    unpad_N: np.ndarray

    @classmethod
    def of(cls, start: int, lengths: Sequence[int]) -> Rows:
        """Rows that lie one after another from packed index `start`."""
        lengths_B = np.asarray(lengths, dtype=np.int64)
        width = int(lengths_B.max())
        starts_B = np.concatenate([[0], np.cumsum(lengths_B)[:-1]])
        is_real_BT = np.arange(width)[None, :] < lengths_B[:, None]
        # Relative to `start`: the block's own slice of the packed tensors is what gets indexed.
        pad_BT = np.where(is_real_BT, starts_B[:, None] + np.arange(width)[None, :], 0)
        return cls(start, start + int(lengths_B.sum()), lengths_B, pad_BT, np.flatnonzero(is_real_BT))


@dataclass(frozen=True)
class AttentionBlock:
    """Rows that attend causally to themselves, and to a prefix row each where `prefix` is given.

    prefix_of_B[b] is the row of `prefix` that row b continues.
    """

    rows: Rows
    prefix: Rows | None = None
    prefix_of_B: np.ndarray | None = None


@dataclass(frozen=True)
class MicroBatch:
    """Packed tokens, their positions, and where each sequence's tokens are.

    token_index[i] maps position t of the i-th sequence of this micro-batch to its packed index; prefixes shared by
    several sequences map to the same index. `sequence_ids` are the caller's indices of the sequences.
    """

    tokens_N: np.ndarray
    positions_N: np.ndarray
    blocks: list[AttentionBlock]
    sequence_ids: list[int]
    token_index: list[np.ndarray]


@dataclass(frozen=True)
class _Cluster:
    """Sequences computed together because they share their first `prefix_length` tokens (0: nothing shared)."""

    sequence_ids: list[int]
    prefix_length: int
    num_tokens: int


def plan_micro_batches(
    sequences: Sequence[np.ndarray], token_budget: int, share_prefixes: bool = True
) -> list[MicroBatch]:
    """Split token sequences into micro-batches of at most `token_budget` packed tokens (one sequence at least).

    The plan depends on the sequences and their order alone.
    """
    clusters = _shared_clusters(sequences, token_budget) if share_prefixes else []
    clustered = {i for cluster in clusters for i in cluster.sequence_ids}
    singles = [_Cluster([i], 0, len(seq)) for i, seq in enumerate(sequences) if i not in clustered]
    singles.sort(key=lambda cluster: -cluster.num_tokens)
    clusters.sort(key=lambda cluster: -cluster.prefix_length)
    batches = []
    for build, group in ((_plain_batch, singles), (_shared_batch, clusters)):
        current: list[_Cluster] = []
        for cluster in group:
            if current and sum(c.num_tokens for c in current) + cluster.num_tokens > token_budget:
                batches.append(build(sequences, current))
                current = []
            current.append(cluster)
        if current:
            batches.append(build(sequences, current))
    return batches


def _buckets(lengths: Sequence[int]) -> list[slice]:
    """Consecutive runs of a descending list whose shortest is at least _BUCKET_FRACTION of the longest."""
    slices, first = [], 0
    for i, length in enumerate(lengths):
        if length < _BUCKET_FRACTION * lengths[first]:
            slices.append(slice(first, i))
            first = i
    slices.append(slice(first, len(lengths)))
    return slices


def _plain_batch(sequences: Sequence[np.ndarray], clusters: list[_Cluster]) -> MicroBatch:
    ids = [cluster.sequence_ids[0] for cluster in clusters]
    lengths = [len(sequences[i]) for i in ids]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return MicroBatch(
        tokens_N=np.concatenate([sequences[i] for i in ids]),
        positions_N=np.concatenate([np.arange(length) for length in lengths]),
        blocks=[AttentionBlock(Rows.of(int(starts[part.start]), lengths[part])) for part in _buckets(lengths)],
        sequence_ids=ids,
        token_index=[np.arange(start, start + length) for start, length in zip(starts[:-1], lengths, strict=True)],
    )


def _shared_batch(sequences: Sequence[np.ndarray], clusters: list[_Cluster]) -> MicroBatch:
    """All prefixes first, then all continuations; a continuation has at least one token."""
    prefixes = [sequences[cluster.sequence_ids[0]][: cluster.prefix_length] for cluster in clusters]
    prefix_lengths = [len(prefix) for prefix in prefixes]
    prefix_starts = np.concatenate([[0], np.cumsum(prefix_lengths)])
    members = [(i, c) for c, cluster in enumerate(clusters) for i in cluster.sequence_ids]
    members.sort(key=lambda member: -(len(sequences[member[0]]) - prefix_lengths[member[1]]))
    suffixes = [sequences[i][prefix_lengths[c] :] for i, c in members]
    suffix_lengths = [len(suffix) for suffix in suffixes]
    suffix_starts = prefix_starts[-1] + np.concatenate([[0], np.cumsum(suffix_lengths)])

    prefix_rows = Rows.of(0, prefix_lengths)
    blocks = [
        AttentionBlock(Rows.of(int(prefix_starts[part.start]), prefix_lengths[part]))
        for part in _buckets(prefix_lengths)
    ]
    for part in _buckets(suffix_lengths):
        prefix_of_B = np.asarray([c for _, c in members[part]])
        rows = Rows.of(int(suffix_starts[part.start]), suffix_lengths[part])
        blocks.append(AttentionBlock(rows, prefix_rows, prefix_of_B))
    positions = [np.arange(length) for length in prefix_lengths]
    positions += [np.arange(prefix_lengths[c], len(sequences[i])) for i, c in members]
    token_index = [
        np.concatenate(
            [np.arange(prefix_starts[c], prefix_starts[c] + prefix_lengths[c]), np.arange(start, start + length)]
        )
        for (_, c), start, length in zip(members, suffix_starts[:-1], suffix_lengths, strict=True)
    ]
    return MicroBatch(
        tokens_N=np.concatenate([*prefixes, *suffixes]),
        positions_N=np.concatenate(positions),
        blocks=blocks,
        sequence_ids=[i for i, _ in members],
        token_index=token_index,
    )


def _shared_clusters(sequences: Sequence[np.ndarray], token_budget: int) -> list[_Cluster]:
    """Group sequences by common prefix where that saves enough tokens.

    Neighbours in lexicographic order have the longest common prefixes, so one pass over that order is enough: a
    sequence joins the group before it unless that shortens the group's prefix by more than its own share is worth.
    """
    order = sorted(range(len(sequences)), key=lambda i: (sequences[i].tolist(), i))
    clusters: list[_Cluster] = []
    current, prefix_length, num_tokens = order[:1], 0, len(sequences[order[0]]) if order else 0
    for previous, i in pairwise(order):
        # At least the last token of each member stays its own.
        common = min(
            _common_prefix_length(sequences[previous], sequences[i]),
            len(sequences[i]) - 1,
            len(sequences[previous]) - 1,
        )
        joined_prefix = common if len(current) == 1 else min(common, prefix_length)
        saved_before, saved_joined = (len(current) - 1) * prefix_length, len(current) * joined_prefix
        joined_tokens = num_tokens + len(sequences[i])
        fits = joined_tokens - saved_joined <= token_budget
        if saved_joined > saved_before and fits:
            current, prefix_length, num_tokens = [*current, i], joined_prefix, joined_tokens
        else:
            clusters += _worth_sharing(current, prefix_length, num_tokens)
            current, prefix_length, num_tokens = [i], 0, len(sequences[i])
    return clusters + _worth_sharing(current, prefix_length, num_tokens)


def _worth_sharing(ids: list[int], prefix_length: int, num_tokens: int) -> list[_Cluster]:
    saved = (len(ids) - 1) * prefix_length
    if prefix_length < _MIN_SHARED_TOKENS or saved < _MIN_SAVED_FRACTION * num_tokens:
        return []
    return [_Cluster(sorted(ids), prefix_length, num_tokens - saved)]


def _common_prefix_length(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length
