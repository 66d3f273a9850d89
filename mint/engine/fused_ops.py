"""The operations of a layer for a CPU: hand-written backward passes, few passes over memory, oneDNN's products.

Axes: _N packed tokens, _H features of a token, _Q query heads, _K key/value heads, _D head dimension, _M MLP width,
_R rank of an adapter.

PyTorch composes the gradients of norm, rotation and gate from a dozen elementwise operations each, and together they
cost as much time and more memory than the matrix products of a small model. Here each is one autograd node that keeps
the least it can, works in place, and goes through its tokens in blocks, so that its passes find their data in the
processor's cache. In bfloat16, norms and rotations compute in float32 and round once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mint.engine.cache_blocks import cache_blocks
from mint.engine.few_row_ops import FEW_ROWS, FewRowOps, head_norms
from mint.engine.layer_ops import AttendHeads, LayerOps, LowRank, Rotation
from mint.engine.products import adapted_product, product
from mint.engine.remade import remade


class FusedOps:
    """The operations of `LayerOps`, each one autograd node.

    remakes: whether the backward pass computes norms again instead of keeping them. Of a large model that is 1 % of the
    time and 10 % of the activations, and with more tokens in a micro-batch products are faster. is_checkpointed: all
    activations are computed again anyhow, so nothing is kept for the sake of one of them.
    """

    def __init__(self, remakes: bool = True, is_checkpointed: bool = False) -> None:
        self.remakes = remakes and not is_checkpointed
        self._is_checkpointed = is_checkpointed
        self._few_rows = FewRowOps()

    def for_rows(self, num_rows: int, is_checkpointed: bool = False) -> LayerOps:
        """See LayerOps."""
        if torch.is_grad_enabled():
            self._few_rows.forget()
            return FusedOps(is_checkpointed=True) if is_checkpointed else self
        return self._few_rows if num_rows <= FEW_ROWS else self

    def for_sampling(self, lora: LowRank, dtype: torch.dtype) -> LowRank:
        """See LayerOps."""
        return self._few_rows.for_sampling(lora, dtype)

    def norm(self, x_NH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        """See LayerOps."""
        return _Norm.apply(x_NH, weight_H, eps)  # type: ignore[return-value]

    def linear(self, x: Tensor, weight: Tensor, lora: LowRank | None) -> Tensor:
        """See LayerOps."""
        if not torch.is_grad_enabled():
            return adapted_product(x, weight, lora)[0]
        if lora is None:
            return _Linear.apply(x, weight, None, 0.0)  # type: ignore[return-value]
        return _Linear.apply(x, weight, lora.a, lora.scale, *lora.bs)  # type: ignore[return-value]

    def norm_linear(
        self, x_NH: Tensor, norm_weight_H: Tensor, eps: float, weight: Tensor, lora: LowRank | None
    ) -> Tensor:
        """See LayerOps."""
        normed_NH = self.norm(x_NH, norm_weight_H, eps)
        if not (self.remakes and torch.is_grad_enabled()):
            return self.linear(normed_NH, weight, lora)
        kept_NH = x_NH.detach()
        with remade(normed_NH, lambda: _normed(kept_NH, norm_weight_H, eps)[0]):
            return self.linear(normed_NH, weight, lora)

    def attended(
        self, qkv: Tensor, query_norm_D: Tensor, key_norm_D: Tensor, num_query_heads: int, rotation: Rotation,
        eps: float, attend: AttendHeads,
    ) -> Tensor:  # fmt: skip
        """See LayerOps."""
        num_kv_heads = (qkv.shape[1] // query_norm_D.shape[0] - num_query_heads) // 2
        norm_QKD = head_norms(query_norm_D, key_norm_D, num_query_heads, num_kv_heads)
        cos, sin = rotation.halves
        query_NQD, key_NKD, value_NKD = _Heads.apply(qkv, norm_QKD, num_query_heads, cos, sin, eps)  # type: ignore[misc]
        if self._is_checkpointed or not torch.is_grad_enabled():
            return attend(query_NQD, key_NKD, value_NKD)
        kept = qkv.detach().view(len(qkv), -1, key_NKD.shape[2])
        with remade(value_NKD, lambda: kept[:, -num_kv_heads:]):
            return attend(query_NQD, key_NKD, value_NKD)

    def gated_linear(self, gate_up: Tensor, weight: Tensor, lora: LowRank | None) -> Tensor:
        """See LayerOps."""
        if not torch.is_grad_enabled():
            return adapted_product(_gated(gate_up), weight, lora)[0]
        if lora is None:
            return _GatedLinear.apply(gate_up, weight, None, 0.0)  # type: ignore[return-value]
        return _GatedLinear.apply(gate_up, weight, lora.a, lora.scale, *lora.bs)  # type: ignore[return-value]


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean of squares + eps) over the last axis, kept, float32."""
    norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return norms.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()


