"""Exports are the live model: merged and as an adapter, with tied and untied embeddings, or they are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import mint
from mint import export, types
from mint.engine import hf_export
from mint.errors import CheckpointError, InvalidRequest
from mint.export import ExportMismatch, Tolerance, export_checkpoint
from tests.random_model import make_random_model

PROMPTS = [[5, 90, 300, 12, 7], [44, 8]]


def trained(service: mint.ServiceClient, model: Path | str, *, train_unembed: bool = True) -> str:
    """A checkpoint whose adapter matters: after three large steps."""
    client = service.create_lora_training_client(str(model), rank=4, seed=1, train_unembed=train_unembed)
    tokens = list(range(20, 60))
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )
    for _ in range(3):
        client.forward_backward([datum], "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=2e-2)).result()
    return client.save_weights_for_sampler("trained").result().path


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["hf", "peft"])
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("train_unembed", [True, False])
def test_the_export_is_the_live_model(
    service: mint.ServiceClient, mint_home: Path, tmp_path: Path, kind, is_tied: bool, train_unembed: bool
) -> None:
    model = make_random_model(tmp_path / "base", tied=is_tied)
    path = trained(service, model, train_unembed=train_unembed)
    out = tmp_path / "exports" / "one"
    report = export_checkpoint(path, out, PROMPTS, kind=kind, home=str(mint_home), device="cpu")
    assert report.largest < 1e-4 and report.num_equal_replies == len(PROMPTS) and report.num_tokens > 90
    assert left_in(out.parent) == ["one"]
    loaded: Any = AutoModelForCausalLM.from_pretrained(out)  # an adapter's folder too: transformers asks PEFT
    tokens = [3, 99, 256, 17, 30, 31]
    logits = loaded(torch.tensor([tokens])).logits[0, :-1].detach().double()
    found = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    live = service.create_sampling_client(model_path=path).compute_logprobs(types.ModelInput.from_ints(tokens)).result()
    bare = service.create_sampling_client(base_model=str(model)).compute_logprobs(types.ModelInput.from_ints(tokens))
    torch.testing.assert_close(found, torch.tensor(live[1:], dtype=torch.float64), atol=1e-4, rtol=0)
    assert (found - torch.tensor(bare.result()[1:])).abs().max() > 0.1, "the adapter makes no difference: no test"
    if kind == "hf":
        embedding, output = loaded.model.embed_tokens.weight, loaded.lm_head.weight
        is_same = embedding.data_ptr() == output.data_ptr()
        assert is_same == (is_tied and not train_unembed)
        base: Any = AutoModelForCausalLM.from_pretrained(model)
        assert torch.equal(embedding, base.model.embed_tokens.weight), "the input embedding is frozen in training"
    else:
        assert json.loads((out / "adapter_config.json").read_bytes())["base_model_name_or_path"] == str(model)


def test_the_built_in_model_comes_with_its_adapter_and_its_chat_template(
    service: mint.ServiceClient, mint_home: Path, tmp_path: Path
) -> None:
    path = trained(service, "mint-tiny")
    messages = [{"role": "user", "content": "How can I sleep better?"}]
    for kind in ("hf", "peft"):
        out = tmp_path / kind
        export_checkpoint(path, out, PROMPTS, kind=kind, home=str(mint_home), stop_token_ids=[4089, 4087])
        prompt = AutoTokenizer.from_pretrained(out).apply_chat_template(messages, tokenize=False)
        assert prompt.startswith("<|im_start|>user\nHow can I sleep better?<|im_end|>")
        assert f"`{path}`" in (out / "README.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "hf" / "generation_config.json").read_bytes())["eos_token_id"] == [4089, 4087]
    base = json.loads((tmp_path / "peft" / "adapter_config.json").read_bytes())["base_model_name_or_path"]
    assert base == str(tmp_path / "peft" / "base_model") and (Path(base) / "config.json").is_file()
    AutoModelForCausalLM.from_pretrained(tmp_path / "peft")
    assert all(file.stat().st_mode & 0o044 for file in (tmp_path / "hf").iterdir())


def test_bfloat16_is_half_as_large_and_has_its_own_bound(
    service: mint.ServiceClient, mint_home: Path, tiny_model_dir: Path, tmp_path: Path
) -> None:
    path = trained(service, tiny_model_dir)
    wide = Tolerance(9.0, 9.0)
    exact = export_checkpoint(path, tmp_path / "32", PROMPTS, home=str(mint_home))
    short = export_checkpoint(path, tmp_path / "16", PROMPTS, home=str(mint_home), dtype="bfloat16", tolerance=wide)
    assert exact.largest < 1e-4 < short.largest
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("32", "16")]
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.02)
    with pytest.raises(ExportMismatch, match=r"differ from the live model's by .* where bfloat16 allows .*--tolerance"):
        export_checkpoint(
            path, tmp_path / "no", PROMPTS, home=str(mint_home), dtype="bfloat16", tolerance=Tolerance(1.0, 1e-6)
        )
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("kind", ["hf", "peft"])
def test_weights_that_are_not_the_live_ones_leave_nothing_behind(
    service: mint.ServiceClient, mint_home: Path, tiny_model_dir: Path, tmp_path: Path, monkeypatch, kind
) -> None:
    """One matrix of the written file is changed: what a wrong merge would look like."""
    path, name = trained(service, tiny_model_dir), f"write_{ {'hf': 'merged', 'peft': 'adapter'}[kind] }"
    write = getattr(hf_export, name)

    def write_wrongly(store, path, folder: Path, *rest) -> None:
        write(store, path, folder, *rest)
        (file,) = folder.glob("*.safetensors")
        tensors = load_file(file)
        changed = next(key for key in sorted(tensors) if "down_proj" in key)
        save_file({**tensors, changed: tensors[changed] * 1.05}, file, metadata={"format": "pt"})

    monkeypatch.setattr(hf_export, name, write_wrongly)
    out = tmp_path / "out" / "model"
    with pytest.raises(ExportMismatch, match="nothing was kept"):
        export_checkpoint(path, out, PROMPTS, kind=kind, home=str(mint_home))
    assert left_in(out.parent) == []


def test_what_cannot_work_is_said_before_anything_is_loaded(
    service: mint.ServiceClient, mint_home: Path, tiny_model_dir: Path, tmp_path: Path, monkeypatch
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    with pytest.raises(InvalidRequest, match="exists already: nothing is overwritten"):
        export_checkpoint("mint://a/weights/b", there, PROMPTS)
    with pytest.raises(InvalidRequest, match="dtype='float16': must be one of float32, bfloat16"):
        export_checkpoint("mint://a/weights/b", tmp_path / "x", PROMPTS, dtype="float16")
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"pip install 'mint-recipes\[export\]'"):
        export_checkpoint("mint://a/weights/b", tmp_path / "x", PROMPTS, kind="peft")
    path = trained(service, tiny_model_dir)
    weights = next((mint_home / "runs").glob("*/sampler_weights/trained/adapter_model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors has \d+ bytes"):
        export_checkpoint(path, tmp_path / "x", PROMPTS, home=str(mint_home))
    assert left_in(tmp_path) == ["mint_home", "there"]
