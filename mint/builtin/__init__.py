"""The tiny Qwen3 model that ships with the package, and the code that made it."""

from __future__ import annotations

from pathlib import Path

NAME = "mint-tiny"


def model_dir() -> Path:
    """Folder of the built-in model: a Hugging Face checkpoint (config, weights, tokenizer)."""
    return Path(__file__).resolve().parent / "model"
