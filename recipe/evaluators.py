"""What a stage calls now and then to measure the model; results are logged under test/."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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


Evaluator = TrainingClientEvaluator | SamplingClientEvaluator


async def run_evaluators(evaluators: Sequence[Evaluator], training_client: mint.TrainingClient) -> dict[str, float]:
    """The metrics of all evaluators for the weights as they are now; those that sample share one snapshot."""
    metrics: dict[str, float] = {}
    sampling_client: mint.SamplingClient | None = None
    for evaluator in evaluators:
        if isinstance(evaluator, TrainingClientEvaluator):
            metrics |= await evaluator(training_client)
            continue
        if sampling_client is None:
            sampling_client = await training_client.save_weights_and_get_sampling_client_async()
        metrics |= await evaluator(sampling_client)
    return metrics
