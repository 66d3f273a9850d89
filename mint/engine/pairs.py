"""Which packed tokens of a micro-batch are projected to the vocabulary, and where their logprobs belong.

Axes: _T tokens of one sequence, _P pairs of a hidden state and a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mint.engine.batching import MicroBatch


@dataclass(frozen=True)
class Pairs:
    """The pairs of one micro-batch, sequence after sequence in the order of `sequence_ids`.

    rows_P: packed index of the token whose hidden state is projected. positions[s]: the positions of the s-th sequence
    that have a pair. Arrays of all sequences, which the methods take, are found by the caller's `sequence_ids`.
    """

    rows_P: Tensor
    targets_P: Tensor
    sequence_ids: list[int]
    positions: list[np.ndarray]

    @classmethod
    def of(
        cls, batch: MicroBatch, targets: Sequence[np.ndarray], wanted: Sequence[np.ndarray], device: torch.device
    ) -> Pairs:
        """wanted[i] lists the positions of sequence i whose target's logprob is needed."""
        positions = [wanted[i] for i in batch.sequence_ids]
        rows = [index_T[own] for index_T, own in zip(batch.token_index, positions, strict=True)]
        target = [targets[i][own] for i, own in zip(batch.sequence_ids, positions, strict=True)]
        return cls(
            torch.from_numpy(np.concatenate(rows)).to(device),
            torch.from_numpy(np.concatenate(target)).to(device),
            batch.sequence_ids,
            positions,
        )

    def __len__(self) -> int:
        return len(self.rows_P)

    @property
    def sequence_P(self) -> np.ndarray:
        """The sequence of each pair."""
        return np.repeat(self.sequence_ids, [len(own) for own in self.positions])

    def scatter(self, values_P: Tensor, into: list[np.ndarray]) -> None:
        """Write one value per pair to its sequence and position."""
        values = values_P.float().cpu().numpy()
        start = 0
        for i, own in zip(self.sequence_ids, self.positions, strict=True):
            into[i][own] = values[start : start + len(own)]
            start += len(own)

    def gather(self, arrays: Sequence[np.ndarray]) -> Tensor:
        """One value per pair from per-sequence arrays of shape (T,), float32."""
        values = [arrays[i][own] for i, own in zip(self.sequence_ids, self.positions, strict=True)]
        return torch.from_numpy(np.concatenate(values).astype(np.float32, copy=False)).to(self.rows_P.device)
