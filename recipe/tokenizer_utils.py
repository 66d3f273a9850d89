"""Tokenizers by model name."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from renderers import Tokenizer


@cache
def get_tokenizer(model_name: str) -> Tokenizer:
    """The tokenizer of a base model: "mint-tiny", a local folder or a hub id. Loaded once per process.

    NotFound when there is no such model, or when the hub cannot be reached.
    """
    from mint.tokenizer import load_tokenizer

    return cast("Tokenizer", load_tokenizer(model_name))
