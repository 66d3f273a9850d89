"""AdamW on one flat buffer per adapter (Kingma & Ba, 2015; decoupled weight decay: Loshchilov & Hutter, 2019).

Axes: _F all parameters of one adapter, flat.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mint.engine.cache_blocks import cache_blocks
from mint.errors import InvalidRequest, NonFiniteError
from mint.types import AdamParams


@dataclass(frozen=True)
class AdamState:
    """First and second moment and the number of steps taken. Never changed in place: a step makes a new one."""

    num_steps: int
    first_F: Tensor
    second_F: Tensor

    @classmethod
    def fresh(cls, like_F: Tensor) -> AdamState:
        """Zero moments, no steps."""
        return cls(0, torch.zeros_like(like_F), torch.zeros_like(like_F))

    def to_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint stores."""
        steps = torch.tensor([self.num_steps], dtype=torch.int64)
        return {"first_moment": self.first_F.cpu(), "second_moment": self.second_F.cpu(), "num_steps": steps}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], device: torch.device) -> AdamState:
        """Inverse of `to_tensors`."""
        first, second = tensors["first_moment"].to(device), tensors["second_moment"].to(device)
        return cls(int(tensors["num_steps"].item()), first, second)

    def fits(self, params_F: Tensor) -> bool:
        """Whether this is the state of an optimizer of these parameters."""
        return self.first_F.shape == self.second_F.shape == params_F.shape


def check_adam_params(params: AdamParams) -> None:
    """Raise InvalidRequest for values that no Adam step can use."""
    rules = {
        "learning_rate": (params.learning_rate >= 0, "must not be negative"),
        "beta1": (0 <= params.beta1 < 1, "must be in [0, 1)"),
        "beta2": (0 <= params.beta2 < 1, "must be in [0, 1)"),
        "eps": (params.eps >= 0, "must not be negative"),
        "weight_decay": (params.weight_decay >= 0, "must not be negative"),
        "grad_clip_norm": (params.grad_clip_norm >= 0, "must not be negative (0 means no clipping)"),
    }
    for name, (holds, rule) in rules.items():
        if not holds:
            raise InvalidRequest(f"AdamParams.{name}={getattr(params, name)}: {rule}")


def adam_step(
    params_F: Tensor, grads_F: Tensor, state: AdamState, options: AdamParams
) -> tuple[Tensor, AdamState, dict[str, float]]:
    """One step. Returns new parameters, new state and metrics; the arguments are left as they are.

    Raises NonFiniteError when the gradient is not finite.
    """
    norm = float(torch.linalg.vector_norm(grads_F, dtype=torch.float64))
    if norm != norm or norm == float("inf"):
        raise NonFiniteError("the accumulated gradient is not finite: no step was taken, the gradient was discarded")
    clipping = options.grad_clip_norm / norm if 0 < options.grad_clip_norm < norm else 1.0
    num_steps = state.num_steps + 1
    new_params_F, first_F, second_F = (torch.empty_like(params_F) for _ in range(3))
    update_norms = []
    for block in cache_blocks(params_F):
        params, gradient = params_F[block], grads_F[block]
        if clipping != 1.0:
            gradient = gradient * clipping
        first = torch.lerp(gradient, state.first_F[block], options.beta1, out=first_F[block])
        second = torch.mul(state.second_F[block], options.beta2, out=second_F[block])
        second.add_(gradient.square().mul_(1 - options.beta2))
        denominator = (second / (1 - options.beta2**num_steps)).sqrt_().add_(options.eps)
        decayed = params * (1 - options.learning_rate * options.weight_decay)
        step_size = options.learning_rate / (1 - options.beta1**num_steps)
        new_params = torch.addcdiv(decayed, first, denominator, value=-step_size, out=new_params_F[block])
        update_norms.append(torch.linalg.vector_norm(new_params - params, dtype=torch.float64))
    if not bool(torch.isfinite(new_params_F).all() & torch.isfinite(second_F).all()):
        # eps=0 with a zero gradient is 0/0; the square of a large gradient overflows, and an infinite second moment
        # would freeze its parameters for good. Better no step than a ruined adapter.
        raise NonFiniteError(
            "the step would make weights or Adam's moments non-finite: no step was taken, the gradient was discarded; "
            "use AdamParams.eps > 0, a smaller learning rate, or look for extreme weights or advantages"
        )
    update_norm = float(torch.linalg.vector_norm(torch.stack(update_norms)))
    metrics = {"grad_norm:mean": norm, "update_norm:mean": update_norm}
    return new_params_F, AdamState(num_steps, first_F, second_F), metrics
