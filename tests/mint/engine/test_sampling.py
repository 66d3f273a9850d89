"""Sampling: parity with transformers and with the trainer, seeds, stops, snapshots, batching."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mint import errors, types

PROMPTS = [[5, 9, 200, 31], [77], list(range(40, 75)), [5, 9, 200, 32]]


def prompt(tokens: list[int]) -> types.ModelInput:
    return types.ModelInput.from_ints(tokens)


@pytest.fixture
def client(service, tiny_model_dir):
    """A sampling client with a non-trivial adapter."""
    trainer = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    tokens = list(range(3, 30))
    datum = types.Datum(
        model_input=prompt(tokens), loss_fn_inputs={"target_tokens": [*tokens[1:], 3], "weights": [1.0] * len(tokens)}
    )
    for _ in range(3):
        trainer.forward_backward([datum], "cross_entropy")
        trainer.optim_step(types.AdamParams(learning_rate=0.02)).result()
    sampler = trainer.save_weights_and_get_sampling_client()
    sampler.trainer = trainer
    return sampler


def test_base_model_greedy_equals_transformers(service, tiny_model_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    client = service.create_sampling_client(base_model=str(tiny_model_dir))
    for tokens in PROMPTS:
        params = types.SamplingParams(max_tokens=12, temperature=0, stop=[])
        ours = client.sample(prompt(tokens), 1, params).result().sequences[0].tokens
        sequence = list(tokens)
        for _ in range(12):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([sequence])).logits[0, -1]
            sequence.append(int(logits.argmax()))
        assert ours == sequence[len(tokens) :]


def test_sampled_logprobs_equal_scored_logprobs_and_the_trainers(client):
    """Temperature 1, several prompts at once: sampler, scorer and trainer agree on every token."""
    params = types.SamplingParams(max_tokens=40, seed=5, stop=[])
    futures = [client.sample(prompt(tokens), 4, params) for tokens in PROMPTS]
    worst = 0.0
    for tokens, future in zip(PROMPTS, futures, strict=True):
        for sequence in future.result().sequences:
            full = tokens + sequence.tokens
            scored = client.compute_logprobs(prompt(full)).result()
            assert scored[0] is None and len(scored) == len(full)
            datum = types.Datum(
                model_input=prompt(full[:-1]),
                loss_fn_inputs={"target_tokens": full[1:], "weights": [1.0] * (len(full) - 1)},
            )
            output = client.trainer.forward([datum], "cross_entropy").result()
            trained = output.loss_fn_outputs[0]["logprobs"].tolist()[len(tokens) - 1 :]
            for a, b, c in zip(sequence.logprobs, scored[len(tokens) :], trained, strict=True):
                worst = max(worst, abs(a - b), abs(a - c))
    assert worst <= 1e-5


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_on_policy_ratio_is_one_at_any_temperature(temperature, client):
    params = types.SamplingParams(max_tokens=30, temperature=temperature, seed=1, stop=[])
    sequence = client.sample(prompt(PROMPTS[0]), 1, params).result().sequences[0]
    full, n = PROMPTS[0] + sequence.tokens, len(PROMPTS[0]) - 1
    datum = types.Datum(
        model_input=prompt(full[:-1]),
        loss_fn_inputs={
            "target_tokens": full[1:],
            "logprobs": [0.0] * n + sequence.logprobs,
            "advantages": [0.0] * n + [1.0] * 30,
        },
    )
    output = client.trainer.forward_backward([datum], "importance_sampling", {"temperature": temperature}).result()
    trainer_logprobs = output.loss_fn_outputs[0]["logprobs"].tolist()[n:]
    np.testing.assert_allclose(trainer_logprobs, sequence.logprobs, atol=1e-5)
    assert output.metrics["loss:sum"] == pytest.approx(-30, abs=1e-3)


def test_seeded_sample_is_the_same_alone_and_among_63_others(client):
    def params(seed: int) -> types.SamplingParams:
        return types.SamplingParams(max_tokens=20, seed=seed, stop=[])

    alone = client.sample(prompt(PROMPTS[0]), 2, params(7)).result().sequences

    async def crowd():
        others = [client.sample(prompt(PROMPTS[i % 4]), 1, params(100 + i)) for i in range(63)]
        return (await asyncio.gather(*others[:30], client.sample(prompt(PROMPTS[0]), 2, params(7)), *others[30:]))[30]

    together = asyncio.run(crowd()).sequences
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert alone[0].tokens != alone[1].tokens


def test_concurrent_requests_are_bit_identical_between_runs(client):
    """The composition of batches follows from the program, not from timing."""

    async def conversation(i: int) -> list[tuple]:
        tokens, answers = list(PROMPTS[i % 4]), []
        for turn in range(3):
            params = types.SamplingParams(max_tokens=3 + (i * 7 + turn) % 9, seed=i * 10 + turn, stop=[])
            sequence = (await client.sample(prompt(tokens), 1, params)).sequences[0]
            tokens += sequence.tokens
            scores = await client.compute_logprobs(prompt(tokens))
            answers.append((sequence.tokens, sequence.logprobs, scores))
        return answers

    async def everyone():
        return await asyncio.gather(*(conversation(i) for i in range(16)))

    first = asyncio.run(everyone())
    for _ in range(3):
        assert asyncio.run(everyone()) == first


def test_frequencies_follow_the_distribution(client):
    """4,000 draws of one token: each frequent token's share is within 5 standard errors of its probability."""
    n = 4000
    params = types.SamplingParams(max_tokens=1, temperature=0.5, seed=2)
    response = client.sample(prompt(PROMPTS[0]), n, params).result()
    drawn = np.array([sequence.tokens[0] for sequence in response.sequences])
    logprob_of = {s.tokens[0]: s.logprobs[0] for s in response.sequences}
    tokens, counts = np.unique(drawn, return_counts=True)
    frequent = counts > 40
    assert frequent.sum() >= 3
    for token, count in zip(tokens[frequent], counts[frequent], strict=True):
        p = np.exp(logprob_of[int(token)])
        assert abs(count / n - p) < 5 * np.sqrt(p * (1 - p) / n)


