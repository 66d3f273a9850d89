"""A checkpoint as files that transformers and PEFT read: merged weights, or an adapter beside its base model.

Merging adds scale * B @ A of each adapted matrix to the frozen weight, in float32, and rounds to the stored dtype last.
Where the checkpoint trained the unembedding of a model whose embeddings are tied, the two are untied first: the input
embedding stays as it was, as in training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from mint import builtin
from mint.atomic_files import write_flushed
from mint.checkpoint_manifest import json_bytes
from mint.checkpoint_store import CheckpointStore
from mint.engine.base_model import DTYPES, from_pretrained, load_tokenizer, location_of
from mint.engine.checkpoints import ADAPTER_CONFIG_NAME, ADAPTER_NAME, LoadedCheckpoint, load_checkpoint

BASE_FOLDER = "base_model"
"""Where an adapter's export keeps a copy of a base model that is in no folder or hub."""


def write_merged(store: CheckpointStore, path: str, folder: Path, dtype: str, stop_token_ids: list[int]) -> None:
    """Write model, config, generation config and tokenizer with its chat template into the empty `folder`."""
    loaded = load_checkpoint(store, path, with_optimizer=False)
    base_model = loaded.manifest.base_model
    model = _load(base_model)
    if loaded.manifest.lora.train_unembed and model.config.tie_word_embeddings:
        model = _untied(model)
    with torch.no_grad():
        _merge(model, loaded)
    # The forward pass of the model itself is what decides when a text ends, once it is outside this project.
    model.generation_config = _generation_config(base_model, model, stop_token_ids)
    _save(model.to(DTYPES[dtype]), folder)
    load_tokenizer(base_model).save_pretrained(folder)


def write_adapter(store: CheckpointStore, path: str, folder: Path, target: Path) -> None:
    """Write the adapter, its config and the base model's tokenizer into the empty `folder`, to become `target`.

    A base model on the hub or in a folder is named; the built-in one, which is in neither, is copied.
    """
    base_model = store.manifest(path).base_model
    config = json.loads(store.read(path, ADAPTER_CONFIG_NAME))
    config["base_model_name_or_path"] = _named_base(base_model, target)
    write_flushed(folder / ADAPTER_CONFIG_NAME, json_bytes(config))
    write_flushed(folder / ADAPTER_NAME, store.read(path, ADAPTER_NAME))
    tokenizer = load_tokenizer(base_model)
    tokenizer.save_pretrained(folder)
    if base_model == builtin.NAME:
        _save(from_pretrained(AutoModelForCausalLM, base_model, dtype="auto"), folder / BASE_FOLDER)
        tokenizer.save_pretrained(folder / BASE_FOLDER)


def _named_base(base_model: str, target: Path) -> str:
    if base_model == builtin.NAME:
        return str(target.absolute() / BASE_FOLDER)
    folder = Path(location_of(base_model)).expanduser()
    return str(folder.resolve()) if folder.is_dir() else base_model


def _save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    readable = (folder / "config.json").stat().st_mode
    for file in folder.glob("*.safetensors"):
        file.chmod(readable)  # safetensors makes files that only their owner may read, whatever the umask says


def _load(base_model: str) -> Any:
    return from_pretrained(AutoModelForCausalLM, base_model, dtype=torch.float32, use_safetensors=True)


def _untied(model: Any) -> Any:
    """The same model with an output embedding of its own."""
    config = type(model.config).from_dict({**model.config.to_dict(), "tie_word_embeddings": False})
    untied = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    untied.load_state_dict(model.state_dict())
    return untied


def _merge(model: Any, loaded: LoadedCheckpoint) -> None:
    lora, tensors = loaded.manifest.lora, loaded.adapter_tensors
    prefix, suffix = "base_model.model.", ".lora_A.weight"
    for name in sorted(name for name in tensors if name.endswith(suffix)):
        module = name.removeprefix(prefix).removesuffix(suffix)
        down, up = tensors[name].float(), tensors[f"{prefix}{module}.lora_B.weight"].float()
        model.get_submodule(module).weight.add_(up @ down, alpha=lora.alpha / lora.rank)


def _generation_config(base_model: str, model: Any, stop_token_ids: list[int]) -> GenerationConfig:
    """The base model's, ending also at the tokens that ended a reply in training."""
    try:
        config = GenerationConfig.from_pretrained(location_of(base_model))
    except OSError:
        config = GenerationConfig.from_model_config(model.config)
    known = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    ends = [token for token in known if token is not None]
    ends += [token for token in stop_token_ids if token not in ends]
    config.eos_token_id = ends
    if config.pad_token_id is None and ends:
        config.pad_token_id = ends[0]
    return config
