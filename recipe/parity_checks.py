"""Do sampler, scorer and trainer agree, on a given model, about the probability of what was sampled?

Axes: _T target token, _D training sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import mint
from mint import types
from recipe.check_result import Check, Outcome
from recipe.rl.datums import BoolArray, FloatArray, TrainingSequence
from recipe.rl.metrics import sample_train_metrics
from recipe.rl.policy_update import policy_loss_at, update_policy

TEMPERATURES = (0.7, 1.3)
"""Where the on-policy ratio is measured, beside temperature 1."""

_LEARNING_RATE = 1e-3
_MIN_SAMPLES = 8
_TOKENS_PER_SAMPLE = 256


@dataclass(frozen=True)
class Bounds:
    """The largest |difference| of two logprobs of one token (nats), and the largest |kl_sample_train_v1|."""

    logprob: float
    kl: float


BOUNDS = {
    "float32": Bounds(1e-4, 1e-6),
    # Eight bits of mantissa: sampler and trainer round intermediate values at different places.
    "bfloat16": Bounds(0.5, 1e-2),
}


@dataclass(frozen=True)
class Worst:
    """The largest difference between two accounts of the sampled tokens' logprobs, and the mean over the tokens.

    i_sequence, position: where it is; position counts the sampled tokens of that sequence from 0.
    """

    largest: float
    mean: float
    num_tokens: int
    i_sequence: int
    position: int
    token: int


def compare(
    sequences_D: Sequence[TrainingSequence], other_logprobs_D: Sequence[FloatArray], *, as_ratio: bool = False
) -> Worst:
    """|difference| of the sampler's logprobs to others at the sampled targets; as_ratio: |exp(other - own) - 1|."""
    differences = []
    for sequence, other_T in zip(sequences_D, other_logprobs_D, strict=True):
        difference_T = other_T.astype(np.float64) - sequence.sampler_logprobs_T
        differences.append(np.abs(np.expm1(difference_T) if as_ratio else difference_T)[sequence.is_sampled_T])
    # NaN counts as the worst of all.
    peaks = [float(np.nan_to_num(difference, nan=np.inf).max()) for difference in differences]
    i_worst = int(np.argmax(peaks))
    position = int(np.argmax(np.nan_to_num(differences[i_worst], nan=np.inf)))
    sequence = sequences_D[i_worst]
    token = np.asarray(sequence.tokens[1:])[sequence.is_sampled_T][position]
    together = np.concatenate(differences)
    return Worst(peaks[i_worst], float(together.mean()), len(together), i_worst, position, int(token))


async def check_parity(
    client: mint.TrainingClient, example: tuple[list[int], Sequence[float]], prompt: list[int], num_tokens: int,
    seed: int, dtype: str, context_length: int,
) -> list[Check]:  # fmt: skip
    """Every check of this file, after one optimizer step on `example` so that the adapter takes part.

    example: tokens, and the loss weight of each. At least num_tokens tokens are sampled after `prompt` at each of the
    temperatures 1, 0.7 and 1.3.
    """
    await client.forward_backward([_supervised(*example)], "cross_entropy")
    await client.optim_step(types.AdamParams(learning_rate=_LEARNING_RATE))
    bounds, tokenizer = BOUNDS[dtype], client.get_tokenizer()
    sampler = await client.save_weights_and_get_sampling_client_async()
    at_one_D = await _sample(sampler, prompt, num_tokens, 1.0, seed, context_length)
    scored = [await future for future in [sampler.compute_logprobs(s.model_input()) for s in at_one_D]]
    scored_D = [np.asarray(values[1:], dtype=np.float32) for values in scored]
    checks = [
        _logprob_check(
            "sampler and trainer", at_one_D, await _trained(client, at_one_D, 1.0), bounds, dtype, tokenizer
        ),
        _logprob_check("sampler and scorer", at_one_D, scored_D, bounds, dtype, tokenizer),
    ]
    for temperature in TEMPERATURES:
        sequences_D = await _sample(sampler, prompt, num_tokens, temperature, seed, context_length)
        trained_D = await _trained(client, sequences_D, temperature)
        checks.append(_ratio_check(temperature, compare(sequences_D, trained_D, as_ratio=True), bounds, dtype))
    return [*checks, await _kl_check(client, at_one_D, bounds, dtype)]


