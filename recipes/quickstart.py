#!/usr/bin/env python3
"""Quickstart: supervised fine-tuning, then reinforcement learning, on one-digit additions, with nothing but `mint`.

    python recipes/quickstart.py

runs on the built-in model in about a minute on two CPU cores. The same script trains another model (MINT_BASE_MODEL)
or works on a server (MINT_BASE_URL, MINT_API_KEY). Accuracy is that of sampled answers to additions that neither stage
trains on. Run twice on one machine, it prints the same numbers.
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the script at once, and without a traceback

import mint
from mint import types

MODEL = os.environ.get("MINT_BASE_MODEL", "mint-tiny")
RANK = int(os.environ.get("MINT_LORA_RANK", "16"))
SFT_STEPS = int(os.environ.get("MINT_SFT_STEPS", "150"))
SFT_BATCH = int(os.environ.get("MINT_SFT_BATCH", "25"))  # additions per step
SFT_LR = float(os.environ.get("MINT_SFT_LR", "2e-3"))
RL_STEPS = int(os.environ.get("MINT_RL_STEPS", "30"))
RL_BATCH = int(os.environ.get("MINT_RL_BATCH", "40"))  # additions per step
RL_GROUP = int(os.environ.get("MINT_RL_GROUP", "8"))  # answers per addition; advantages need at least 2
RL_LR = float(os.environ.get("MINT_RL_LR", "5e-4"))
MAX_TOKENS = int(os.environ.get("MINT_MAX_TOKENS", "4"))
SEED = int(os.environ.get("MINT_SEED", "0"))

Addition = tuple[int, int]


def prompt_of(addition: Addition) -> str:
    return f"{addition[0]}+{addition[1]}="


def reward_of(addition: Addition, answer: str) -> float:
    return 1.0 if answer.strip() == str(sum(addition)) else 0.0


def sft_datum(addition: Addition, tokenizer: Any) -> types.Datum:
    """Prompt and right answer. Targets are the tokens shifted by one; only those of the answer carry loss."""
    prompt = tokenizer.encode(prompt_of(addition))
    answer = [*tokenizer.encode(str(sum(addition))), tokenizer.eos_token_id]
    tokens = prompt + answer
    inputs: Any = {"target_tokens": tokens[1:], "weights": [0.0] * (len(prompt) - 1) + [1.0] * len(answer)}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def rl_datum(addition: Addition, sequence: types.SampledSequence, advantage: float, tokenizer: Any) -> types.Datum:
    """Prompt and sampled answer, with the logprobs it was sampled with and its advantage on each of its tokens."""
    assert sequence.logprobs is not None, "the sampler returned no logprobs"
    prompt, answer = tokenizer.encode(prompt_of(addition)), list(sequence.tokens)
    before = [0.0] * (len(prompt) - 1)
    inputs: Any = {
        "target_tokens": (prompt + answer)[1:],
        "weights": before + [1.0] * len(answer),
        "logprobs": before + list(sequence.logprobs),
        "advantages": before + [advantage] * len(answer),
    }
    return types.Datum(model_input=types.ModelInput.from_ints((prompt + answer)[:-1]), loss_fn_inputs=inputs)


def sample_answers(
    client: mint.SamplingClient, tokenizer: Any, additions: list[Addition], num_samples: int, *seed_parts: int | str
) -> list[list[tuple[types.SampledSequence, float]]]:
    """For each addition, sampled answers with their rewards. All requests are made before the first is waited for."""
    futures = []
    for i, addition in enumerate(additions):
        params = types.SamplingParams(
            max_tokens=MAX_TOKENS,
            temperature=1.0,
            stop_token_ids=[tokenizer.eos_token_id],
            seed=mint.derive_seed(SEED, *seed_parts, i),
        )
        prompt = types.ModelInput.from_ints(tokenizer.encode(prompt_of(addition)))
        futures.append(client.sample(prompt, num_samples, params))
    return [
        [
            (s, reward_of(addition, tokenizer.decode(s.tokens, skip_special_tokens=True)))
            for s in future.result().sequences
        ]
        for addition, future in zip(additions, futures, strict=True)
    ]


def accuracy(client: mint.SamplingClient, tokenizer: Any, additions: list[Addition]) -> float:
    """Share of right answers, eight sampled for each addition."""
    rewards = [reward for group in sample_answers(client, tokenizer, additions, 8, "test") for _, reward in group]
    return sum(rewards) / len(rewards)


def main() -> None:
    started = time.monotonic()
    rng = random.Random(SEED)
    additions = [(a, b) for a in range(10) for b in range(10)]
    rng.shuffle(additions)
    held_out, training = additions[:20], additions[20:]

    client = mint.ServiceClient().create_lora_training_client(base_model=MODEL, rank=RANK, seed=SEED)
    tokenizer = client.get_tokenizer()
    before = accuracy(client.save_weights_and_get_sampling_client(), tokenizer, held_out)
    print(f"{MODEL}: held-out accuracy {before:.1%}")

    for step in range(1, SFT_STEPS + 1):
        data = [sft_datum(addition, tokenizer) for addition in rng.sample(training, SFT_BATCH)]
        output = client.forward_backward(data, loss_fn="cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=SFT_LR)).result()
        if step % 20 == 0 or step == SFT_STEPS:
            print(
                f"SFT step {step}/{SFT_STEPS}: loss per addition {output.result().metrics['loss:sum'] / len(data):.3f}"
            )
    after_sft = accuracy(client.save_weights_and_get_sampling_client(), tokenizer, held_out)
    print(f"after SFT: held-out accuracy {after_sft:.1%}, saved as {client.save_state('quickstart-sft').result().path}")

    for step in range(1, RL_STEPS + 1):
        sampling_client = client.save_weights_and_get_sampling_client()
        batch = rng.sample(training, RL_BATCH)
        groups = sample_answers(sampling_client, tokenizer, batch, RL_GROUP, "train", step)
        data = []
        for addition, group in zip(batch, groups, strict=True):
            mean = sum(reward for _, reward in group) / len(group)
            if any(reward != mean for _, reward in group):  # equal rewards do not say which answer is better
                data += [rl_datum(addition, sequence, reward - mean, tokenizer) for sequence, reward in group]
        if data:
            client.forward_backward(data, loss_fn="importance_sampling")
            client.optim_step(types.AdamParams(learning_rate=RL_LR)).result()
        if step % 5 == 0 or step == RL_STEPS:
            rewards = [reward for group in groups for _, reward in group]
            print(
                f"RL step {step}/{RL_STEPS}: reward {sum(rewards) / len(rewards):.3f}, {len(data)} answers trained on"
            )
    after_rl = accuracy(client.save_weights_and_get_sampling_client(), tokenizer, held_out)
    print(f"after RL: held-out accuracy {after_rl:.1%}, saved as {client.save_state('quickstart-rl').result().path}")
    print(f"\nheld-out accuracy: {before:.1%} -> SFT {after_sft:.1%} -> RL {after_rl:.1%}")
    print(f"{time.monotonic() - started:.0f} seconds")


if __name__ == "__main__":
    main()
