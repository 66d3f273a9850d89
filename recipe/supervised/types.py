"""What the supervised stage trains on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import chz

from mint import types

if TYPE_CHECKING:
    from renderers import Renderer


class SupervisedDataset(ABC):
    """Batches of datums for cross_entropy (`target_tokens` and `weights`), in an order that a seed decides."""

    # Examples left out because they were too long; reported with the metrics.
    num_dropped: int = 0

    @abstractmethod
    def set_epoch(self, seed: int) -> None:
        """Begin a pass over the data in the order of `seed`, which alone decides the batches."""

    @abstractmethod
    def get_batch(self, index: int) -> list[types.Datum]:
        """Batch `index` of this pass, 0 <= index < len(self). At least one datum."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches in one pass."""


@chz.chz(typecheck=True)
class SupervisedDatasetBuilder(ABC):
    """Settings of a dataset; calling it makes the data."""

    @abstractmethod
    def __call__(
        self, renderer: Renderer, context_length: int | None = None
    ) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """Data to train on and held-out data, or None.

        renderer: turns messages into tokens; its tokenizer is `renderer.tokenizer`. context_length: tokens that fit
        the model; None where it is not known. Bad data is refused here, before any training.
        """
