"""What a custom loss answers, checked: a finite scalar with a finite gradient where it said it would have one.

Axes: _T tokens of one datum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mint.errors import InvalidRequest, NonFiniteError


def custom_slopes(value: Tensor, leaves: Sequence[Tensor]) -> list[np.ndarray]:
    """The gradient of the loss in each datum's logprobs, float32, shape (T,); zero where the loss ignores a datum.

    Raises InvalidRequest where there is no scalar with a gradient, NonFiniteError where either is not finite.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise InvalidRequest(
            f"the custom loss returned {type(value).__name__}; it must return (scalar tensor, metrics)"
        )
    if not value.requires_grad:
        raise InvalidRequest("the custom loss does not depend on the logprobs it was given: there is no gradient")
    if not bool(torch.isfinite(value)):
        raise NonFiniteError(f"the custom loss is {float(value.detach())}: nothing was updated")
    grads = torch.autograd.grad(value, leaves, allow_unused=True)
    slopes = [
        np.zeros(len(leaf), dtype=np.float32) if grad is None else grad.numpy().astype(np.float32, copy=False)
        for leaf, grad in zip(leaves, grads, strict=True)
    ]
    bad = [i for i, slope_T in enumerate(slopes) if not np.isfinite(slope_T).all()]
    if bad:
        raise NonFiniteError(f"the custom loss has a non-finite gradient for datum {bad[0]}: nothing was updated")
    return slopes


def check_unread(slopes: Sequence[np.ndarray], read: Sequence[np.ndarray]) -> None:
    """InvalidRequest where a loss has a gradient in a logprob that it declared not to read.

    read: the positions of each datum that it does.
    """
    for i, (slope_T, positions) in enumerate(zip(slopes, read, strict=True)):
        is_wrong_T = slope_T != 0
        is_wrong_T[positions] = False
        if is_wrong_T.any():
            raise InvalidRequest(
                f"the custom loss depends on the logprob of datum {i} at position {int(is_wrong_T.argmax())}, whose "
                "weight is zero, though it is declared with reads_weighted_tokens: give that token a weight, or leave "
                "the declaration out"
            )
