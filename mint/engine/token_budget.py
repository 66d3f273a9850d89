"""How many packed tokens a training micro-batch may hold on this machine."""

from __future__ import annotations

import torch

from mint.engine.decoder import Decoder

_SMALLEST_CPU_BYTES, _LARGEST_CPU_BYTES = 3 * 2**26, 2**31
_GPU_ACTIVATION_FRACTION = 0.5
_SMALLEST, _LARGEST = 256, 65536


def activation_bytes_per_token(decoder: Decoder) -> int:
    """Roughly what one token keeps for the backward pass: the inputs of every operation that needs them."""
    shape = decoder.shape
    query, kv = shape.num_query_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    if decoder.device.type == "cpu":
        # `fused_ops` keep the inputs of the two norms, and what they return unless that is made again; queries, keys
        # and values before norm and rotation, queries and keys after it, and what they attended to; gate and up.
        floats = (2 if decoder.remakes else 4) * shape.hidden + 3 * query + 3 * kv + 2 * shape.mlp_hidden
    else:
        # Residual stream, two norms and their inputs; queries, keys and values before and after norm, rotation and
        # padding; gate, up, their activation and product.
        floats = 6 * shape.hidden + 6 * query + 10 * kv + 5 * shape.mlp_hidden
    return shape.num_layers * floats * decoder.dtype.itemsize


def default_token_budget(decoder: Decoder) -> int:
    """As many tokens as fit the memory for activations.

    On a CPU two thirds of what the frozen weights take, and from 192 MiB to 2 GiB: products of few tokens wait for
    the weights, and more tokens than that gain little. On a GPU half of what is free.
    """
    weights = decoder.num_parameters * decoder.dtype.itemsize
    available = min(max(weights * 2 // 3, _SMALLEST_CPU_BYTES), _LARGEST_CPU_BYTES)
    if decoder.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(decoder.device)
        available = int(free * _GPU_ACTIVATION_FRACTION)
    return min(max(available // activation_bytes_per_token(decoder), _SMALLEST), _LARGEST)
