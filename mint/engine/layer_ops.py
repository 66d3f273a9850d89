"""What a decoder layer is made of, besides attention: the interface, and the plain operations.

Axes: _N packed tokens, _H features of a token, _Q query heads, _K key/value heads, _D head dimension, _M MLP width.

`PlainOps` says what is computed, in PyTorch's own differentiable operations. `fused_ops.FusedOps` computes the same
with hand-written backward passes; tests hold one against the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class LowRank:
    """The adapter of a linear map that may be several maps fused: y_i += scale * (x @ a_i.T) @ b_i.T.

    `a` stacks the down-projections, shape (len(bs) * rank, in); b_i is (out_i, rank), in the order of the outputs.
    """

    a: Tensor
    bs: tuple[Tensor, ...]
    scale: float


@dataclass(frozen=True)
class Rotation:
    """Cosine and sine of each token's rotation, shape (N, 1, D), both halves of D alike."""

    cos: Tensor
    sin: Tensor

    @cached_property
    def halves(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of one half, float32."""
        half = self.cos.shape[-1] // 2
        return self.cos[..., :half].float(), self.sin[..., :half].float()

    @cached_property
    def signed(self) -> tuple[Tensor, Tensor]:
        """(cos, sin), float32, such that x * cos + (x with its halves exchanged) * sin is rotated."""
        cos, sin = self.halves
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def joined(lora: LowRank, dtype: torch.dtype) -> LowRank:
    """The same adapter with its up-projections, scaled, in one block-diagonal matrix: fewer and larger products."""
    b = torch.block_diag(*lora.bs) * lora.scale
    return LowRank(lora.a.to(dtype), (b.to(dtype),), scale=1.0)


AttendHeads = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(query_NQD, key_NKD, value_NKD) -> attended_NQD."""


class LayerOps(Protocol):
    """The operations of a layer. Frozen weights get no gradient, adapters and activations do.

    remakes: whether the backward pass computes some of what it needs again instead of keeping it.
    """

    @property
    def remakes(self) -> bool: ...

    def for_rows(self, num_rows: int, is_checkpointed: bool = False) -> LayerOps:
        """The fastest of its kind for a pass over so many rows, with or without gradient as it is switched now.

        is_checkpointed: whether all activations of a layer are recomputed anyhow.
        """
        ...

    def for_sampling(self, lora: LowRank, dtype: torch.dtype) -> LowRank:
        """The same adapter for activations of `dtype`, for many small passes without gradient."""
        ...

    def norm(self, x_NH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        """RMS norm (Zhang and Sennrich, 2019) over the last axis."""
        ...

    def linear(self, x: Tensor, weight: Tensor, lora: LowRank | None) -> Tensor:
        """x @ weight.T, plus the adapter's part."""
        ...

    def norm_linear(
        self, x_NH: Tensor, norm_weight_H: Tensor, eps: float, weight: Tensor, lora: LowRank | None
    ) -> Tensor:
        """The linear map of the norm."""
        ...

    def attended(
        self, qkv: Tensor, query_norm_D: Tensor, key_norm_D: Tensor, num_query_heads: int, rotation: Rotation,
        eps: float, attend: AttendHeads,
    ) -> Tensor:  # fmt: skip
        """What `attend` makes of qkv, (N, (Q + 2K) * D): of query and key heads, normed and rotated, and values."""
        ...

    def gated_linear(self, gate_up: Tensor, weight: Tensor, lora: LowRank | None) -> Tensor:
        """The linear map of silu(gate) * up, shape (N, M), which is SwiGLU (Shazeer, 2020); gate_up is (N, 2M)."""
        ...


class PlainOps:
    """Each operation as one would write it down."""

    remakes = False

    def for_rows(self, num_rows: int, is_checkpointed: bool = False) -> LayerOps:
        """See LayerOps."""
        return self

    def for_sampling(self, lora: LowRank, dtype: torch.dtype) -> LowRank:
        """See LayerOps."""
        return joined(lora, dtype)

    def norm(self, x_NH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        """See LayerOps."""
        return F.rms_norm(x_NH, weight_H.shape, weight_H, eps)

    def linear(self, x: Tensor, weight: Tensor, lora: LowRank | None) -> Tensor:
        """See LayerOps."""
        base = F.linear(x, weight)
        if lora is None:
            return base
        lows = F.linear(x, lora.a.to(x.dtype)).chunk(len(lora.bs), dim=-1)
        parts = base.split([b.shape[0] for b in lora.bs], dim=-1)
        return torch.cat(
            [
                torch.addmm(part, low, b.to(x.dtype).t(), alpha=lora.scale)
                for part, low, b in zip(parts, lows, lora.bs, strict=True)
            ],
            dim=-1,
        )

    def norm_linear(
        self, x_NH: Tensor, norm_weight_H: Tensor, eps: float, weight: Tensor, lora: LowRank | None
    ) -> Tensor:
        """See LayerOps."""
        return self.linear(self.norm(x_NH, norm_weight_H, eps), weight, lora)

    def attended(
        self, qkv: Tensor, query_norm_D: Tensor, key_norm_D: Tensor, num_query_heads: int, rotation: Rotation,
        eps: float, attend: AttendHeads,
    ) -> Tensor:  # fmt: skip
        """See LayerOps."""
        heads = qkv.view(qkv.shape[0], -1, query_norm_D.shape[0])
        num_kv_heads = (heads.shape[1] - num_query_heads) // 2
        query, key, value = heads.split([num_query_heads, num_kv_heads, num_kv_heads], dim=1)
        query = rotate(self.norm(query, query_norm_D, eps), rotation)
        return attend(query, rotate(self.norm(key, key_norm_D, eps), rotation), value)

    def gated_linear(self, gate_up: Tensor, weight: Tensor, lora: LowRank | None) -> Tensor:
        """See LayerOps."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self.linear(F.silu(gate) * up, weight, lora)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotary position embedding (Su et al., 2021) in the half-split layout that Qwen uses; x is (N, heads, D)."""
    first, second = x.chunk(2, dim=-1)
    return x * rotation.cos + torch.cat([-second, first], dim=-1) * rotation.sin
