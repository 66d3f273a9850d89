"""Random Qwen3 models in Hugging Face format, made in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def make_random_model(folder: Path, *, tied: bool = True, seed: int = 0, **config_overrides: Any) -> Path:
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
            spread = 0.1 if "norm" in name else 0.2 if "embed" in name else 0.1
            noise = torch.randn(parameter.shape, generator=generator) * spread
            parameter.copy_(1 + noise if "norm" in name else noise)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
