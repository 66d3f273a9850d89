"""Negative log-likelihood per supervised token: of a batch from its outputs, and of held-out data by `forward`.

Axes: _D datum, _T token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mint import types
from mint.errors import InvalidRequest
from recipe.evaluators import TrainingClientEvaluator
from recipe.supervised.types import SupervisedDataset

if TYPE_CHECKING:
    import mint


def total_weight(data_D: Sequence[types.Datum]) -> float:
    """Sum of all weights: the number of supervised tokens where weights are 0 or 1."""
    return float(sum(datum.loss_fn_inputs["weights"].to_numpy().sum(dtype=np.float64) for datum in data_D))


def mean_normalised(data_D: Sequence[types.Datum]) -> list[types.Datum]:
    """The same datums with weights divided by their total: the summed loss becomes the mean over supervised tokens."""
    total = total_weight(data_D)
    if total <= 0:
        raise InvalidRequest(f"the weights of the batch sum to {total}: at least one token must have a positive weight")
    return [
        replace(
            datum,
            loss_fn_inputs={
                **datum.loss_fn_inputs,
                "weights": types.TensorData.from_numpy(datum.loss_fn_inputs["weights"].to_numpy() / np.float32(total)),
            },
        )
        for datum in data_D
    ]


def summed_nll(data_D: Sequence[types.Datum], output: types.ForwardBackwardOutput) -> float:
    """-sum w·logprob over the batch, from the outputs of forward or forward_backward; w from `data_D`."""
    total = 0.0
    for datum, outputs in zip(data_D, output.loss_fn_outputs, strict=True):
        weights_T = datum.loss_fn_inputs["weights"].to_numpy().astype(np.float64)
        total -= float(weights_T @ outputs["logprobs"].to_numpy().astype(np.float64))
    return total


class NLLEvaluator(TrainingClientEvaluator):
    """test/nll: mean negative log-likelihood, in nats, over the supervised tokens of held-out data."""

    def __init__(self, dataset: SupervisedDataset) -> None:
        self._batches = [dataset.get_batch(i_batch) for i_batch in range(len(dataset))]
        self._total_weight = sum(total_weight(data_D) for data_D in self._batches)
        if self._total_weight <= 0:
            raise InvalidRequest("the held-out data has no token with a positive weight")

    async def __call__(self, training_client: mint.TrainingClient) -> dict[str, float]:
        """See TrainingClientEvaluator."""
        futures = [training_client.forward(data_D, "cross_entropy") for data_D in self._batches]
        total = 0.0
        for data_D, future in zip(self._batches, futures, strict=True):
            total += summed_nll(data_D, await future)
        return {"test/nll": total / self._total_weight}
