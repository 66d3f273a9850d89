"""What else happens in the engine changes no result: other tenants, other requests, how a batch is cut and packed.

Axes: _T token.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mint
from mint import errors, types

ADAM = types.AdamParams(learning_rate=1e-2, eps=1e-8, weight_decay=0.01, grad_clip_norm=1.0)
LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro")
PREFIX = list(range(100, 140))

tokens_of_sequence = st.lists(st.integers(0, 60), min_size=1, max_size=40)
member_of_group = tokens_of_sequence.map(lambda own: PREFIX + own)
sequences = st.lists(st.one_of(tokens_of_sequence, member_of_group, member_of_group), min_size=1, max_size=8)
quietly = settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def model_input(tokens: list[int]) -> types.ModelInput:
    return types.ModelInput.from_ints(tokens)


def datum(tokens: list[int], loss: str, seed: int) -> types.Datum:
    """Targets, weights, and for the policy losses logprobs and advantages, drawn from a seed."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, Any] = {
        "target_tokens": [*tokens[1:], int(rng.integers(60))],
        "weights": rng.choice([0.0, 1.0, 0.5, -0.7], len(tokens)).astype(np.float32),
    }
    if loss != "cross_entropy":
        inputs["logprobs"] = rng.normal(-8, 1, len(tokens)).astype(np.float32)
        inputs["advantages"] = rng.choice([1.0, -1.0, 0.3], len(tokens)).astype(np.float32)
    return types.Datum(model_input=model_input(tokens), loss_fn_inputs=inputs)


def run_of(client: mint.TrainingClient) -> Any:
    backend: Any = client._backend
    return backend._runs[client.model_id]


def weights_of(client: mint.TrainingClient) -> torch.Tensor:
    client.forward([datum([1, 2], "cross_entropy", 0)], "cross_entropy").result()  # everything before is done
    return run_of(client)._params_F.clone()


def noise(client: mint.TrainingClient, sampler: mint.SamplingClient, i: int) -> list[Any]:
    """Requests of somebody else, good and bad; their futures."""
    params = types.SamplingParams(max_tokens=4 + i, temperature=0.9, seed=i, stop=[])
    return [
        client.forward_backward([datum([5 + i, 7, 9], "cross_entropy", i)], "cross_entropy"),
        sampler.sample(model_input([3, i + 1]), 2, params),
        client.optim_step(ADAM),
        sampler.compute_logprobs(model_input([4, 8, i + 2])),
        client.forward_backward([datum([10**7], "cross_entropy", i)], "cross_entropy"),
    ]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, bool], mint.ServiceClient]:
    """One engine for each way of cutting and packing a batch."""
    home = str(tmp_path_factory.mktemp("home"))
    ways = [(1, False), (60, True), (200, False), (10_000, True)]
    return {
        (budget, share): mint.ServiceClient(home=home, token_budget=budget, share_prefixes=share)
        for budget, share in ways
    }


@quietly
@given(
    many=sequences,
    way=st.sampled_from([(1, False), (60, True), (200, False), (10_000, True)]),
    loss=st.sampled_from(LOSSES),
    num_tenants=st.integers(0, 3),
    data=st.data(),
)
def test_no_company_and_no_plan_changes_a_result(engines, tiny_model_dir, many, way, loss, num_tenants, data) -> None:
    """The oracle is one client alone that sends one datum per request; the other sends all at once, among others."""
    datums = [datum(tokens, loss, i) for i, tokens in enumerate(many)]
    alone = engines[10_000, True].create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    expected = [alone.forward_backward([one], loss).result() for one in datums]
    gradient = run_of(alone)._grads_F
    scores = [
        alone.save_weights_and_get_sampling_client().compute_logprobs(model_input(tokens)).result() for tokens in many
    ]

    order = data.draw(st.permutations(range(len(many))))
    service = engines[way]
    client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    tenants = [service.create_lora_training_client(str(tiny_model_dir), rank=2, seed=i) for i in range(num_tenants)]
    samplers = [tenant.save_weights_and_get_sampling_client() for tenant in tenants]
    sampler = client.save_weights_and_get_sampling_client()
    futures = [f for i, (t, s) in enumerate(zip(tenants, samplers, strict=True)) for f in noise(t, s, i)]
    output = client.forward_backward([datums[i] for i in order], loss)
    futures += [f for i, (t, s) in enumerate(zip(tenants, samplers, strict=True)) for f in noise(t, s, i + 9)]
    scored = [sampler.compute_logprobs(model_input(tokens)) for tokens in many]
    for i, outputs in zip(order, output.result().loss_fn_outputs, strict=True):
        single = expected[i].loss_fn_outputs[0]["logprobs"].to_numpy()
        np.testing.assert_allclose(outputs["logprobs"].to_numpy(), single, atol=1e-5)
    loss_sum = sum(one.metrics["loss:sum"] for one in expected)
    scale = sum(abs(one.metrics["loss:sum"]) for one in expected)
    assert abs(output.result().metrics["loss:sum"] - loss_sum) <= 1e-5 * max(scale, 1.0)
    difference = float((run_of(client)._grads_F - gradient).abs().max())
    assert difference <= 1e-5 * max(float(gradient.abs().max()), 1.0)
    for future, own in zip(scored, scores, strict=True):
        np.testing.assert_allclose(np.float64(future.result()[1:]), np.float64(own[1:]), atol=1e-5)
    refused = [
        type(future.future().exception()).__name__ for future in futures if future.future().exception() is not None
    ]
    assert refused == ["InvalidRequest"] * (2 * num_tenants)