def test_top_k_and_top_p_restrict_and_renormalise(client):
    top = client.sample(
        prompt([*PROMPTS[0], 1]), 1, types.SamplingParams(max_tokens=1, seed=0), topk_prompt_logprobs=50
    ).result()
    likely = top.topk_prompt_logprobs[-1]  # what may follow PROMPTS[0]
    k3 = client.sample(prompt(PROMPTS[0]), 300, types.SamplingParams(max_tokens=1, top_k=3, seed=1)).result()
    assert {s.tokens[0] for s in k3.sequences} == {token for token, _ in likely[:3]}
    total = np.logaddexp.reduce([logprob for _, logprob in likely[:3]])
    for sequence in k3.sequences:
        assert sequence.logprobs[0] == pytest.approx(dict(likely)[sequence.tokens[0]] - total, abs=1e-5)
    mass = np.exp([logprob for _, logprob in likely])
    top_p = float(mass[:2].sum() + mass[2] / 2)  # the third token is needed to reach it
    p = client.sample(prompt(PROMPTS[0]), 300, types.SamplingParams(max_tokens=1, top_p=top_p, seed=1)).result()
    assert {s.tokens[0] for s in p.sequences} == {token for token, _ in likely[:3]}
    assert p.sequences[0].logprobs[0] == pytest.approx(k3.sequences[0].logprobs[0], abs=1e-5)


def test_stops(client, tokenizer):
    free = types.SamplingParams(max_tokens=30, seed=4, stop=[])
    tokens = client.sample(prompt(PROMPTS[0]), 1, free).result().sequences[0].tokens
    assert len(tokens) == 30
    for params in (
        types.SamplingParams(max_tokens=30, seed=4, stop_token_ids=[tokens[9]]),
        types.SamplingParams(max_tokens=30, seed=4, stop=[tokens[9]]),
    ):
        stopped = client.sample(prompt(PROMPTS[0]), 1, params).result().sequences[0]
        end = tokens.index(tokens[9]) + 1
        assert stopped.tokens == tokens[:end] and stopped.stop_reason == "stop"
    assert client.sample(prompt(PROMPTS[0]), 1, free).result().sequences[0].stop_reason == "length"
    text = tokenizer.decode(tokens[10:13])
    for stop in (text, [text, "never, ever"]):
        stopped = (
            client.sample(prompt(PROMPTS[0]), 1, types.SamplingParams(max_tokens=30, seed=4, stop=stop))
            .result()
            .sequences[0]
        )
        assert stopped.stop_reason == "stop"
        assert text in tokenizer.decode(stopped.tokens)
        assert text not in tokenizer.decode(stopped.tokens[:-1])
        assert stopped.tokens == tokens[: len(stopped.tokens)]


