"""Tokenizers without weights, for code that renders messages before any client exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(base_model: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a base model: "mint-tiny", a local folder or a hub id. NotFound when there is none."""
    from mint.engine.base_model import load_tokenizer as load

    return load(base_model)
