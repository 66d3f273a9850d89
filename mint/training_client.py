"""TrainingClient: forward, backward, optimizer step and checkpoints of one LoRA adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mint.backend import Backend
from mint.errors import InvalidRequest
from mint.futures import APIFuture, Ready
from mint.sampling_client import SamplingClient

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from mint import types

    CustomLoss = Callable[[list[types.Datum], list[torch.Tensor]], tuple[torch.Tensor, dict[str, float]]]
    LossConfig = Mapping[str, float | str]


class TrainingClient(Ready):
    """One adapter being trained.

    Requests take effect in the order they are made and submitting never blocks, so a loop may submit a forward_backward
    and the optim_step after it and only then wait. A request that fails changes nothing, and the client stays usable.
    """

    def __init__(self, backend: Backend, info: types.GetInfoResponse) -> None:
        self._backend = backend
        self._info = info
        self.model_id: str = info.model_id

    @property
    def supports_temperature(self) -> bool:
        """Whether losses take loss_fn_config={"temperature": t}, which scales the trainer's logits."""
        return self._backend.supports_temperature

    def forward(
        self, data: list[types.Datum], loss_fn: str, loss_fn_config: LossConfig | None = None
    ) -> APIFuture[types.ForwardBackwardOutput]:
        """Logprobs of all target tokens and the loss, without gradient."""
        return self._backend.forward(self.model_id, data, loss_fn, loss_fn_config, with_gradient=False)

    async def forward_async(
        self, data: list[types.Datum], loss_fn: str, loss_fn_config: LossConfig | None = None
    ) -> APIFuture[types.ForwardBackwardOutput]:
        """Async form of `forward`: awaiting it submits, awaiting its result waits."""
        return self.forward(data, loss_fn, loss_fn_config)

    def forward_backward(
        self, data: list[types.Datum], loss_fn: str, loss_fn_config: LossConfig | None = None
    ) -> APIFuture[types.ForwardBackwardOutput]:
        """Add the gradient of the summed loss to what has accumulated since the last optim_step.

        loss_fn: cross_entropy, importance_sampling, ppo, cispo or dro; docs/losses.md has their formulas and configs.
        The output has, per datum, `logprobs` of shape (N,): 0.0 where the token's weight is zero (it is not computed
        there), and in `metrics` the sum of the loss as `loss:sum`.
        Raises InvalidRequest for data that do not fit, NonFiniteError for a loss or gradient that is not finite.
        """
        return self._backend.forward(self.model_id, data, loss_fn, loss_fn_config, with_gradient=True)

    async def forward_backward_async(
        self, data: list[types.Datum], loss_fn: str, loss_fn_config: LossConfig | None = None
    ) -> APIFuture[types.ForwardBackwardOutput]:
        """Async form of `forward_backward`: awaiting it submits, awaiting its result waits."""
        return self.forward_backward(data, loss_fn, loss_fn_config)

    def forward_backward_custom(
        self, data: list[types.Datum], loss_fn: CustomLoss
    ) -> APIFuture[types.ForwardBackwardOutput]:
        """Like `forward_backward` for any loss of the logprobs, which may couple datums.

        loss_fn(data, logprobs) gets one tensor of shape (N,) per datum that carries gradient, and returns (scalar loss,
        metrics). It runs in the engine's thread. What it reads and couples it can say, for less work and memory:
        `mint.custom_losses`.
        """
        return self._backend.forward_backward_custom(self.model_id, data, loss_fn)

    async def forward_backward_custom_async(
        self, data: list[types.Datum], loss_fn: CustomLoss
    ) -> APIFuture[types.ForwardBackwardOutput]:
        """Async form of `forward_backward_custom`: awaiting it submits, awaiting its result waits."""
        return self.forward_backward_custom(data, loss_fn)

    def optim_step(
        self, optim_params: types.AdamParams | None = None, *, adam_params: types.AdamParams | None = None
    ) -> APIFuture[types.OptimStepResponse]:
        """One AdamW step with the accumulated gradient, which is then cleared.

        Raises InvalidRequest when no gradient has accumulated (also when the forward_backward before it was refused).
        """
        params = optim_params if optim_params is not None else adam_params
        if params is None:
            raise InvalidRequest("optim_step needs AdamParams: optim_step(types.AdamParams(learning_rate=1e-4))")
        return self._backend.optim_step(self.model_id, params)

    async def optim_step_async(
        self, optim_params: types.AdamParams | None = None, *, adam_params: types.AdamParams | None = None
    ) -> APIFuture[types.OptimStepResponse]:
        """Async form of `optim_step`: awaiting it submits, awaiting its result waits."""
        return self.optim_step(optim_params, adam_params=adam_params)

    def save_state(
        self, name: str, ttl_seconds: int | None = None, overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> APIFuture[types.SaveWeightsResponse]:  # fmt: skip
        """Write weights, optimizer and RNG as `mint://<run id>/weights/<name>`, from which training can resume.

        ttl_seconds: delete it after that time; None keeps it. An existing name is an error unless `overwrite`.
        """
        from mint import types

        path = self._backend.save(self.model_id, "weights", name, ttl_seconds, overwrite, user_metadata)
        return path.map(lambda path: types.SaveWeightsResponse(path=path))

    async def save_state_async(
        self, name: str, ttl_seconds: int | None = None, overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> APIFuture[types.SaveWeightsResponse]:  # fmt: skip
        """Async form of `save_state`: awaiting it submits, awaiting its result waits."""
        return self.save_state(name, ttl_seconds, overwrite, user_metadata)

    def load_state(self, path: str) -> APIFuture[types.LoadWeightsResponse]:
        """Take a checkpoint's weights; optimizer and accumulated gradient start afresh."""
        return self._backend.load(self.model_id, path, with_optimizer=False)

    async def load_state_async(self, path: str) -> APIFuture[types.LoadWeightsResponse]:
        """Async form of `load_state`: awaiting it submits, awaiting its result waits."""
        return self.load_state(path)

    def load_state_with_optimizer(self, path: str) -> APIFuture[types.LoadWeightsResponse]:
        """Take a checkpoint's weights, optimizer and RNG; the accumulated gradient is cleared."""
        return self._backend.load(self.model_id, path, with_optimizer=True)

    async def load_state_with_optimizer_async(self, path: str) -> APIFuture[types.LoadWeightsResponse]:
        """Async form of `load_state_with_optimizer`: awaiting it submits, awaiting its result waits."""
        return self.load_state_with_optimizer(path)

    def save_weights_for_sampler(
        self, name: str, ttl_seconds: int | None = None, user_metadata: dict[str, str] | None = None
    ) -> APIFuture[types.SaveWeightsForSamplerResponse]:
        """Write the weights alone as `mint://<run id>/sampler_weights/<name>`."""
        from mint import types

        path = self._backend.save(self.model_id, "sampler_weights", name, ttl_seconds, False, user_metadata)
        return path.map(lambda path: types.SaveWeightsForSamplerResponse(path=path))

    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None, user_metadata: dict[str, str] | None = None
    ) -> APIFuture[types.SaveWeightsForSamplerResponse]:
        """Async form of `save_weights_for_sampler`: awaiting it submits, awaiting its result waits."""
        return self.save_weights_for_sampler(name, ttl_seconds, user_metadata)

    def save_weights_and_get_sampling_client(self, name: str | None = None) -> SamplingClient:
        """A client for the weights as they are after every request made so far.

        Nothing is written and nothing copied: the snapshot shares memory with the adapter until the next optim_step.
        `name` is accepted as the API has it; use `save_weights_for_sampler` for a checkpoint that lasts.
        """
        del name
        return SamplingClient(self._backend, self._backend.snapshot(self.model_id))

    async def save_weights_and_get_sampling_client_async(self, name: str | None = None) -> SamplingClient:
        """Async form of `save_weights_and_get_sampling_client`."""
        return self.save_weights_and_get_sampling_client(name)

    def create_sampling_client(self, model_path: str) -> SamplingClient:
        """A client for a saved checkpoint."""
        return SamplingClient(self._backend, self._backend.open_sampler(model_path, None).result())

    async def create_sampling_client_async(self, model_path: str) -> SamplingClient:
        """Async form of `create_sampling_client`."""
        return SamplingClient(self._backend, await self._backend.open_sampler(model_path, None))

    def get_info(self) -> types.GetInfoResponse:
        """Base model, LoRA rank and id of this run."""
        return self._info

    async def get_info_async(self) -> types.GetInfoResponse:
        """Async form of `get_info`."""
        return self._info

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the base model."""
        assert self._info.model_name is not None
        return self._backend.tokenizer(self._info.model_name)