def test_default_stop_is_the_end_of_text(client, tokenizer):
    eos = tokenizer.convert_tokens_to_ids("<|im_end|>")
    response = client.sample(
        prompt(PROMPTS[0]), 300, types.SamplingParams(max_tokens=40, temperature=3.0, seed=4)
    ).result()
    stopped = [s for s in response.sequences if s.stop_reason == "stop"]
    assert stopped, "no sequence of 300 ended"
    assert all(eos not in s.tokens[:-1] for s in response.sequences)
    assert all(s.tokens[-1] == eos for s in stopped)


def test_temperature_zero_reports_certainty(client):
    params = types.SamplingParams(max_tokens=5, temperature=0, stop=[])
    response = client.sample(prompt(PROMPTS[0]), 2, params).result()
    assert response.sequences[0].tokens == response.sequences[1].tokens
    assert response.sequences[0].logprobs == [0.0] * 5


def test_snapshot_never_changes(client):
    params = types.SamplingParams(max_tokens=10, seed=1, stop=[])
    before = client.sample(prompt(PROMPTS[0]), 1, params).result().sequences[0]
    tokens = list(range(3, 30))
    datum = types.Datum(
        model_input=prompt(tokens), loss_fn_inputs={"target_tokens": tokens, "weights": [1.0] * len(tokens)}
    )
    client.trainer.forward_backward([datum], "cross_entropy").result()
    client.trainer.optim_step(types.AdamParams(learning_rate=0.05)).result()
    after = client.sample(prompt(PROMPTS[0]), 1, params).result().sequences[0]
    newer = client.trainer.save_weights_and_get_sampling_client().sample(prompt(PROMPTS[0]), 1, params).result()
    assert (after.tokens, after.logprobs) == (before.tokens, before.logprobs)
    assert newer.sequences[0].logprobs != before.logprobs


def test_unseeded_samples_differ_but_follow_the_runs_seed(service, tiny_model_dir):
    params = types.SamplingParams(max_tokens=10, stop=[])

    def three_draws() -> list[list[int]]:
        trainer = service.create_lora_training_client(str(tiny_model_dir), rank=2, seed=11)
        sampler = trainer.save_weights_and_get_sampling_client()
        return [sampler.sample(prompt([5]), 1, params).result().sequences[0].tokens for _ in range(3)]

    first = three_draws()
    assert first[0] != first[1] != first[2]
    assert three_draws() == first


def test_pickled_client_samples_the_same(client):
    copy = pickle.loads(pickle.dumps(client_without_trainer(client)))
    params = types.SamplingParams(max_tokens=10, seed=1, stop=[])
    ours, theirs = (c.sample(prompt(PROMPTS[2]), 1, params).result().sequences[0] for c in (client, copy))
    assert ours.tokens == theirs.tokens
    assert copy.get_base_model() == client.get_base_model()


def client_without_trainer(client):
    del client.trainer
    return client


def test_prompt_logprobs_of_the_last_tokens_only(client):
    full = client.compute_logprobs(prompt(PROMPTS[2])).result()
    last = client.compute_logprobs(prompt(PROMPTS[2]), prompt_logprobs_last_n=3).result()
    assert last[:-3] == [None] * (len(full) - 3)
    np.testing.assert_allclose(last[-3:], full[-3:], atol=1e-6)


@pytest.mark.parametrize(
    ("tokens", "num_samples", "params", "message"),
    [
        ([], 1, {"max_tokens": 4}, "prompt: no tokens"),
        ([10**6], 1, {"max_tokens": 4}, "token id 1000000 at position 0 is outside the vocabulary"),
        ([1] * 500, 1, {"max_tokens": 64}, "the context holds 512; shorten the prompt or ask for at most 12"),
        ([1] * 600, 1, {"max_tokens": 64}, "600 tokens, but the model's context holds 512"),
        ([1], 0, {"max_tokens": 4}, "num_samples=0: must be at least 1"),
        ([1], 1, {"max_tokens": 4, "stop": ""}, "stop contains an empty string"),
    ],
)
def test_bad_requests_are_refused_alone(tokens, num_samples, params, message, client):
    good = client.sample(prompt([5]), 1, types.SamplingParams(max_tokens=3, seed=0, stop=[]))
    bad = client.sample(prompt(tokens), num_samples, types.SamplingParams(**params))
    with pytest.raises(errors.InvalidRequest, match=message):
        bad.result()
    assert len(good.result().sequences[0].tokens) == 3
