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


class IterationEvaluator(ABC):
    """Measures at iterations of its own choice and after the last one, and keeps what it found in files of the run's
    folder, so that a resumed run goes on with it. For reinforcement learning; its metrics are logged as they are named.
    """

    @abstractmethod
    def start(self, first_iteration: int) -> None:
        """Called once the folder is the run's own: what was measured at this iteration and later is measured again."""

    @abstractmethod
    def is_due(self, iteration: int) -> bool:
        """Whether to measure before this iteration."""

    @abstractmethod
    async def __call__(
        self, training_client: mint.TrainingClient, sampling_client: mint.SamplingClient, iteration: int
    ) -> dict[str, float]:
        """Metric name -> value. sampling_client: a snapshot of the weights before the iteration."""


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
