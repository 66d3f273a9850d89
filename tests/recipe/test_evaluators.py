"""Evaluators of both kinds, run together."""

from __future__ import annotations

from pathlib import Path

import mint
from mint import types
from recipe.checkpoint_utils import RunIdentity, open_training_client
from recipe.evaluators import SamplingClientEvaluator, TrainingClientEvaluator, run_evaluators

PROMPT = types.ModelInput.from_ints([5, 6, 7, 8])


class LiveLogprob(TrainingClientEvaluator):
    async def __call__(self, training_client: mint.TrainingClient) -> dict[str, float]:
        tokens = PROMPT.to_ints()
        inputs = {"target_tokens": tokens[1:], "weights": [1.0] * 3}
        datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)  # pyright: ignore[reportArgumentType]
        output = await training_client.forward([datum], "cross_entropy")
        return {"test/live": -output.metrics["loss:sum"]}


class SnapshotLogprob(SamplingClientEvaluator):
    def __init__(self, name: str) -> None:
        self.name = name
        self.clients: list[mint.SamplingClient] = []

    async def __call__(self, sampling_client: mint.SamplingClient) -> dict[str, float]:
        self.clients.append(sampling_client)
        logprobs = await sampling_client.compute_logprobs(PROMPT)
        return {f"test/{self.name}": sum(logprob for logprob in logprobs if logprob is not None)}


async def test_both_kinds_see_the_same_weights_and_one_snapshot(
    service: mint.ServiceClient, tiny_model_dir: Path
) -> None:
    client = await open_training_client(service, RunIdentity(str(tiny_model_dir), 4), seed=0)
    one, two = SnapshotLogprob("one"), SnapshotLogprob("two")
    metrics = await run_evaluators([LiveLogprob(), one, two], client)
    assert abs(metrics["test/live"] - metrics["test/one"]) < 1e-4
    assert metrics["test/one"] == metrics["test/two"]
    assert one.clients == two.clients


async def test_no_evaluators_measure_nothing(service: mint.ServiceClient, tiny_model_dir: Path) -> None:
    client = await open_training_client(service, RunIdentity(str(tiny_model_dir), 4), seed=0)
    assert await run_evaluators([], client) == {}
