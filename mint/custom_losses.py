"""What a custom loss can say of itself, so that an engine computes no more than it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mint.errors import InvalidRequest

L = TypeVar("L", bound=Callable[..., Any])

_ATTRIBUTE = "reads_weighted_tokens_only"


def reads_weighted_tokens(loss_fn: L) -> L:
    """Declare that a loss for `forward_backward_custom` reads logprobs only where the datum's `weights` are not zero.

    The embedded engine then computes no others: elsewhere the loss is given 0.0, and the answer holds 0.0, as that of
    `forward_backward` does. Every datum needs `weights`, and a gradient at a token without weight is refused. A server
    that does not know the declaration gives all logprobs, so one script runs everywhere. Returns the function itself,
    with an attribute that pickling keeps where it keeps the function's own.
    """
    try:
        setattr(loss_fn, _ATTRIBUTE, True)
    except AttributeError as error:
        raise InvalidRequest(
            f"reads_weighted_tokens({loss_fn!r}): a {type(loss_fn).__name__} takes no attribute; declare the function "
            "itself, or a function that calls it"
        ) from error
    return loss_fn


def has_declared_weighted_tokens(loss_fn: Callable[..., Any]) -> bool:
    """Whether `reads_weighted_tokens` was applied to this very function."""
    return getattr(loss_fn, _ATTRIBUTE, False) is True
