"""The sizes of a decoder that adapters, caches and token budgets are computed from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of one Qwen3 model."""

    num_layers: int
    hidden: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_hidden: int
    vocab_size: int
    context_length: int