@settings(quietly, max_examples=4)
@given(data=st.data())
def test_a_seeded_sample_is_the_same_alone_and_among_63_others(engines, tiny_model_dir, data) -> None:
    """The others differ in prompt, length, temperature, top-p, number of samples, weights and time of arrival."""
    service = engines[10_000, True]
    clients = [service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=i) for i in range(2)]
    samplers = [client.save_weights_and_get_sampling_client() for client in clients]
    tokens = data.draw(st.one_of(tokens_of_sequence, member_of_group))
    temperature = data.draw(st.sampled_from([0.0, 0.7, 1.0, 1.3]))
    own = types.SamplingParams(max_tokens=16, temperature=temperature, seed=data.draw(st.integers(0, 2**62)), stop=[])
    alone = samplers[0].sample(model_input(tokens), 2, own).result().sequences
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    place = int(rng.integers(0, 64))

    async def everyone() -> Any:
        asked = []
        for i in range(64):
            if i == place:
                asked.append(samplers[0].sample(model_input(tokens), 2, own))
                continue
            if i % 16 == 8:
                await asyncio.sleep(0.02)
            others = types.SamplingParams(
                max_tokens=int(rng.integers(1, 24)), temperature=float(rng.choice([0.0, 0.5, 1.0, 2.0])),
                top_p=float(rng.choice([0.5, 1.0])), seed=i, stop=[],
            )  # fmt: skip
            shared = PREFIX if i % 3 == 0 else []
            prompt = [*shared, *rng.integers(0, 60, int(rng.integers(1, 50))).tolist()]
            asked.append(samplers[int(i % 5 == 0)].sample(model_input(prompt), int(rng.integers(1, 3)), others))
        return (await asyncio.gather(*asked))[place]

    for one, other in zip(alone, asyncio.run(everyone()).sequences, strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


@settings(quietly, max_examples=3)
@given(data=st.data())
def test_eight_tenants_in_any_order_end_with_the_weights_of_eight_separate_runs(engines, tiny_model_dir, data) -> None:
    """Bit for bit, although requests of theirs fail in between, and the gradient of a failed one is not theirs."""
    service, num_steps = engines[10_000, True], 3

    def batch(i: int, step: int) -> list[types.Datum]:
        loss = LOSSES[i % len(LOSSES)]
        return [datum([i + 3, 2 * i + 5, 40 + i, 9 + step], loss, i), datum([*PREFIX, i, step], loss, step)]

    def step_of(client: mint.TrainingClient, i: int, step: int) -> list[Any]:
        loss = LOSSES[i % len(LOSSES)]
        return [client.forward_backward(batch(i, step), loss), client.optim_step(ADAM)]

    alone = []
    for i in range(8):
        client = service.create_lora_training_client(str(tiny_model_dir), rank=2 + i % 2, seed=i)
        for step in range(num_steps):
            for future in step_of(client, i, step):
                future.result()
        alone.append(weights_of(client))

    clients = [service.create_lora_training_client(str(tiny_model_dir), rank=2 + i % 2, seed=i) for i in range(8)]
    overflow = types.Datum(
        model_input=model_input([4, 5]),
        loss_fn_inputs={
            "target_tokens": [5, 6],
            "advantages": np.float32([1, 1]),
            "logprobs": np.float32([-200, -200]),
        },
    )

    def broken_loss(data: Any, logprobs: Any) -> Any:
        raise ZeroDivisionError("a defect in a tenant's own loss")

    failing = (
        lambda client: client.forward_backward([datum([10**7], "cross_entropy", 0)], "cross_entropy"),
        lambda client: client.forward_backward([overflow], "importance_sampling"),
        lambda client: client.forward_backward_custom([datum([1, 2], "cross_entropy", 0)], broken_loss),
        lambda client: client.load_state("mint://no-such-run/weights/x"),
        lambda client: client.optim_step(types.AdamParams(beta1=2.0)),
    )
    schedule = data.draw(st.permutations([i for i in range(8) for _ in range(num_steps)]))
    faults = data.draw(st.lists(st.integers(0, 4), min_size=len(schedule), max_size=len(schedule)))
    good, bad, steps = [], [], [0] * 8
    for i, fault in zip(schedule, faults, strict=True):
        bad.append(failing[fault](clients[(i + fault) % 8]))
        good += step_of(clients[i], i, steps[i])
        steps[i] += 1
    for future in good:
        future.result()
    assert all(isinstance(future.future().exception(), (errors.MintError, ZeroDivisionError)) for future in bad)
    for client, expected in zip(clients, alone, strict=True):
        assert torch.equal(weights_of(client), expected)


@pytest.mark.parametrize("temperature", [1e-12, 1e-40, 1e-300])
def test_a_temperature_near_zero_spoils_no_neighbour(engines, tiny_model_dir, temperature: float) -> None:
    sampler = engines[10_000, True].create_sampling_client(base_model=str(tiny_model_dir))
    ordinary = types.SamplingParams(max_tokens=6, seed=1, stop=[])
    alone = sampler.sample(model_input([5, 6]), 1, ordinary).result().sequences[0].tokens

    async def both() -> Any:
        cold = types.SamplingParams(max_tokens=6, temperature=temperature, seed=1, stop=[])
        asked = [sampler.sample(model_input([5, 6]), 1, params) for params in (cold, ordinary)]
        return [(await future).sequences[0] for future in asked]

    cold, neighbour = asyncio.run(both())
    assert neighbour.tokens == alone
    greedy = types.SamplingParams(max_tokens=6, temperature=0, stop=[])
    assert cold.tokens == sampler.sample(model_input([5, 6]), 1, greedy).result().sequences[0].tokens
