"""What a stage calls now and then to measure the model; results are logged under test/."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mint


class TrainingClientEvaluator(ABC):
    """Measures with the live weights, by `forward`."""

    @abstractmethod
    async def __call__(self, training_client: mint.TrainingClient) -> dict[str, float]:
        """Metric name -> value, for the weights as they are when the call's requests are submitted."""


class SamplingClientEvaluator(ABC):
    """Measures a snapshot of the weights, by sampling or by logprobs."""

    @abstractmethod
    async def __call__(self, sampling_client: mint.SamplingClient) -> dict[str, float]:
        """Metric name -> value."""
