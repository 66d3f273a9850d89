"""Where the work is done is one setting; wrong settings are one clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tinker

import mint
from mint import errors, types
from tests.random_model import make_random_model


def test_a_url_hands_over_to_the_tinker_sdk(monkeypatch: pytest.MonkeyPatch):
    client = mint.ServiceClient(base_url="http://127.0.0.1:9", api_key="tml-test")
    assert isinstance(client, tinker.ServiceClient)
    monkeypatch.setenv("MINT_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("MINT_API_KEY", "tml-test")
    assert isinstance(mint.ServiceClient(), tinker.ServiceClient)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "mint.example"}, r"base_url='mint.example': must start with http:// or https://"),
        ({"base_url": "http://127.0.0.1:9"}, "needs a key: set MINT_API_KEY"),
        (
            {"base_url": "http://127.0.0.1:9", "api_key": "k", "device": "cpu"},
            "device: settings of the embedded engine",
        ),
        ({"devise": "cpu"}, "ServiceClient got devise; the engine's options are device, dtype"),
        ({"device": "cupboard"}, "device='cupboard': not a device"),
        ({"dtype": "float16"}, "dtype='float16': must be one of float32, bfloat16"),
        ({"token_budget": 0}, "token_budget=0: must be at least 1"),
    ],
)
def test_wrong_settings(settings, message, monkeypatch: pytest.MonkeyPatch):
    for name in ("MINT_BASE_URL", "MINT_API_KEY", "TINKER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(errors.InvalidRequest, match=message):
        mint.ServiceClient(**settings)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/nowhere/at/all", "no such folder; give a folder in Hugging Face format"),
        (
            "Qwen/Qwen3-0.6B-that-does-not-exist",
            "use a local folder in Hugging Face format or the built-in model 'mint-tiny'",
        ),
    ],
)
def test_unknown_models(name, message, service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(errors.NotFound, match=message):
        service.create_lora_training_client(name)


def test_only_qwen3_runs_here(service, tmp_path: Path):
    from transformers import GPT2Config

    GPT2Config(n_layer=1).save_pretrained(tmp_path)
    with pytest.raises(errors.InvalidRequest, match="is of type 'gpt2': the embedded engine runs dense Qwen3 models"):
        service.create_lora_training_client(str(tmp_path))


def test_capabilities_list_the_built_in_model(service):
    models = {model.model_name: model for model in service.get_server_capabilities().supported_models}
    assert models["mint-tiny"].max_context_length == 4096


def test_sampling_client_needs_exactly_one_source(service):
    with pytest.raises(errors.InvalidRequest, match="exactly one of model_path and base_model"):
        service.create_sampling_client()


def test_unknown_checkpoint(service):
    with pytest.raises(errors.NotFound):
        service.create_training_client_from_state("mint://nobody/weights/nothing")


def test_async_forms(service, tiny_model_dir):
    import asyncio

    async def use() -> str:
        training = await service.create_lora_training_client_async(str(tiny_model_dir), rank=2, seed=0)
        again = await service.create_lora_training_client(str(tiny_model_dir), rank=2, seed=0)
        assert again.model_id != training.model_id
        future = await training.save_state_async("a")
        path = (await future).path
        sampler = await service.create_sampling_client_async(model_path=path)
        response = await sampler.sample_async(
            types.ModelInput.from_ints([1, 2]), 1, types.SamplingParams(max_tokens=2, seed=0)
        )
        assert response.sequences[0].tokens
        return path

    assert asyncio.run(use()).startswith("mint://")


def test_importing_mint_is_light_and_leaves_no_trace():
    code = (
        "import os, sys; before = dict(os.environ); import mint; assert dict(os.environ) == before;"
        "heavy = {'torch', 'transformers', 'tinker', 'peft'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


def test_sampling_params_reject_unknown_fields_and_fill_stop():
    with pytest.raises(ValueError, match="max_token\n.*Extra inputs are not permitted"):
        types.SamplingParams(max_token=3)  # pyright: ignore
    assert types.SamplingParams(stop_token_ids=[7]).stop == [7]
    assert types.SamplingParams(stop="x", stop_token_ids=[7]).stop == "x"
    with pytest.raises(ValueError, match="temperature=-1.0"):
        types.SamplingParams(temperature=-1.0)


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ({"attention_bias": True}, "the model's attention_bias is True"),
        ({"use_sliding_window": True, "sliding_window": 64}, "the model's use_sliding_window is True"),
        ({"hidden_act": "gelu"}, "the model's hidden_act is 'gelu'; the embedded engine computes 'silu' only"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e6, "factor": 2.0}},
            "the model's rope_type is 'dynamic'",
        ),
    ],
)
def test_a_variant_that_the_engine_would_compute_wrongly_is_refused(
    service: mint.ServiceClient, tmp_path: Path, variant: dict[str, Any], message: str
) -> None:
    model = make_random_model(tmp_path / "variant", **variant)
    with pytest.raises(errors.InvalidRequest, match=message):
        service.create_lora_training_client(str(model), rank=2)
