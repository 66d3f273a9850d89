"""Base weights and tokenizer from the hub, a folder or the package; the one place that decides device and dtype."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from mint import builtin
from mint.backend import ModelFacts
from mint.engine.decoder import Decoder
from mint.engine.fused_ops import FusedOps
from mint.engine.host_memory import keep_freed_memory
from mint.engine.layer_ops import PlainOps
from mint.engine.model_files import ModelFiles, load_decoder
from mint.errors import InvalidRequest, NotFound

T = TypeVar("T")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class ComputeOptions:
    """Where and in what precision the base model runs. None means chosen for the machine and the model."""

    device: str | None = None
    dtype: str | None = None
    fused_ops: bool = True

    def resolve_device(self) -> torch.device:
        """The device to use: CUDA, then MPS, then CPU. InvalidRequest for one that is not there, and a wrong dtype."""
        name = self.device or ("cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu")
        try:
            device = torch.device(name)
        except RuntimeError:
            raise InvalidRequest(f"device={name!r}: not a device; use 'cpu', 'cuda', 'cuda:0' or 'mps'") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise InvalidRequest(f"device={name!r}: this process sees no CUDA device; use device='cpu'")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise InvalidRequest(f"dtype={self.dtype!r}: must be one of {', '.join(DTYPES)}")
        return device

    def resolve_dtype(self, config: Any) -> torch.dtype:
        """The dtype of the frozen weights of a model with this config.

        bfloat16 on CUDA; on a CPU that multiplies it in hardware, for large models that are stored so.
        float32 elsewhere: in a small model the products are not what takes the time, and exactness is free.
        """
        if self.dtype:
            return DTYPES[self.dtype]
        device = self.resolve_device()
        if device.type == "cuda":
            return torch.bfloat16
        if device.type == "cpu" and _is_large(config) and config.dtype == torch.bfloat16 and _multiplies_bfloat16():
            return torch.bfloat16
        return torch.float32


def _is_large(config: Any) -> bool:
    """Whether products take most of the time: by the weights of the MLPs, which are most of a model's."""
    return config.num_hidden_layers * config.hidden_size * config.intermediate_size * 3 >= 50_000_000


def _multiplies_bfloat16() -> bool:
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


@dataclass(frozen=True)
class BaseModel:
    """A frozen model that any number of adapters share."""

    name: str
    decoder: Decoder
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: tuple[int, ...]

    @property
    def context_length(self) -> int:
        """The largest number of tokens in one sequence, prompt and reply together."""
        return self.decoder.shape.context_length

    def facts(self) -> ModelFacts:
        """What `ServiceClient.describe_model` tells."""
        decoder = self.decoder
        return ModelFacts(
            **asdict(decoder.shape),
            is_tied=decoder.is_tied,
            num_parameters=decoder.num_parameters,
            device=str(decoder.device),
            dtype=str(decoder.dtype).removeprefix("torch."),
        )


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a base model, without loading its weights."""
    return from_pretrained(AutoTokenizer, name)


def load_base_model(name: str, options: ComputeOptions) -> BaseModel:
    """Load weights and tokenizer.

    name: "mint-tiny" (in the package), a folder in Hugging Face format, or a hub id such as "Qwen/Qwen3-0.6B".
    Raises NotFound when there is no such model and InvalidRequest when the architecture is not Qwen3.
    """
    config = from_pretrained(AutoConfig, name)
    if config.model_type != "qwen3":
        raise InvalidRequest(
            f"base_model={name!r} is of type {config.model_type!r}: the embedded engine runs dense Qwen3 models "
            "(model_type 'qwen3'); use a remote server for others (base_url=...)"
        )
    device, dtype = options.resolve_device(), options.resolve_dtype(config)
    is_fused = device.type == "cpu" and options.fused_ops
    if is_fused:
        keep_freed_memory(_is_large(config))
    ops = FusedOps(remakes=_is_large(config)) if is_fused else PlainOps()
    decoder = _loaded(name, lambda location: load_decoder(config, ModelFiles(location, device, dtype), device, ops))
    tokenizer = load_tokenizer(name)
    return BaseModel(name, decoder, tokenizer, _eos_token_ids(name, config, tokenizer))


def _eos_token_ids(name: str, config: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every id that ends a text: Qwen3's generation config lists both the turn's end and the document's end."""
    found: list[int] = []
    for source in (_generation_eos(name), config.eos_token_id, tokenizer.eos_token_id):
        for token in source if isinstance(source, list) else [source]:
            if token is not None and token not in found:
                found.append(int(token))
    return tuple(found)


def _generation_eos(name: str) -> Any:
    try:
        return GenerationConfig.from_pretrained(location_of(name)).eos_token_id
    except OSError:
        # A folder made by hand often has no generation_config.json; the config and the tokenizer know the id too.
        return None


def location_of(name: str) -> str:
    """Where transformers finds a base model: a folder or a hub id."""
    return str(builtin.model_dir()) if name == builtin.NAME else name


def from_pretrained(loader: Any, name: str, **kwargs: Any) -> Any:
    """`loader.from_pretrained` for the name of a base model; NotFound when there is no such model."""
    # False rather than the default, which asks on the terminal: code that comes with a model is never run.
    return _loaded(name, lambda location: loader.from_pretrained(location, trust_remote_code=False, **kwargs))


def _loaded(name: str, load: Callable[[str], T]) -> T:
    """What `load` makes of the folder or hub id; NotFound when there is no such model."""
    location = location_of(name)
    looks_local = os.path.isabs(location) or location.startswith((".", "~"))
    if looks_local and not Path(location).expanduser().is_dir():
        raise NotFound(
            f"base_model={name!r}: no such folder; give a folder in Hugging Face format, a hub id such as "
            f"'Qwen/Qwen3-0.6B', or the built-in model {builtin.NAME!r}"
        )
    try:
        return load(str(Path(location).expanduser()) if looks_local else location)
    except InvalidRequest:  # a ValueError too, which says itself what is wrong
        raise
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise NotFound(
            f"base_model={name!r} could not be loaded: {first_line} If the hub cannot be reached from here, use a "
            f"local folder in Hugging Face format or the built-in model {builtin.NAME!r}."
        ) from error
