"""A tensor that the backward pass computes again instead of keeping it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def remade(tensor: Tensor, make: Callable[[], Tensor]) -> AbstractContextManager[None]:
    """What is computed in this context does not keep `tensor` for its backward pass, which asks `make` for it.

    `make` returns the same values. What it needs must be kept anyhow, or nothing is saved. Activations are recomputed
    so, layer by layer, in Chen et al. (2016).
    """
    place = (tensor.data_ptr(), tensor.shape)

    def pack(saved: Tensor) -> Tensor | None:
        return None if (saved.data_ptr(), saved.shape) == place else saved

    def unpack(packed: Tensor | None) -> Tensor:
        if packed is not None:
            return packed
        with torch.no_grad():
            return make()

    return saved_tensors_hooks(pack, unpack)
