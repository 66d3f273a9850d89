"""Adam's settings, the learning rate aside, shared by the stages."""

from __future__ import annotations

import chz

from mint import types
from mint.errors import InvalidRequest


@chz.chz(typecheck=True)
class AdamConfig:
    """Settings of the optimizer. The learning rate and its schedule are the stage's own."""

    # Decay of the running mean of the gradient.
    beta1: float = 0.9
    # Decay of the running mean of its square.
    beta2: float = 0.95
    # Added to the root of the second moment, in the unit of the gradient.
    eps: float = 1e-8
    # Decoupled: each step shrinks the weights by learning_rate · weight_decay.
    weight_decay: float = 0.0
    # Longest gradient, as an L2 norm over all parameters; longer ones are scaled down. 0: no limit.
    grad_clip_norm: float = 0.0

    # typecheck=True checks types last; the rules below compare values.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _ranges(self) -> None:
        for name in ("eps", "weight_decay", "grad_clip_norm"):
            if not getattr(self, name) >= 0:
                raise InvalidRequest(f"optimizer.{name}={getattr(self, name)}: must not be negative")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InvalidRequest(f"optimizer.{name}={getattr(self, name)}: must be in [0, 1)")

    def adam_params(self, learning_rate: float) -> types.AdamParams:
        """What optim_step gets."""
        return types.AdamParams(
            learning_rate=learning_rate,
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.eps,
            weight_decay=self.weight_decay,
            grad_clip_norm=self.grad_clip_norm,
        )
