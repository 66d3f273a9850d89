"""SamplingClient: draw from, and score with, one fixed set of weights."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from mint.backend import Backend, SampleOptions
from mint.futures import APIFuture, Ready

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mint import types


class SamplingClient(Ready):
    """Pinned to the weights it was made with, however training goes on.

    Can be pickled: the copy, in whatever process, loads the weights from their checkpoint, which pickling writes if
    there is none yet.
    """

    def __init__(self, backend: Backend, sampler_id: str) -> None:
        self._backend = backend
        self._sampler_id = sampler_id
        weakref.finalize(self, backend.close_sampler, sampler_id)

    def sample(
        self,
        prompt: types.ModelInput,
        num_samples: int,
        sampling_params: types.SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
    ) -> APIFuture[types.SampleResponse]:
        """Draw `num_samples` sequences after `prompt`.

        Each sequence holds the sampled tokens (the stop token included, never padding), the logprob of each under the
        distribution it was drawn from, and a stop_reason: "stop" or "length". With `include_prompt_logprobs`, the
        response has one logprob per prompt token at temperature 1, None for the first; with `topk_prompt_logprobs` the
        k likeliest tokens at each position.
        """
        options = SampleOptions(num_samples, sampling_params, include_prompt_logprobs, topk_prompt_logprobs)
        return self._backend.sample(self._sampler_id, prompt, options)

    async def sample_async(
        self,
        prompt: types.ModelInput,
        num_samples: int,
        sampling_params: types.SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
    ) -> types.SampleResponse:
        """Async form of `sample`."""
        return await self.sample(prompt, num_samples, sampling_params, include_prompt_logprobs, topk_prompt_logprobs)

    def compute_logprobs(
        self, prompt: types.ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> APIFuture[list[float | None]]:
        """Logprob of each prompt token given those before it, at temperature 1; one entry per token, the first None.

        prompt_logprobs_last_n: score only the last n tokens, which is cheaper; earlier entries are None.
        """
        return self._backend.compute_logprobs(self._sampler_id, prompt, prompt_logprobs_last_n)

    async def compute_logprobs_async(
        self, prompt: types.ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> list[float | None]:
        """Async form of `compute_logprobs`."""
        return await self.compute_logprobs(prompt, prompt_logprobs_last_n)

    def get_base_model(self) -> str:
        """The name of the base model."""
        return self._backend.sampler_base_model(self._sampler_id).result()

    async def get_base_model_async(self) -> str:
        """Async form of `get_base_model`."""
        return await self._backend.sampler_base_model(self._sampler_id)

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the base model."""
        return self._backend.tokenizer(self.get_base_model())

    def __reduce__(self) -> tuple[Any, ...]:
        path = self._backend.sampler_path(self._sampler_id).result()
        return _reopen, (self._backend.reopen_key(), path, self.get_base_model())


def _reopen(backend_key: Any, model_path: str | None, base_model: str) -> SamplingClient:
    from mint.service_client import open_backend

    backend = open_backend(backend_key)
    sampler_id = backend.open_sampler(model_path, None if model_path else base_model).result()
    return SamplingClient(backend, sampler_id)
