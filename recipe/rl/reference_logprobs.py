"""Logprobs of the sampled tokens under a reference policy, and under the policy itself.

Both are at temperature 1. At any other sampling temperature the sampler's logprobs are of another distribution, so the
policy's are computed afresh.

Axes: _T target token, _D training sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import mint
from mint.errors import InvalidRequest
from recipe.rl.concurrency import gather_or_cancel
from recipe.rl.datums import FloatArray, TrainingSequence
from recipe.rl.kl import ReferencedSequence


async def fetch_reference(
    sequences_D: Sequence[TrainingSequence],
    reference_client: mint.SamplingClient,
    policy_client: mint.SamplingClient,
    temperature: float,
) -> list[ReferencedSequence]:
    """Each sequence with the logprobs of reference and policy, all of them requested at once.

    temperature: what the sequences were sampled at. At 1 the sampler's own logprobs are the policy's, and
        `policy_client` is not asked.
    """
    reference_logprobs_D = await gather_or_cancel([_target_logprobs_T(reference_client, s) for s in sequences_D])
    if temperature == 1:
        policy_logprobs_D = [sequence.sampler_logprobs_T for sequence in sequences_D]
    else:
        policy_logprobs_D = await gather_or_cancel([_target_logprobs_T(policy_client, s) for s in sequences_D])
    return [
        ReferencedSequence(sequence, policy_logprobs_T, reference_logprobs_T)
        for sequence, policy_logprobs_T, reference_logprobs_T in zip(
            sequences_D, policy_logprobs_D, reference_logprobs_D, strict=True
        )
    ]


async def _target_logprobs_T(client: mint.SamplingClient, sequence: TrainingSequence) -> FloatArray:
    """Shape (T,): the client's logprobs from the first sampled target on; the prompt before it is not scored."""
    num_targets = len(sequence.is_sampled_T)
    num_scored = num_targets - int(sequence.is_sampled_T.argmax())
    logprobs = await client.compute_logprobs(sequence.model_input(), prompt_logprobs_last_n=num_scored)
    scored = logprobs[-num_scored:]
    if len(logprobs) != num_targets + 1 or any(logprob is None for logprob in scored):
        raise InvalidRequest(
            f"compute_logprobs gave {len(logprobs)} entries for {num_targets + 1} tokens, or left one of the last"
            f" {num_scored} out; KL needs the logprob of every sampled token."
        )
    logprobs_T = np.zeros(num_targets, dtype=np.float32)
    logprobs_T[-num_scored:] = scored
    return logprobs_T
