"""ServiceClient: where every script starts. One setting decides where the work is done."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mint.backend import Backend, ModelFacts
from mint.errors import InvalidRequest
from mint.futures import APIFuture
from mint.rest_client import RestClient
from mint.sampling_client import SamplingClient
from mint.training_client import TrainingClient

if TYPE_CHECKING:
    from mint import types


@dataclass(frozen=True)
class EngineOptions:
    """How the embedded engine computes; None means chosen for this machine.

    device: "cpu", "cuda", "cuda:1", "mps".
    dtype: "float32" or "bfloat16", for the frozen base weights. Adapters and optimizer are always float32.
    home: folder of runs and checkpoints; $MINT_HOME, else ~/.mint.
    token_budget: packed tokens of one training micro-batch; bounds the memory of activations, but for a longer sequence
        and those that share its beginning.
    max_rows: sequences decoded at the same time.
    share_prefixes: compute the common beginning of training sequences once, and store that of sampled ones once.
    gradient_checkpointing: recompute activations in the backward pass to save memory.
    fused_ops: on a CPU, hand-written backward passes and reuse of freed memory; False runs PyTorch's plain operations.
    """

    device: str | None = None
    dtype: str | None = None
    home: str | None = None
    token_budget: int | None = None
    max_rows: int = 256
    share_prefixes: bool = True
    gradient_checkpointing: bool = False
    fused_ops: bool = True

    def __post_init__(self) -> None:
        for name in ("token_budget", "max_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(f"{name}={value}: must be at least 1")


def open_backend(options: EngineOptions) -> Backend:
    """The embedded engine of this process for these options; equal options share one engine."""
    from mint.engine.registry import get_engine

    return get_engine(options)


class ServiceClient:
    """Creates training and sampling clients.

    base_url: None (and no MINT_BASE_URL): the embedded engine in this process. "http(s)://...": a MinT or Tinker
    server; the object returned is then the tinker SDK's own ServiceClient, authorised by `api_key`, MINT_API_KEY or
    TINKER_API_KEY.
    Further keyword arguments are those of `EngineOptions` and apply to the embedded engine alone.
    """

    def __new__(cls, *args: Any, base_url: str | None = None, api_key: str | None = None, **kwargs: Any) -> Any:
        url = base_url or os.environ.get("MINT_BASE_URL")
        if not url:
            return super().__new__(cls)
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"base_url={url!r}: must start with http:// or https:// (leave it out to run here)")
        import tinker

        engine_only = sorted(set(kwargs) & set(EngineOptions.__dataclass_fields__))
        if engine_only:
            raise InvalidRequest(
                f"{', '.join(engine_only)}: settings of the embedded engine, but base_url={url!r} is remote"
            )
        key = api_key or os.environ.get("MINT_API_KEY") or os.environ.get("TINKER_API_KEY")
        if not key:
            raise InvalidRequest(f"base_url={url!r} needs a key: set MINT_API_KEY, or pass api_key=...")
        return tinker.ServiceClient(*args, base_url=url, api_key=key, **kwargs)

    def __init__(
        self,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        **engine_options: Any,
    ) -> None:
        del project_id, base_url, api_key  # of meaning to servers alone
        unknown = sorted(set(engine_options) - set(EngineOptions.__dataclass_fields__))
        if unknown:
            raise InvalidRequest(
                f"ServiceClient got {', '.join(unknown)}; the engine's options are "
                f"{', '.join(EngineOptions.__dataclass_fields__)}"
            )
        self._user_metadata = user_metadata
        self._backend = open_backend(EngineOptions(**engine_options))

    def get_server_capabilities(self) -> types.GetServerCapabilitiesResponse:
        """The base models that are available by name; any local folder or hub id of a Qwen3 model works as well."""
        return self._backend.capabilities()

    async def get_server_capabilities_async(self) -> types.GetServerCapabilitiesResponse:
        """Async form of `get_server_capabilities`."""
        return self.get_server_capabilities()

    def describe_model(self, base_model: str) -> ModelFacts:
        """Load a base model and tell its shape, size, device and dtype; ours, not part of the API.

        Raises NotFound for an unknown model and InvalidRequest for one that the engine cannot run.
        """
        return self._backend.describe_model(base_model).result()

    def _create_run(
        self, base_model: str, rank: int, seed: int | None, train_mlp: bool, train_attn: bool, train_unembed: bool,
        user_metadata: dict[str, str] | None,
    ) -> APIFuture[TrainingClient]:  # fmt: skip
        from mint import types

        lora = types.LoraConfig(
            rank=rank, seed=seed, train_mlp=train_mlp, train_attn=train_attn, train_unembed=train_unembed
        )
        info = self._backend.create_run(base_model, lora, user_metadata or self._user_metadata)
        return info.map(lambda info: TrainingClient(self._backend, info))

    def create_lora_training_client(
        self, base_model: str, rank: int = 32, seed: int | None = None, train_mlp: bool = True, train_attn: bool = True,
        train_unembed: bool = True, user_metadata: dict[str, str] | None = None,
    ) -> TrainingClient:  # fmt: skip
        """A new LoRA adapter on `base_model`.

        base_model: "mint-tiny" (built in), a local folder, or a hub id such as "Qwen/Qwen3-0.6B".
        rank: of the adapter's matrices; the update is scaled by 32 / rank.
        seed: of the initial weights and of samples drawn without a seed; None takes a random one.
        Raises NotFound for an unknown model and InvalidRequest for an impossible shape.
        """
        future = self._create_run(base_model, rank, seed, train_mlp, train_attn, train_unembed, user_metadata)
        return future.result()

    async def create_lora_training_client_async(
        self, base_model: str, rank: int = 32, seed: int | None = None, train_mlp: bool = True, train_attn: bool = True,
        train_unembed: bool = True, user_metadata: dict[str, str] | None = None,
    ) -> TrainingClient:  # fmt: skip
        """Async form of `create_lora_training_client`."""
        return await self._create_run(base_model, rank, seed, train_mlp, train_attn, train_unembed, user_metadata)

    def _create_run_from(
        self, path: str, with_optimizer: bool, user_metadata: dict[str, str] | None
    ) -> APIFuture[TrainingClient]:
        info = self._backend.create_run_from(path, with_optimizer, user_metadata or self._user_metadata)
        return info.map(lambda info: TrainingClient(self._backend, info))

    def create_training_client_from_state(
        self, path: str, user_metadata: dict[str, str] | None = None
    ) -> TrainingClient:
        """A new training run that starts from a checkpoint's weights, with a fresh optimizer."""
        return self._create_run_from(path, False, user_metadata).result()

    async def create_training_client_from_state_async(
        self, path: str, user_metadata: dict[str, str] | None = None
    ) -> TrainingClient:
        """Async form of `create_training_client_from_state`."""
        return await self._create_run_from(path, False, user_metadata)

    def create_training_client_from_state_with_optimizer(
        self, path: str, user_metadata: dict[str, str] | None = None
    ) -> TrainingClient:
        """A new training run that continues exactly where `save_state` left off, optimizer included."""
        return self._create_run_from(path, True, user_metadata).result()

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str, user_metadata: dict[str, str] | None = None
    ) -> TrainingClient:
        """Async form of `create_training_client_from_state_with_optimizer`."""
        return await self._create_run_from(path, True, user_metadata)

    def create_sampling_client(self, model_path: str | None = None, base_model: str | None = None) -> SamplingClient:
        """A client for a checkpoint's weights (`model_path`) or for a bare base model (`base_model`)."""
        sampler_id = self._backend.open_sampler(model_path, base_model).result()
        return SamplingClient(self._backend, sampler_id)

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> SamplingClient:
        """Async form of `create_sampling_client`."""
        return SamplingClient(self._backend, await self._backend.open_sampler(model_path, base_model))

    def create_rest_client(self) -> RestClient:
        """Lists and manages training runs and checkpoints."""
        return RestClient(self._backend.store)
