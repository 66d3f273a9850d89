"""Tensors that the backward pass computes again instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def remade(tensors: Sequence[Tensor], make: Callable[[], Sequence[Tensor]]) -> AbstractContextManager[None]:
    """What is computed in this context does not keep `tensors` for its backward pass, which asks `make` for them.

    `make` returns the same values in the same order, and is called once for all that one node asks for. What it needs
    must be kept anyhow, or nothing is saved. Activations recomputed node by node, as in Chen et al. (2016).
    """
    place = {(tensor.data_ptr(), tensor.shape): i for i, tensor in enumerate(tensors)}
    made: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor | int:
        return place.get((tensor.data_ptr(), tensor.shape), tensor)

    def unpack(packed: Tensor | int) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if packed not in made:
            with torch.no_grad():
                made.update(enumerate(make()))
        return made.pop(packed)

    return saved_tensors_hooks(pack, unpack)