def _norm_backward(gradient: Tensor, x: Tensor, inverse_rms: Tensor) -> Tensor:
    """The gradient of x * inverse_rms from that of its result, float32, written over `gradient`."""
    slope = torch.linalg.vecdot(gradient, x).unsqueeze(-1)
    slope.mul_(inverse_rms.pow(3)).mul_(-1 / x.shape[-1])
    return gradient.mul_(inverse_rms).addcmul_(x, slope)


def _normed(x_NH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(RMS norm of x_NH, the inverse RMS it took)."""
    y_NH = torch.empty_like(x_NH)
    inverse_rms_N1 = x_NH.new_empty(x_NH.shape[0], 1, dtype=torch.float32)
    for block in cache_blocks(x_NH):
        x = x_NH[block]
        inverse_rms = inverse_rms_N1[block] = _inverse_rms(x, eps)
        y_NH[block] = (x * inverse_rms).mul_(weight_H)
    return y_NH, inverse_rms_N1


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        y_NH, inverse_rms_N1 = _normed(x_NH, weight_H, eps)
        ctx.save_for_backward(x_NH, weight_H, inverse_rms_N1)
        return y_NH

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x_NH, weight_H, inverse_rms_N1 = ctx.saved_tensors
        weight_H = weight_H.float()
        x_gradient_NH = torch.empty_like(x_NH)
        for block in cache_blocks(x_NH):
            weighted = grads[0][block] * weight_H
            x_gradient_NH[block] = _norm_backward(weighted, x_NH[block].float(), inverse_rms_N1[block])
        return x_gradient_NH, None, None


def _low_gradients(gradient: Tensor, low: Tensor, bs: Sequence[Tensor], scale: float) -> tuple[Tensor, list[Tensor]]:
    """The gradients of `low` and of each b, where gradient is that of low @ b.T * scale, for several b side by side."""
    low_gradient = torch.empty_like(low)
    b_gradients: list[Tensor] = []
    start = 0
    lows = zip(low.chunk(len(bs), dim=-1), low_gradient.chunk(len(bs), dim=-1), strict=True)
    for b, (own_low, own_low_gradient) in zip(bs, lows, strict=True):
        own = gradient[:, start : start + b.shape[0]]
        torch.mm(own, b.to(own.dtype), out=own_low_gradient)
        # The small factor on the left: several times faster than its transpose.
        b_gradients.append((own_low.t() @ own).t().to(b.dtype).mul_(scale))
        start += b.shape[0]
    return low_gradient.mul_(scale), b_gradients


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, a: Tensor | None, scale: float, *bs: Tensor) -> Tensor:
        ctx.scale = scale
        y, low = adapted_product(x, weight, None if a is None else LowRank(a, bs, scale))
        ctx.save_for_backward(weight, *(() if a is None else (x, low, a, *bs)))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        weight, *adapter = ctx.saved_tensors
        x_gradient = product(grads[0], weight.t()) if ctx.needs_input_grad[0] else None
        if not adapter:
            return x_gradient, None, None, None
        x, low, a, *bs = adapter
        low_gradient, b_gradients = _low_gradients(grads[0], low, bs, ctx.scale)
        a_gradient = (low_gradient.t() @ x).to(a.dtype)
        if x_gradient is not None:
            x_gradient.addmm_(low_gradient, a.to(x.dtype))
        return x_gradient, None, a_gradient, None, *b_gradients


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (N, heads, D) rotated; cos and sin are (N, 1, D / 2)."""
    first, second = x.chunk(2, dim=-1)
    rotated = torch.empty_like(x)
    new_first, new_second = rotated.chunk(2, dim=-1)
    torch.mul(first, cos, out=new_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=new_second).addcmul_(first, sin)
    return rotated


class _Heads(torch.autograd.Function):
    """Query and key heads side by side, so that each pass over memory does both."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, norm_QKD: Tensor, num_query_heads: int, cos: Tensor, sin: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_normed, head_dim = norm_QKD.shape
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        turned = qkv.new_empty(heads.shape[0], num_normed, head_dim)
        inverse_rms = qkv.new_empty(heads.shape[0], num_normed, 1, dtype=torch.float32)
        for block in cache_blocks(turned):
            own = heads[block, :num_normed]
            own_inverse_rms = inverse_rms[block] = _inverse_rms(own, eps)
            turned[block] = _rotated((own * own_inverse_rms).mul_(norm_QKD), cos[block], sin[block])
        ctx.save_for_backward(qkv, norm_QKD, inverse_rms, cos, sin)
        return turned[:, :num_query_heads], turned[:, num_query_heads:], heads[:, num_normed:].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        qkv, norm_QKD, inverse_rms, cos, sin = ctx.saved_tensors
        query_gradient, key_gradient, value_gradient = grads
        num_normed, head_dim = norm_QKD.shape
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        gradient = torch.empty_like(heads)
        for block in cache_blocks(heads[:, :num_normed]):
            turned = torch.cat([query_gradient[block], key_gradient[block]], dim=1).float()
            # The inverse of a rotation is the rotation by the negative angle.
            scaled = _rotated(turned, cos[block], -sin[block]).mul_(norm_QKD)
            own = heads[block, :num_normed].float()
            gradient[block, :num_normed] = _norm_backward(scaled, own, inverse_rms[block])
        gradient[:, num_normed:] = value_gradient
        return gradient.view_as(qkv), None, None, None, None, None


def _gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, shape (N, M)."""
    y = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    for block in cache_blocks(gate_up):
        gate, up = gate_up[block].chunk(2, dim=-1)
        torch.mul(F.silu(gate), up, out=y[block])
    return y


class _GatedLinear(torch.autograd.Function):
    """Keeps gate and up alone: their product, which the adapter's gradient needs, comes out of the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, weight: Tensor, a: Tensor | None, scale: float, *bs: Tensor) -> Tensor:
        ctx.scale = scale
        y, low = adapted_product(_gated(gate_up), weight, None if a is None else LowRank(a, bs, scale))
        ctx.save_for_backward(gate_up, weight, *(() if a is None else (low, a, *bs)))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        gate_up, weight, *adapter = ctx.saved_tensors
        x_gradient = product(grads[0], weight.t())
        if not adapter:
            return _gate_gradient(gate_up, x_gradient)[0], None, None, None
        low, a, *bs = adapter
        low_gradient, b_gradients = _low_gradients(grads[0], low, bs, ctx.scale)
        gradient, x = _gate_gradient(gate_up, x_gradient.addmm_(low_gradient, a.to(gate_up.dtype)))
        return gradient, None, (low_gradient.t() @ x).to(a.dtype), None, *b_gradients


def _gate_gradient(gate_up: Tensor, x_gradient: Tensor) -> tuple[Tensor, Tensor]:
    """(the gradient of gate_up, x), where x_gradient is that of x = silu(gate) * up. x is written over x_gradient."""
    gradient = torch.empty_like(gate_up)
    for block in cache_blocks(gate_up):
        own = x_gradient[block]
        gate, up = gate_up[block].chunk(2, dim=-1)
        gate_gradient, up_gradient = gradient[block].chunk(2, dim=-1)
        activated = F.silu(gate)
        torch.mul(own, activated, out=up_gradient)
        torch.ops.aten.silu_backward.grad_input(own * up, gate, grad_input=gate_gradient)
        torch.mul(activated, up, out=own)
    return gradient, x_gradient
