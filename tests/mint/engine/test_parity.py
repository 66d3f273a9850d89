"""Sampler, scorer and trainer say the same of a token's probability: on the built-in model, in bulk.

Axes: _T target token.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import mint
from mint import types
from mint.engine.projection import Projection
from mint.engine.token_draw import DrawOptions, draw_tokens

TEXTS = (
    "<|im_start|>user\nHow can I sleep better?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n",
    "The",
    "Advice: " + "keep the phone away from the bed at night. " * 20,
)
SAMPLES_PER_PROMPT, TOKENS_PER_SAMPLE = 32, 80  # 4 * 32 * 80 = 10,240 sampled tokens


@pytest.fixture
def trainer(service: mint.ServiceClient) -> mint.TrainingClient:
    """The built-in model with an adapter that matters: after four steps of a large size."""
    client = service.create_lora_training_client("mint-tiny", rank=8, seed=3)
    tokens = client.get_tokenizer().encode(TEXTS[0] + "Go to bed at ten.<|im_end|>", add_special_tokens=False)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )
    for _ in range(4):
        client.forward_backward([datum], "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=3e-3)).result()
    return client


def prompts_of(client: mint.TrainingClient) -> list[list[int]]:
    return [client.get_tokenizer().encode(text, add_special_tokens=False) for text in TEXTS]


def sampled(
    sampler: mint.SamplingClient, prompts: list[list[int]], num_samples: int, max_tokens: int, temperature: float
) -> list[tuple[list[int], int, np.ndarray]]:
    """(all tokens, length of the prompt, logprobs of the sampled tokens) per sequence; all prompts in one batch."""
    params = types.SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=11, stop=[])

    async def ask() -> list[types.SampleResponse]:
        asked = [sampler.sample(types.ModelInput.from_ints(prompt), num_samples, params) for prompt in prompts]
        return [await future for future in asked]

    return [
        (prompt + sequence.tokens, len(prompt), np.asarray(sequence.logprobs))
        for prompt, response in zip(prompts, asyncio.run(ask()), strict=True)
        for sequence in response.sequences
    ]


def test_ten_thousand_sampled_tokens_have_one_logprob(trainer: mint.TrainingClient) -> None:
    sampler = trainer.save_weights_and_get_sampling_client()
    sequences = sampled(sampler, prompts_of(trainer), SAMPLES_PER_PROMPT, TOKENS_PER_SAMPLE, 1.0)
    assert sum(len(logprobs) for _, _, logprobs in sequences) >= 10_000
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
        )
        for tokens, _, _ in sequences
    ]
    outputs = trainer.forward(data, "cross_entropy").result().loss_fn_outputs

    async def score() -> list[list[float | None]]:
        asked = [sampler.compute_logprobs(types.ModelInput.from_ints(tokens)) for tokens, _, _ in sequences]
        return [await future for future in asked]

    differences: dict[str, list[np.ndarray]] = {"trainer": [], "scorer": []}
    for (tokens, n, own), output, scored in zip(sequences, outputs, asyncio.run(score()), strict=True):
        assert scored[0] is None and len(scored) == len(tokens)
        differences["trainer"].append(own - output["logprobs"].to_numpy()[n - 1 :])
        differences["scorer"].append(own - np.asarray(scored[n:], dtype=np.float64))
    for name, parts in differences.items():
        together = np.concatenate(parts)
        worst = float(np.abs(together).max())
        assert worst <= 1e-4, f"sampler and {name} differ by {worst:.2e}"
        # Rounding goes both ways: a bias would show as a KL divergence that is not there.
        assert abs(together.mean()) < 1e-6


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_on_policy_ratios_are_one_at_other_temperatures(temperature: float, trainer: mint.TrainingClient) -> None:
    sampler = trainer.save_weights_and_get_sampling_client()
    sequences = sampled(sampler, prompts_of(trainer), 8, 40, temperature)
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": tokens[1:],
                "logprobs": [0.0] * (n - 1) + own.tolist(),
                "advantages": [0.0] * (n - 1) + [1.0] * len(own),
            },
        )
        for tokens, n, own in sequences
    ]
    config = {"temperature": temperature}
    output = trainer.forward_backward(data, "importance_sampling", config).result()
    for (_, n, own), outputs in zip(sequences, output.loss_fn_outputs, strict=True):
        ratios = np.exp(outputs["logprobs"].to_numpy()[n - 1 :].astype(np.float64) - own)
        np.testing.assert_allclose(ratios, 1, atol=1e-4)
    num_tokens = sum(len(own) for _, _, own in sequences)
    assert output.metrics["loss:sum"] == pytest.approx(-num_tokens, rel=1e-5)  # minus the sum of ratios
    _, n, own = sequences[0]
    without = trainer.forward(data, "importance_sampling").result().loss_fn_outputs[0]["logprobs"].to_numpy()[n - 1 :]
    assert np.abs(without - own).max() > 0.1, "the temperature makes no difference here: the test shows nothing"


def test_a_vocabulary_of_the_real_size_leaves_no_bias() -> None:
    """150,000 logits: a float32 sum of their exponentials can be off to one side; float64 is the oracle."""
    generator = torch.Generator().manual_seed(0)
    hidden_dim, vocab = 32, 151_936
    hidden = torch.randn(40, hidden_dim, generator=generator)
    unembedding = torch.randn(vocab, hidden_dim, generator=generator) * 0.5

    logits = hidden @ unembedding.t()
    uniforms = np.linspace(0.01, 0.99, 40).tolist()
    tokens, drawn = draw_tokens(logits, [DrawOptions(1.0, -1, 1.0)] * 40, uniforms)
    decoder: Any = SimpleNamespace(unembedding=unembedding)
    projection = Projection(decoder, None, hidden, tokens)
    trained, with_gradient = projection.logprobs(), projection.logprobs_and_slopes()[0]
    exact = torch.log_softmax(logits.double(), dim=-1).gather(1, tokens[:, None])[:, 0]
    for logprobs in (drawn, trained, with_gradient):
        assert abs(float((logprobs - exact).mean())) < 5e-7
        assert float((logprobs - exact).abs().max()) < 5e-6
