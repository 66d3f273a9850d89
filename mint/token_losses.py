"""The policy losses of the API as functions of torch tensors, for custom losses that add a term to one of them.

`forward_backward` computes them in the engine; a custom loss gets logprobs and has to compute its own. Both are one
implementation, so a term of weight zero changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def token_losses(
    loss_fn: str, trainer_logprobs: Tensor, inputs: Mapping[str, Tensor], loss_fn_config: Mapping[str, float] | None
) -> Tensor:
    """The loss of each token, of the shape of `trainer_logprobs`, whose gradient it carries; docs/losses.md.

    inputs: weights, and for the policy losses logprobs and advantages, of the same shape. InvalidRequest for an unknown
    loss or setting, and for the setting `temperature`: the logprobs are what they are.
    """
    from mint.engine.losses import get_loss
    from mint.errors import InvalidRequest

    loss = get_loss(loss_fn)
    config, temperature = loss.resolve_config(loss_fn, loss_fn_config)
    if temperature != 1:
        raise InvalidRequest(
            f"loss_fn_config['temperature']={temperature}: given logprobs cannot be scaled; leave it out"
        )
    return loss.per_token(trainer_logprobs, inputs, config)
