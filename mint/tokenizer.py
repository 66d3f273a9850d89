"""What can be known of a base model without loading its weights: tokenizer and context length."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(base_model: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a base model: "mint-tiny", a local folder or a hub id. NotFound when there is none."""
    from mint.engine.base_model import load_tokenizer as load

    return load(base_model)


@cache
def load_context_length(base_model: str) -> int:
    """Tokens that fit the context of a base model, prompt and reply together. NotFound when there is no such model."""
    from transformers import AutoConfig

    from mint.engine.base_model import from_pretrained

    return int(from_pretrained(AutoConfig, base_model).max_position_embeddings)
