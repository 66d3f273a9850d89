"""The seam between the clients and whatever computes: the embedded engine here, a cluster elsewhere.

Clients check nothing and compute nothing; a backend does both. Training runs and samplers are named by ids that the
backend gives out. Requests of one run take effect in the order they were submitted, and submitting never blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mint.futures import APIFuture

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from mint import types
    from mint.checkpoint_store import CheckpointStore

    CustomLoss = Callable[[list[types.Datum], list[torch.Tensor]], tuple[torch.Tensor, dict[str, float]]]


@dataclass(frozen=True)
class SampleOptions:
    """What `SamplingClient.sample` asks for beside the prompt."""

    num_samples: int
    params: types.SamplingParams
    include_prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0


@dataclass(frozen=True)
class ModelFacts:
    """A base model as it was loaded; num_parameters counts tied embeddings once."""

    num_layers: int
    hidden: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_hidden: int
    vocab_size: int
    context_length: int
    is_tied: bool
    num_parameters: int
    device: str
    dtype: str


class Backend(Protocol):
    """Everything the clients need from whoever computes."""

    supports_temperature: bool
    """Whether losses take loss_fn_config={"temperature": t}."""

    @property
    def store(self) -> CheckpointStore:
        """Where this backend keeps its checkpoints."""
        ...

    def capabilities(self) -> types.GetServerCapabilitiesResponse:
        """The models that can be used by name without further ado."""
        ...

    def describe_model(self, base_model: str) -> APIFuture[ModelFacts]:
        """Load a base model and tell its shape, device and dtype."""
        ...

    def tokenizer(self, base_model: str) -> PreTrainedTokenizerBase:
        """The tokenizer of a base model."""
        ...

    def create_run(
        self, base_model: str, lora: types.LoraConfig, user_metadata: dict[str, str] | None
    ) -> APIFuture[types.GetInfoResponse]:
        """A new training run with fresh weights; its id is `model_id`."""
        ...

    def create_run_from(
        self, path: str, with_optimizer: bool, user_metadata: dict[str, str] | None
    ) -> APIFuture[types.GetInfoResponse]:
        """A new training run with the base model, LoRA shape and weights of a checkpoint."""
        ...

    def forward(
        self, run_id: str, data: Sequence[types.Datum], loss_fn: str, config: Mapping[str, float | str] | None,
        with_gradient: bool,
    ) -> APIFuture[types.ForwardBackwardOutput]:  # fmt: skip
        """Logprobs and loss, and with a gradient its accumulation."""
        ...

    def forward_backward_custom(
        self, run_id: str, data: Sequence[types.Datum], loss_fn: CustomLoss
    ) -> APIFuture[types.ForwardBackwardOutput]:
        """The gradient of any function of the logprobs."""
        ...

    def optim_step(self, run_id: str, params: types.AdamParams) -> APIFuture[types.OptimStepResponse]:
        """Apply the accumulated gradient and clear it."""
        ...

    def save(
        self, run_id: str, kind: str, name: str, ttl_seconds: int | None, overwrite: bool,
        user_metadata: dict[str, str] | None,
    ) -> APIFuture[str]:  # fmt: skip
        """Write a checkpoint, kind "weights" or "sampler_weights"; returns its path."""
        ...

    def load(self, run_id: str, path: str, with_optimizer: bool) -> APIFuture[types.LoadWeightsResponse]:
        """Replace a run's weights by a checkpoint's; the gradient is cleared."""
        ...

    def snapshot(self, run_id: str) -> str:
        """A sampler with the weights this run has once all requests submitted so far are done."""
        ...

    def open_sampler(self, model_path: str | None, base_model: str | None) -> APIFuture[str]:
        """A sampler with a checkpoint's weights, or with the bare base model."""
        ...

    def sampler_base_model(self, sampler_id: str) -> APIFuture[str]:
        """The name of the base model a sampler runs on."""
        ...

    def sampler_path(self, sampler_id: str) -> APIFuture[str | None]:
        """A checkpoint holding a sampler's weights, written if there is none yet; None for a bare base model."""
        ...

    def close_sampler(self, sampler_id: str) -> None:
        """Nobody will use this sampler again."""
        ...

    def sample(
        self, sampler_id: str, prompt: types.ModelInput, options: SampleOptions
    ) -> APIFuture[types.SampleResponse]:
        """Draw sequences after a prompt."""
        ...

    def compute_logprobs(
        self, sampler_id: str, prompt: types.ModelInput, last_n: int | None
    ) -> APIFuture[list[float | None]]:
        """The logprob of each of the last n tokens (all but the first by default) given those before it."""
        ...

    def reopen_key(self) -> Any:
        """What another process needs to open an equal backend (see `mint.service_client.open_backend`)."""
        ...
