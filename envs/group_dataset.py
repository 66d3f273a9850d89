"""Datasets that are a list of groups."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import ceil

from envs.types import EnvGroupBuilder, RLDataset
from mint.errors import InvalidRequest
from mint.seeds import derive_seed


def check_group_size(group_size: int) -> None:
    """InvalidRequest unless a group can have advantages."""
    if group_size < 2:
        raise InvalidRequest(f"group_size={group_size}: advantages need at least 2; set group_size >= 2")


class GroupDataset(RLDataset):
    """Groups in batches, epoch after epoch, every group once in each; the last batch of all may be smaller.

    shuffle_seed: each epoch has an order of its own, derived from the seed; None keeps the groups as they are.
    """

    def __init__(
        self,
        groups: Sequence[EnvGroupBuilder],
        groups_per_batch: int,
        num_epochs: int = 1,
        shuffle_seed: int | None = None,
    ) -> None:
        if not groups:
            raise InvalidRequest("the dataset has no groups: give at least one prompt or problem")
        for name, value in (("groups_per_batch", groups_per_batch), ("num_epochs", num_epochs)):
            if value < 1:
                raise InvalidRequest(f"{name}={value}: must be at least 1")
        self._groups = list(groups)
        self._groups_per_batch = groups_per_batch
        self._num_groups = len(groups) * num_epochs
        self._shuffle_seed = shuffle_seed

    @property
    def groups(self) -> list[EnvGroupBuilder]:
        """Every group once, in the order given."""
        return list(self._groups)

    def __len__(self) -> int:
        return ceil(self._num_groups / self._groups_per_batch)

    def get_batch(self, index: int) -> list[EnvGroupBuilder]:
        """See RLDataset."""
        if not 0 <= index < len(self):
            raise InvalidRequest(f"batch {index}: the dataset has batches 0 to {len(self) - 1}")
        start = index * self._groups_per_batch
        end = min(start + self._groups_per_batch, self._num_groups)
        positions = [divmod(i, len(self._groups)) for i in range(start, end)]
        orders = {epoch: self._order(epoch) for epoch in dict.fromkeys(epoch for epoch, _ in positions)}
        return [self._groups[orders[epoch][i]] for epoch, i in positions]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._groups)))
        if self._shuffle_seed is not None:
            random.Random(derive_seed("order of groups", self._shuffle_seed, epoch)).shuffle(order)
        return order
