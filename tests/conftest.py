"""Fixtures that every part of the test suite uses: a small random model, a service on temporary storage, real data."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real data beside the checkout; skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the real data in ../shared/data, which is not part of the project")
    return SHARED_DATA


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 folder with random weights of non-trivial size and the built-in tokenizer: hidden 64, 2 layers, tied."""
    return make_random_model(tmp_path_factory.mktemp("model") / "tiny")


def make_random_model(folder: Path, *, tied: bool = True, seed: int = 0, **config_overrides: int) -> Path:
    """Write a random Qwen3 model in Hugging Face format. Weights are large enough that logits differ visibly."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from mint import builtin

    tokenizer = AutoTokenizer.from_pretrained(builtin.model_dir())
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
    }
    config = Qwen3Config(
        **{**sizes, **config_overrides},
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )
    generator = torch.Generator().manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            spread = 0.1 if "norm" in name else 0.3 if "embed" in name else 0.15
            noise = torch.randn(parameter.shape, generator=generator) * spread
            parameter.copy_(1 + noise if "norm" in name else noise)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def mint_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A storage folder of the test's own, where MINT_HOME points."""
    home = tmp_path / "mint_home"
    monkeypatch.setenv("MINT_HOME", str(home))
    return home


@pytest.fixture
def service(mint_home: Path, monkeypatch: pytest.MonkeyPatch):
    """A ServiceClient on the embedded engine with storage of its own."""
    import mint

    monkeypatch.delenv("MINT_BASE_URL", raising=False)
    return mint.ServiceClient(home=str(mint_home))


@pytest.fixture(scope="session")
def tokenizer():
    """The built-in model's tokenizer."""
    from transformers import AutoTokenizer

    from mint import builtin

    return AutoTokenizer.from_pretrained(builtin.model_dir())
