"""Models read from their files against the same models read by transformers.

Axes: _T tokens.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from mint.engine import model_files
from mint.engine.base_model import ComputeOptions, load_base_model
from mint.engine.forward import ForwardOptions, ForwardPass
from mint.engine.rotary import Rotary
from mint.errors import InvalidRequest, NotFound
from tests.random_model import make_random_model

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128,
    },
}  # fmt: skip


def logprobs_of(folder: Path, tokens_T: np.ndarray) -> np.ndarray:
    """By the engine, in float32."""
    decoder = load_base_model(str(folder), ComputeOptions("cpu", "float32")).decoder
    (logprobs_T,) = ForwardPass(decoder, None, ForwardOptions(1000)).prompt_logprobs([tokens_T], [len(tokens_T)])
    return logprobs_T[1:]


def reference_logprobs(folder: Path, tokens_T: np.ndarray) -> np.ndarray:
    """By transformers."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.from_numpy(tokens_T)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(tokens[None]).logits[0].double(), dim=-1)
    return logprobs[:-1].gather(1, tokens[1:, None])[:, 0].numpy()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rope", list(ROPES))
def test_logprobs_are_those_of_transformers(tmp_path: Path, tied: bool, rope: str) -> None:
    folder = make_random_model(tmp_path / "model", tied=tied, rope_parameters=ROPES[rope])
    tokens_T = np.random.default_rng(0).integers(0, 500, 300)
    np.testing.assert_allclose(logprobs_of(folder, tokens_T), reference_logprobs(folder, tokens_T), atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rope", list(ROPES))
def test_rotations_are_those_of_transformers_to_the_bit(rope: str, dtype: torch.dtype) -> None:
    config = Qwen3Config(head_dim=16, max_position_embeddings=512, rope_parameters=ROPES[rope])
    positions_T = torch.arange(0, 600, 7)
    cos, sin = Qwen3RotaryEmbedding(config)(torch.zeros(1, dtype=dtype), positions_T[None])
    rotation = Rotary(config, torch.device("cpu"))(positions_T, dtype)
    assert torch.equal(rotation.cos[:, 0], cos[0]) and torch.equal(rotation.sin[:, 0], sin[0])


def test_several_files_with_an_index_are_one_model(tiny_model_dir: Path, tmp_path: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    sharded = tmp_path / "sharded"
    model.save_pretrained(sharded, max_shard_size="100KB")
    shards = sorted(sharded.glob("*.safetensors"))
    assert len(shards) > 2
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (sharded / name).write_bytes((tiny_model_dir / name).read_bytes())
    tokens_T = np.arange(5, 60)
    np.testing.assert_array_equal(logprobs_of(sharded, tokens_T), logprobs_of(tiny_model_dir, tokens_T))
    shards[1].write_bytes(shards[1].read_bytes()[:-100])
    with pytest.raises(NotFound, match=rf"could not be loaded: .*{shards[1].name} is damaged"):
        load_base_model(str(sharded), ComputeOptions("cpu", "float32"))


def test_each_file_is_looked_for_once(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a model of the hub, looking for a file asks the server."""
    asked: list[str] = []
    real = model_files.cached_file
    monkeypatch.setattr(model_files, "cached_file", lambda location, name: asked.append(name) or real(location, name))
    load_base_model(str(tiny_model_dir), ComputeOptions("cpu", "float32"))
    assert asked == ["model.safetensors"]


def copied(model: Path, to: Path) -> Path:
    to.mkdir()
    for file in model.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_a_missing_and_a_misshapen_tensor_are_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = copied(tiny_model_dir, tmp_path / "model")
    file, name = folder / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(file)
    save_file({**tensors, name: tensors[name][:-1].clone()}, file)
    with pytest.raises(InvalidRequest, match=rf"tensor '{name}' has shape \(95, 64\), but its config says \(96, 64\)"):
        load_base_model(str(folder), ComputeOptions("cpu", "float32"))
    save_file({other: tensor for other, tensor in tensors.items() if other != name}, file)
    with pytest.raises(InvalidRequest, match=rf"has no tensor '{name}'"):
        load_base_model(str(folder), ComputeOptions("cpu", "float32"))


def test_a_file_that_was_cut_off_is_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = copied(tiny_model_dir, tmp_path / "model")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(NotFound, match=r"could not be loaded: .*model\.safetensors is damaged"):
        load_base_model(str(folder), ComputeOptions("cpu", "float32"))


def test_quantized_weights_are_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = copied(tiny_model_dir, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(InvalidRequest, match="the model's quantization is 'fp8'"):
        load_base_model(str(folder), ComputeOptions("cpu", "float32"))


def test_loading_a_model_imports_no_compiler(tiny_model_dir: Path) -> None:
    """It would be a third of the memory of a small model, and two seconds."""
    code = (
        "import sys\nfrom mint.engine.base_model import ComputeOptions, load_base_model\n"
        f"load_base_model({str(tiny_model_dir)!r}, ComputeOptions('cpu', 'float32'))\n"
        "assert not {'torch._dynamo', 'torch._inductor'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
