"""A bfloat16 base with float32 adapters: it trains, and stays close to float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mint
from mint import types

TOKENS = list(range(10, 50))


def datum(tokens: list[int]) -> types.Datum:
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )


def nll(client: mint.TrainingClient) -> float:
    return client.forward([datum(TOKENS)], "cross_entropy").result().metrics["loss:sum"] / (len(TOKENS) - 1)


@pytest.fixture
def clients(mint_home, tiny_model_dir) -> dict[str, mint.TrainingClient]:
    return {
        dtype: mint.ServiceClient(home=str(mint_home), dtype=dtype).create_lora_training_client(
            str(tiny_model_dir), rank=4, seed=1
        )
        for dtype in ("float32", "bfloat16")
    }


def test_bfloat16_follows_float32_through_training(clients):
    start = nll(clients["float32"])
    for _ in range(8):
        for client in clients.values():
            client.forward_backward([datum(TOKENS)], "cross_entropy")
            client.optim_step(types.AdamParams(learning_rate=5e-3)).result()
    losses = {dtype: nll(client) for dtype, client in clients.items()}
    assert losses["float32"] < start - 1
    assert losses["bfloat16"] == pytest.approx(losses["float32"], abs=0.25)


def test_bfloat16_sampler_and_trainer_agree(clients):
    client = clients["bfloat16"]
    prompt = types.ModelInput.from_ints(TOKENS[:5])
    sampler = client.save_weights_and_get_sampling_client()
    sequence = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=30, seed=1, stop=[])).result().sequences[0]
    full = TOKENS[:5] + sequence.tokens
    trained = client.forward([datum(full)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()[4:]
    # Eight bits of mantissa on logits of size ten; float32 agrees to 1e-5 (test_sampling).
    np.testing.assert_allclose(trained, sequence.logprobs, atol=0.3)
    assert float(np.mean(np.abs(np.subtract(trained, sequence.logprobs)))) < 0.1


@pytest.mark.gpu
def test_cuda_follows_the_cpu(mint_home, tiny_model_dir):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    losses = []
    for device in ("cpu", "cuda"):
        service = mint.ServiceClient(home=str(mint_home), device=device, dtype="float32")
        client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=1)
        for _ in range(3):
            client.forward_backward([datum(TOKENS)], "cross_entropy")
            client.optim_step(types.AdamParams(learning_rate=5e-3)).result()
        losses.append(nll(client))
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
