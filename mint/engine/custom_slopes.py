"""What a custom loss answers, checked: a finite scalar with a finite gradient where it said it would have one.

Axes: _T tokens of one datum.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from mint.errors import InvalidRequest, NonFiniteError

# Between two answers of a loss to the same logprobs, relative to the largest slope of a datum.
_TOLERANCE = 1e-4


def custom_slopes(value: Tensor, leaves: Mapping[int, Tensor], is_partial: bool = False) -> dict[int, np.ndarray]:
    """The gradient of the loss in datums' logprobs, float32, shape (T,); zero where the loss ignores a datum.

    is_partial: whether other datums' logprobs are not known yet, so that the value itself means nothing. Raises
    InvalidRequest where there is no scalar with a gradient, NonFiniteError where either is not finite.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise InvalidRequest(
            f"the custom loss returned {type(value).__name__}; it must return (scalar tensor, metrics)"
        )
    if is_partial and not value.requires_grad:
        return {i: np.zeros(len(leaf), dtype=np.float32) for i, leaf in leaves.items()}
    if not value.requires_grad:
        raise InvalidRequest("the custom loss does not depend on the logprobs it was given: there is no gradient")
    if not is_partial and not bool(torch.isfinite(value)):
        raise NonFiniteError(f"the custom loss is {float(value.detach())}: nothing was updated")
    grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    slopes = {
        i: np.zeros(len(leaf), dtype=np.float32) if grad is None else grad.numpy().astype(np.float32, copy=False)
        for (i, leaf), grad in zip(leaves.items(), grads, strict=True)
    }
    bad = [i for i, slope_T in slopes.items() if not np.isfinite(slope_T).all()]
    if bad:
        raise NonFiniteError(f"the custom loss has a non-finite gradient for datum {bad[0]}: nothing was updated")
    return slopes


def check_unread(datum: int, slope_T: np.ndarray, read: np.ndarray) -> None:
    """InvalidRequest where a loss has a gradient in a logprob that it declared not to read.

    read: the positions of the datum that it does.
    """
    is_wrong_T = slope_T != 0
    is_wrong_T[read] = False
    if is_wrong_T.any():
        raise InvalidRequest(
            f"the custom loss depends on the logprob of datum {datum} at position {int(is_wrong_T.argmax())}, whose "
            "weight is zero, though it is declared with reads_weighted_tokens: give that token a weight, or leave "
            "the declaration out"
        )


def check_uncoupled(used: Mapping[int, np.ndarray], final: Mapping[int, np.ndarray]) -> None:
    """InvalidRequest where a datum's slopes are others once all logprobs are known, though a loss declared them not to.

    used: the slopes that were gone by. final: those that the loss answers in the end.
    """
    for i, used_T in used.items():
        largest = max(np.abs(used_T).max(initial=0.0), np.abs(final[i]).max(initial=0.0))
        if np.abs(used_T - final[i]).max(initial=0.0) > _TOLERANCE * largest:
            raise InvalidRequest(
                f"the gradient of the custom loss in datum {i} depends on datums of other groups, though it is "
                "declared with couples_only_within: put the datums into one group, or leave the declaration out"
            )
