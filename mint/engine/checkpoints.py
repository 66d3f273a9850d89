"""Adapters, optimizer state and random state to and from the checkpoint store.

A checkpoint folder is a PEFT adapter (adapter_config.json, adapter_model.safetensors); one that training can resume
from also holds optimizer.safetensors and rng.json. Only JSON and safetensors are read back, and only after their bytes
have been compared with the manifest, so loading a checkpoint runs no code from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from mint.atomic_files import write_flushed
from mint.checkpoint_manifest import Manifest, json_bytes
from mint.checkpoint_path import CheckpointPath
from mint.checkpoint_store import CheckpointStore
from mint.errors import CheckpointError

ADAPTER_CONFIG_NAME = "adapter_config.json"
ADAPTER_NAME = "adapter_model.safetensors"
OPTIMIZER_NAME = "optimizer.safetensors"
RNG_NAME = "rng.json"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What a checkpoint holds, on the CPU. optimizer_tensors is None unless it was asked for; rng_state is None where
    none was saved. Tensor names are those given to `save_checkpoint`."""

    adapter_tensors: dict[str, Tensor]
    optimizer_tensors: dict[str, Tensor] | None
    rng_state: dict[str, Any] | None
    manifest: Manifest


def save_checkpoint(
    store: CheckpointStore,
    path: str | CheckpointPath,
    adapter_tensors: Mapping[str, Tensor],
    adapter_config: Mapping[str, Any],
    optimizer_tensors: Mapping[str, Tensor] | None,
    rng_state: Mapping[str, Any] | None,
    manifest_fields: Mapping[str, Any],
    *,
    ttl_seconds: int | None = None,
    overwrite: bool = False,
) -> None:
    """Write a checkpoint; once this returns it is complete and on disk, and until then there is nothing at `path`.

    adapter_tensors: under PEFT's names (base_model.model....lora_A.weight).  adapter_config: adapter_config.json.
    optimizer_tensors, rng_state: None leaves their file out.  manifest_fields: see `CheckpointStore.writing`.
    Equal arguments give equal bytes.
    """
    files = {
        ADAPTER_CONFIG_NAME: json_bytes(dict(adapter_config)),
        ADAPTER_NAME: _tensor_bytes(adapter_tensors),
    }
    if optimizer_tensors is not None:
        files[OPTIMIZER_NAME] = _tensor_bytes(optimizer_tensors)
    if rng_state is not None:
        files[RNG_NAME] = json_bytes(dict(rng_state))
    with store.writing(path, manifest_fields, ttl_seconds=ttl_seconds, overwrite=overwrite) as folder:
        for name, data in files.items():
            write_flushed(folder / name, data)


def load_checkpoint(store: CheckpointStore, path: str | CheckpointPath, with_optimizer: bool) -> LoadedCheckpoint:
    """Read a checkpoint back. CheckpointError names the file that is missing or damaged, NotFound an unknown path."""
    path = CheckpointPath.parse(path)
    manifest = store.manifest(path)
    if with_optimizer and OPTIMIZER_NAME not in manifest.files:
        raise CheckpointError(
            f"checkpoint {path} holds no optimizer state; load its weights alone (load_state, or "
            "create_training_client_from_state), or use a checkpoint made by save_state"
        )
    return LoadedCheckpoint(
        adapter_tensors=_tensors(store, path, ADAPTER_NAME),
        optimizer_tensors=_tensors(store, path, OPTIMIZER_NAME) if with_optimizer else None,
        rng_state=_rng_state(store, path) if RNG_NAME in manifest.files else None,
        manifest=manifest,
    )


def _tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    # PEFT and transformers refuse safetensors files without a format entry.
    return safetensors.torch.save({name: _plain(tensor) for name, tensor in tensors.items()}, metadata={"format": "pt"})


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _tensors(store: CheckpointStore, path: CheckpointPath, file_name: str) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(store.read(path, file_name))
    except SafetensorError as error:
        raise CheckpointError(f"checkpoint {path}: {file_name} is not a safetensors file ({error})") from error


def _rng_state(store: CheckpointStore, path: CheckpointPath) -> dict[str, Any]:
    try:
        state = json.loads(store.read(path, RNG_NAME))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path}: {RNG_NAME} is not JSON ({error})") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {path}: {RNG_NAME} holds no object")
    return state
