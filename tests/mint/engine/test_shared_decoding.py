"""Sampling with prompts stored once says what sampling with a copy for every row says.

Axes: _T tokens of one prompt.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import mint
from mint import types

COMMON_T = list(range(100, 140))


@pytest.mark.parametrize("beginnings", [[COMMON_T], [[]], [COMMON_T, [], COMMON_T[:30]]])
def test_shared_prompts_change_no_sample(beginnings, tiny_model_dir, tmp_path) -> None:
    """Groups of different sizes and lengths; half of them join while the others are being decoded."""

    def answers(share: bool) -> list[types.SampledSequence]:
        service = mint.ServiceClient(home=str(tmp_path), share_prefixes=share)
        sampler = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=1)
        client = sampler.save_weights_and_get_sampling_client()

        async def ask(i: int) -> types.SampleResponse:
            if i % 2:
                await client.sample(types.ModelInput.from_ints([i]), 1, types.SamplingParams(max_tokens=1, seed=0))
            prompt_T = beginnings[i % len(beginnings)] + list(range(i, 2 * i + 1))
            params = types.SamplingParams(max_tokens=4 + 3 * i, seed=i, stop=[])
            return await client.sample(types.ModelInput.from_ints(prompt_T), 1 + i % 4, params)

        async def everyone() -> list[types.SampleResponse]:
            return await asyncio.gather(*(ask(i) for i in range(10)))

        return [sequence for response in asyncio.run(everyone()) for sequence in response.sequences]

    shared, copied = answers(True), answers(False)
    assert [sequence.tokens for sequence in shared] == [sequence.tokens for sequence in copied]
    for one, other in zip(shared, copied, strict=True):
        assert one.logprobs is not None and other.logprobs is not None
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
