from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mint.checkpoint_manifest import LoraShape
from mint.checkpoint_store import CheckpointStore
from mint.engine.adapters import AdapterLayout
from mint.engine.checkpoints import load_checkpoint, save_checkpoint
from mint.engine.decoder_shape import DecoderShape
from mint.errors import CheckpointError, NotFound

STATE = "mint://run-1/weights/a"
SAMPLER = "mint://run-1/sampler_weights/a"
LORA: dict[str, Any] = {"rank": 4, "alpha": 32, "train_attn": True, "train_mlp": True, "train_unembed": True}
FIELDS: dict[str, Any] = {"base_model": "mint-tiny", "lora": LORA, "step": 7, "parent": "mint://run-0/weights/b"}
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 32}
ADAPTER = {"base_model.model.lm_head.lora_A.weight": torch.arange(8.0).reshape(4, 2)}
OPTIMIZER = {"first_moment": torch.full((8,), 0.5), "num_steps": torch.tensor([3])}
RNG = {"seed": 2**63 - 1, "counter": 12}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "home")


def folder_of(store: CheckpointStore, path: str) -> Path:
    return store.runs_folder / path.removeprefix("mint://")


def test_everything_saved_comes_back_exactly(store: CheckpointStore) -> None:
    save_checkpoint(store, STATE, ADAPTER, CONFIG, OPTIMIZER, RNG, FIELDS)
    loaded = load_checkpoint(store, STATE, with_optimizer=True)
    assert loaded.adapter_tensors.keys() == ADAPTER.keys()
    assert all(torch.equal(loaded.adapter_tensors[name], tensor) for name, tensor in ADAPTER.items())
    assert loaded.optimizer_tensors is not None
    assert all(torch.equal(loaded.optimizer_tensors[name], tensor) for name, tensor in OPTIMIZER.items())
    assert loaded.rng_state == RNG
    assert (loaded.manifest.step, loaded.manifest.parent) == (7, "mint://run-0/weights/b")
    assert sorted(file.name for file in folder_of(store, STATE).iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
        "optimizer.safetensors",
        "rng.json",
    ]


def test_slices_and_tensors_with_gradient_are_saved_by_value(store: CheckpointStore) -> None:
    flat = torch.arange(12.0, requires_grad=True)
    views = {"a": flat[:4], "b": flat[4:].view(2, 4).T}
    save_checkpoint(store, SAMPLER, views, CONFIG, None, None, FIELDS)
    loaded = load_checkpoint(store, SAMPLER, with_optimizer=False).adapter_tensors
    assert loaded["a"].tolist() == [0, 1, 2, 3]
    assert loaded["b"].tolist() == [[4, 8], [5, 9], [6, 10], [7, 11]]


def test_equal_states_write_equal_bytes(store: CheckpointStore) -> None:
    other = "mint://run-2/weights/b"
    save_checkpoint(store, STATE, ADAPTER, CONFIG, OPTIMIZER, RNG, FIELDS)
    save_checkpoint(store, other, ADAPTER, CONFIG, dict(reversed(OPTIMIZER.items())), RNG, FIELDS)
    for file in folder_of(store, STATE).iterdir():
        assert file.read_bytes() == (folder_of(store, other) / file.name).read_bytes(), file.name


def test_sampler_weights_hold_no_optimizer_and_say_so(store: CheckpointStore) -> None:
    save_checkpoint(store, SAMPLER, ADAPTER, CONFIG, None, None, FIELDS)
    loaded = load_checkpoint(store, SAMPLER, with_optimizer=False)
    assert loaded.optimizer_tensors is None and loaded.rng_state is None
    with pytest.raises(CheckpointError, match="holds no optimizer state.*create_training_client_from_state"):
        load_checkpoint(store, SAMPLER, with_optimizer=True)


def test_the_optimizer_is_not_read_unless_asked_for(store: CheckpointStore) -> None:
    save_checkpoint(store, STATE, ADAPTER, CONFIG, OPTIMIZER, RNG, FIELDS)
    (folder_of(store, STATE) / "optimizer.safetensors").write_bytes(b"damaged")
    assert load_checkpoint(store, STATE, with_optimizer=False).optimizer_tensors is None
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors has 7 bytes"):
        load_checkpoint(store, STATE, with_optimizer=True)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "rng.json", "manifest.json"])
def test_a_damaged_file_is_named(store: CheckpointStore, name: str) -> None:
    save_checkpoint(store, STATE, ADAPTER, CONFIG, OPTIMIZER, RNG, FIELDS)
    file = folder_of(store, STATE) / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load_checkpoint(store, STATE, with_optimizer=True)


def test_tensors_in_another_format_are_refused_even_with_a_matching_checksum(store: CheckpointStore) -> None:
    with store.writing(STATE, FIELDS) as folder:
        torch.save(ADAPTER, folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors is not a safetensors file"):
        load_checkpoint(store, STATE, with_optimizer=False)


def test_an_absent_checkpoint_is_not_found(store: CheckpointStore) -> None:
    save_checkpoint(store, STATE, ADAPTER, CONFIG, None, None, FIELDS)
    with pytest.raises(NotFound, match="no checkpoint mint://run-1/weights/aa.*Did you mean 'a'"):
        load_checkpoint(store, STATE + "a", with_optimizer=False)


@pytest.mark.parametrize("is_tied", [True, False])
def test_peft_loads_a_checkpoint_folder_and_computes_the_same_update(
    store: CheckpointStore, tmp_path: Path, is_tied: bool
) -> None:
    config = Qwen3Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=is_tied,
    )
    torch.manual_seed(0)
    base = Qwen3ForCausalLM(config).eval()
    layout = AdapterLayout(DecoderShape(2, 16, 2, 1, 8, 24, 32, 64), LoraShape(**LORA))
    tensors = layout.to_peft(torch.randn(layout.size, generator=torch.Generator().manual_seed(1)) * 0.1)
    save_checkpoint(store, SAMPLER, tensors, layout.peft_config("mint-tiny"), None, None, FIELDS)
    expected = merged(base, tensors)

    adapted = peft.PeftModel.from_pretrained(base, folder_of(store, SAMPLER)).eval()
    loaded = peft.get_peft_model_state_dict(adapted)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    tokens = torch.tensor([[1, 5, 9, 30]])
    torch.testing.assert_close(adapted(tokens).logits, expected(tokens).logits, rtol=1e-4, atol=1e-5)


def merged(base: Qwen3ForCausalLM, tensors: dict[str, torch.Tensor]) -> Qwen3ForCausalLM:
    """The model with (alpha / rank) B A added to each weight by hand; the input embedding stays as it is."""
    model = copy.deepcopy(base)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    weights = dict(model.named_parameters())
    for name, down in tensors.items():
        if ".lora_A." in name:
            up = tensors[name.replace("lora_A", "lora_B")]
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            weights[f"{module}.weight"].data += LORA["alpha"] / LORA["rank"] * up @ down
    return model
