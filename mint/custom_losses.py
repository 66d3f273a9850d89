"""What a custom loss can say of itself, so that an engine computes no more than it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mint.errors import InvalidRequest

L = TypeVar("L", bound=Callable[..., Any])

_READS_WEIGHTED = "reads_weighted_tokens_only"
_GROUPS = "coupled_groups"


def reads_weighted_tokens(loss_fn: L) -> L:
    """Declare that a loss for `forward_backward_custom` reads logprobs only where the datum's `weights` are not zero.

    The embedded engine then computes no others: elsewhere the loss is given 0.0, and the answer holds 0.0, as that of
    `forward_backward` does. Every datum needs `weights`, and a gradient at a token without weight is refused. A server
    that does not know the declaration gives all logprobs, so one script runs everywhere. Returns the function itself,
    with an attribute that pickling keeps where it keeps the function's own.
    """
    return _declared("reads_weighted_tokens", loss_fn, _READS_WEIGHTED, True)


def couples_only_within(groups: Sequence[int]) -> Callable[[L], L]:
    """Declare that the gradient of a loss in a datum's logprobs depends on datums of the same group alone.

    groups[i] is the group of datum i: the pair of a reply in a mean over pairs, the datum itself in a sum over datums.
    The embedded engine then does one micro-batch after another, so that memory does not grow with the batch, and calls
    the loss once for each: with 0.0 for logprobs that are not known yet, and at last with all of them. Only that last
    value counts; a loss that breaks its word is refused then. Metrics may look at everything. A server that does not
    know the declaration gives all logprobs at once, so one script runs everywhere. Returns the function itself.
    """
    return lambda loss_fn: _declared("couples_only_within", loss_fn, _GROUPS, tuple(groups))


def _declared(name: str, loss_fn: L, attribute: str, value: Any) -> L:
    try:
        setattr(loss_fn, attribute, value)
    except AttributeError as error:
        raise InvalidRequest(
            f"{name}({loss_fn!r}): a {type(loss_fn).__name__} takes no attribute; declare the function "
            "itself, or a function that calls it"
        ) from error
    return loss_fn


def has_declared_weighted_tokens(loss_fn: Callable[..., Any]) -> bool:
    """Whether `reads_weighted_tokens` was applied to this very function."""
    return getattr(loss_fn, _READS_WEIGHTED, False) is True


def declared_groups(loss_fn: Callable[..., Any], num_datums: int) -> tuple[int, ...] | None:
    """What `couples_only_within` was given; None without it, InvalidRequest where it speaks of other datums."""
    groups = getattr(loss_fn, _GROUPS, None)
    if groups is not None and len(groups) != num_datums:
        raise InvalidRequest(
            f"the custom loss is declared with couples_only_within({len(groups)} groups), and the request has "
            f"{num_datums} datums: give one group for each datum"
        )
    return groups