def _supervised(tokens: list[int], weights: Sequence[float]) -> types.Datum:
    inputs: dict[str, Any] = {"target_tokens": tokens[1:], "weights": [float(weight) for weight in weights[1:]]}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


async def _sample(
    sampler: mint.SamplingClient, prompt: list[int], num_tokens: int, temperature: float, seed: int, context_length: int
) -> list[TrainingSequence]:
    """At least num_tokens tokens in replies of one length; they go on after an end of text, to be that many."""
    num_samples = max(min(_MIN_SAMPLES, num_tokens), math.ceil(num_tokens / _TOKENS_PER_SAMPLE))
    num_samples = max(num_samples, math.ceil(num_tokens / (context_length - len(prompt))))
    params = types.SamplingParams(
        max_tokens=math.ceil(num_tokens / num_samples), temperature=temperature, seed=seed, stop=[]
    )
    response = await sampler.sample(types.ModelInput.from_ints(prompt), num_samples, params)
    sequences_D = []
    for i, sampled in enumerate(response.sequences):
        assert sampled.logprobs is not None
        is_sampled_T: BoolArray = np.arange(len(prompt) + len(sampled.tokens) - 1) >= len(prompt) - 1
        logprobs_T = np.zeros(len(is_sampled_T), dtype=np.float32)
        logprobs_T[is_sampled_T] = sampled.logprobs
        # Alternating advantages, as a group of good and bad replies has them.
        advantages_T = np.where(is_sampled_T, np.float32(1 - 2 * (i % 2)), np.float32(0))
        sequences_D.append(
            TrainingSequence([*prompt, *sampled.tokens], is_sampled_T, logprobs_T, advantages_T, i_member=i)
        )
    return sequences_D


async def _trained(
    client: mint.TrainingClient, sequences_D: Sequence[TrainingSequence], temperature: float
) -> list[FloatArray]:
    data = [sequence.to_datum() for sequence in sequences_D]
    output = await client.forward(data, "cross_entropy", {"temperature": temperature})
    return [outputs["logprobs"].to_numpy() for outputs in output.loss_fn_outputs]


def _logprob_check(
    name: str, sequences_D: Sequence[TrainingSequence], other_D: Sequence[FloatArray], bounds: Bounds, dtype: str,
    tokenizer: Any,
) -> Check:  # fmt: skip
    worst = compare(sequences_D, other_D)
    detail = (
        f"largest |difference| {worst.largest:.2e} nats at token {worst.position} of sample {worst.i_sequence}, "
        f"{worst.token} {tokenizer.decode([worst.token])!r}; mean {worst.mean:.1e} over {worst.num_tokens} tokens; "
        f"bound {bounds.logprob:g} for {dtype}"
    )
    return _checked(name, worst.largest <= bounds.logprob, detail, dtype)


def _ratio_check(temperature: float, worst: Worst, bounds: Bounds, dtype: str) -> Check:
    detail = (
        f"largest |ratio - 1| {worst.largest:.2e}, mean {worst.mean:.1e} over {worst.num_tokens} tokens; "
        f"bound {bounds.logprob:g} for {dtype}"
    )
    return _checked(f"on-policy ratio at temperature {temperature}", worst.largest <= bounds.logprob, detail, dtype)


async def _kl_check(
    client: mint.TrainingClient, sequences_D: Sequence[TrainingSequence], bounds: Bounds, dtype: str
) -> Check:
    """An RL step as `recipe.rl.train` takes it, and the metric it reports."""
    loss = policy_loss_at(1.0, "importance_sampling", None, client)
    update = await update_policy(client, sequences_D, loss, types.AdamParams(learning_rate=_LEARNING_RATE))
    kl = sample_train_metrics(update.trained_D)["kl_sample_train_v1"]
    detail = f"{kl:.1e}; bound {bounds.kl:g} for {dtype}"
    return _checked("kl_sample_train_v1 of an on-policy step", abs(kl) <= bounds.kl, detail, dtype)


def _checked(name: str, is_ok: bool, detail: str, dtype: str) -> Check:
    if is_ok:
        return Check(name, Outcome.OK, detail)
    other = "run with --dtype float32 to see whether rounding is the cause, and" if dtype != "float32" else "please"
    remedy = f"sampler and trainer disagree on this model, so policy gradients would be biased: {other} report it"
    return Check(name, Outcome.FAIL, detail, remedy)
