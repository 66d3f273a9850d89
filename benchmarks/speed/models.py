"""Qwen3 models with random weights, made from a config: what the speed rows run on.

    python -m benchmarks.speed.models FOLDER [--names tiny small qwen3-0.6b]

The tokenizer is the built-in model's, so only its first few thousand ids occur in text; larger vocabularies cost what
they would cost with a tokenizer of their own, since every logit is computed either way.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from mint import builtin


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, in the terms of Qwen3's config."""

    hidden: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int


SHAPES: dict[str, Shape] = {
    "tiny": Shape(hidden=128, layers=4, query_heads=4, kv_heads=2, head_dim=32, mlp=384, vocab=4096),
    "small": Shape(hidden=512, layers=8, query_heads=8, kv_heads=4, head_dim=64, mlp=1536, vocab=16384),
    "qwen3-0.6b": Shape(hidden=1024, layers=28, query_heads=16, kv_heads=8, head_dim=128, mlp=3072, vocab=151936),
}


def make_model(name: str, root: Path) -> Path:
    """The folder of a model in Hugging Face format, bfloat16; written on first use, the same bytes every time."""
    folder = root / name
    if (folder / "complete").exists():
        return folder
    shape = SHAPES[name]
    tokenizer = AutoTokenizer.from_pretrained(builtin.model_dir())
    config = Qwen3Config(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.query_heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.mlp,
        vocab_size=shape.vocab,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    model.to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    # transformers refuses token ids of the vocabulary that its generation config does not know how to end.
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "complete").touch()
    return folder


def main(argv: list[str] | None = None) -> None:
    """Write the models and print their folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    options = parser.parse_args(argv)
    for name in options.names:
        print(make_model(name, options.folder))


if __name__ == "__main__":
    main()
