"""The operations of a layer for decoding on a CPU: a few rows, no gradient, as few calls as can be.

Axes: _N rows, _H features of a row, _Q query heads, _K key/value heads, _D head dimension.

With so few rows an operation takes little longer than calling it, and a product as long as reading its weights. So
nothing goes block by block, and weights are kept in the layout that oneDNN reads fastest. In bfloat16, norms and
rotations compute in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mint.engine.layer_ops import AttendHeads, LayerOps, LowRank, Rotation
from mint.engine.products import adapted_product, packed_adapter, packed_weight

FEW_ROWS = 128
"""Up to so many rows reading the weights takes as long as multiplying, and their layout matters."""
_LARGEST_PACKED_BYTES = 2**25
"""Larger weights, the vocabulary's and those of models whose copy would be missed, stay as they are."""


class FewRowOps:
    """The operations of `LayerOps` for up to FEW_ROWS rows, without gradient."""

    remakes = False

    def __init__(self) -> None:
        self._prepared: dict[int, Tensor] = {}

    def forget(self) -> None:
        """Let go of what was prepared: training needs the room, and preparing all of 0.6B takes half a second."""
        self._prepared.clear()

    def for_rows(self, num_rows: int, is_checkpointed: bool = False) -> LayerOps:
        """See LayerOps."""
        return self

    def for_sampling(self, lora: LowRank, dtype: torch.dtype) -> LowRank:
        """See LayerOps."""
        return packed_adapter(lora, dtype, FEW_ROWS)

    def norm(self, x_NH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        """See LayerOps."""
        return F.rms_norm(x_NH, weight_H.shape, weight_H, eps)

    def linear(self, x: Tensor, weight: Tensor, lora: LowRank | None) -> Tensor:
        """See LayerOps."""
        return adapted_product(x, self._packed(weight), lora)[0]

    def norm_linear(
        self, x_NH: Tensor, norm_weight_H: Tensor, eps: float, weight: Tensor, lora: LowRank | None
    ) -> Tensor:
        """See LayerOps."""
        return self.linear(self.norm(x_NH, norm_weight_H, eps), weight, lora)

    def attended(
        self, qkv: Tensor, query_norm_D: Tensor, key_norm_D: Tensor, num_query_heads: int, rotation: Rotation,
        eps: float, attend: AttendHeads,
    ) -> Tensor:  # fmt: skip
        """See LayerOps. The values are a view of `qkv`."""
        head_dim = query_norm_D.shape[0]
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        num_kv_heads = (heads.shape[1] - num_query_heads) // 2
        num_normed = num_query_heads + num_kv_heads
        norm_QKD = self._once(query_norm_D, lambda: head_norms(query_norm_D, key_norm_D, num_query_heads, num_kv_heads))
        normed = F.rms_norm(heads[:, :num_normed].float(), (head_dim,), None, eps).mul_(norm_QKD)
        cos, sin = rotation.signed
        turned = (normed * cos).addcmul_(normed.roll(head_dim // 2, dims=-1), sin).to(qkv.dtype)
        return attend(turned[:, :num_query_heads], turned[:, num_query_heads:], heads[:, num_normed:])

    def gated_linear(self, gate_up: Tensor, weight: Tensor, lora: LowRank | None) -> Tensor:
        """See LayerOps."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self.linear(F.silu(gate).mul_(up), weight, lora)

    def _packed(self, weight: Tensor) -> Tensor:
        """The frozen weight as oneDNN reads it fastest."""

        def prepare() -> Tensor:
            is_small = weight.numel() * weight.itemsize <= _LARGEST_PACKED_BYTES
            return packed_weight(weight, FEW_ROWS) if is_small else weight

        return self._once(weight, prepare)

    def _once(self, weight: Tensor, prepare: Callable[[], Tensor]) -> Tensor:
        """What `prepare` makes of a frozen weight, made on first use."""
        prepared = self._prepared.get(weight.data_ptr())
        if prepared is None:
            prepared = self._prepared[weight.data_ptr()] = prepare()
        return prepared


def head_norms(query_norm_D: Tensor, key_norm_D: Tensor, num_query_heads: int, num_kv_heads: int) -> Tensor:
    """The weights of query and key norm for each head, float32, shape (Q + K, D)."""
    return torch.cat([query_norm_D.expand(num_query_heads, -1), key_norm_D.expand(num_kv_heads, -1)]).float()
