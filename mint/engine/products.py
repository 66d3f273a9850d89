"""Matrix products of a CPU: by oneDNN where it is faster than the BLAS, and with an adapter beside the weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mint.engine.layer_ops import LowRank, joined

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")

ROW_MULTIPLE = 4
"""Rows of a large product. Depending on how their number divides, oneDNN takes up to a third longer; for multiples of 4
it never does (measured on AVX-512)."""


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T. In float32 by oneDNN, which beats the BLAS that F.linear takes, most of all for few rows."""
    if _HAS_ONEDNN and (x.dtype == torch.float32 or weight.is_mkldnn):
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return F.linear(x, weight)


def packed_weight(weight: Tensor, num_rows: int) -> Tensor:
    """The weight as oneDNN reads it fastest for up to `num_rows` rows; it is for `product` alone."""
    if not _HAS_ONEDNN:
        return weight
    return torch.ops.mkldnn._reorder_linear_weight(weight, num_rows)


def packed_adapter(lora: LowRank, dtype: torch.dtype, num_rows: int) -> LowRank:
    """The same adapter, joined, as `adapted_product` reads it fastest for up to `num_rows` rows of `dtype`.

    In float32 it is not packed: for products as thin as these the BLAS is faster.
    """
    one = joined(lora, dtype)
    if not _HAS_ONEDNN or dtype != torch.bfloat16:
        return one
    return LowRank(packed_weight(one.a, num_rows), (packed_weight(one.bs[0], num_rows),), one.scale)


def adapted_product(x: Tensor, weight: Tensor, lora: LowRank | None) -> tuple[Tensor, Tensor | None]:
    """(y, x @ a.T), with the adapter's part in y; the second is None without adapter."""
    y = product(x, weight)
    if lora is None:
        return y, None
    if lora.a.is_mkldnn:  # a `packed_adapter`, whose scale is 1
        low = product(x, lora.a)
        return torch.ops.mkldnn._linear_pointwise.binary(low, y, lora.bs[0], None, "add"), low
    low = F.linear(x, lora.a.to(x.dtype))
    if len(lora.bs) == 1:
        return y.addmm_(low, lora.bs[0].to(x.dtype).t(), alpha=lora.scale), low
    start = 0
    for b, own_low in zip(lora.bs, low.chunk(len(lora.bs), dim=-1), strict=True):
        y[:, start : start + b.shape[0]].addmm_(own_low, b.to(x.dtype).t(), alpha=lora.scale)
        start += b.shape[0]
    return y, low
