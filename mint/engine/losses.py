"""The losses of the API: token sums, no averaging.

p is the trainer's logprob of the target token, q the sampler's, A the advantage, w the weight; every function returns
one value per token, and the loss of a request is their plain sum. Sources: PPO (Schulman et al., 2017,
arXiv:1707.06347), CISPO (MiniMax, 2025, arXiv:2506.13585), DRO (Richemond et al., 2024, arXiv:2405.19107).
docs/losses.md derives each one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from mint.errors import InvalidRequest, nearest_name

Config = Mapping[str, float]
TokenInputs = Mapping[str, Tensor]
"""Per-token tensors of one shape: weights, and for the policy losses logprobs (q) and advantages (A)."""


def cross_entropy(trainer_logprobs: Tensor, inputs: TokenInputs, config: Config) -> Tensor:
    """-w p."""
    del config
    return -inputs["weights"] * trainer_logprobs


def importance_sampling(trainer_logprobs: Tensor, inputs: TokenInputs, config: Config) -> Tensor:
    """-w exp(p - q) A."""
    del config
    ratio = torch.exp(trainer_logprobs - inputs["logprobs"])
    return -inputs["weights"] * ratio * inputs["advantages"]


def ppo(trainer_logprobs: Tensor, inputs: TokenInputs, config: Config) -> Tensor:
    """-w min(exp(p - q) A, clip(exp(p - q), low, high) A)."""
    ratio = torch.exp(trainer_logprobs - inputs["logprobs"])
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    advantages = inputs["advantages"]
    return -inputs["weights"] * torch.minimum(ratio * advantages, clipped * advantages)


def cispo(trainer_logprobs: Tensor, inputs: TokenInputs, config: Config) -> Tensor:
    """-w sg(clip(exp(p - q), low, high)) p A, where sg stops the gradient."""
    ratio = torch.exp(trainer_logprobs - inputs["logprobs"]).detach()
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -inputs["weights"] * clipped * trainer_logprobs * inputs["advantages"]


def dro(trainer_logprobs: Tensor, inputs: TokenInputs, config: Config) -> Tensor:
    """-w (p A - beta/2 (p - q)^2)."""
    quadratic = (trainer_logprobs - inputs["logprobs"]).square()
    return -inputs["weights"] * (trainer_logprobs * inputs["advantages"] - 0.5 * config["beta"] * quadratic)


@dataclass(frozen=True)
class Loss:
    """A loss, the inputs it needs beside target_tokens, and the defaults of its config."""

    per_token: Callable[[Tensor, TokenInputs, Config], Tensor]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    defaults: Config = field(default_factory=lambda: MappingProxyType({}))

    def carrying(self, inputs: TokenInputs) -> Tensor:
        """True where a token can contribute: its weight is non-zero, or without weights its advantage is.

        Everywhere else the loss and its gradient are zero, so the vocabulary projection is skipped there.
        """
        if "weights" in inputs:
            return inputs["weights"] != 0
        if "beta" in self.defaults:  # dro pulls p towards q also where the advantage is zero
            return torch.ones_like(inputs["advantages"], dtype=torch.bool)
        return inputs["advantages"] != 0

    def resolve_config(self, name: str, config: Mapping[str, float | str] | None) -> tuple[dict[str, float], float]:
        """(the loss's own parameters, temperature) with defaults filled in; unknown keys are an error."""
        given = dict(config or {})
        known = {*self.defaults, "temperature"}
        for key, value in given.items():
            if key not in known:
                raise InvalidRequest(
                    f"loss_fn_config has {key!r}, which loss_fn={name!r} does not know (it knows "
                    f"{', '.join(sorted(known))}).{nearest_name(key, known)}"
                )
            if not isinstance(value, (int, float)):
                raise InvalidRequest(f"loss_fn_config[{key!r}]={value!r}: must be a number")
        numbers = {key: float(value) for key, value in given.items()}
        temperature = numbers.pop("temperature", 1.0)
        if not 0 < temperature < float("inf"):
            raise InvalidRequest(f"loss_fn_config['temperature']={temperature}: must be positive and finite")
        resolved = {**self.defaults, **numbers}
        low, high = resolved.get("clip_low_threshold", 0.0), resolved.get("clip_high_threshold", 1.0)
        if not 0 <= low <= high:
            raise InvalidRequest(f"clip_low_threshold={low}, clip_high_threshold={high}: need 0 <= low <= high")
        return resolved, temperature


_POLICY_INPUTS = ("logprobs", "advantages")

LOSSES: Mapping[str, Loss] = MappingProxyType(
    {
        "cross_entropy": Loss(cross_entropy, required=("weights",)),
        "importance_sampling": Loss(importance_sampling, _POLICY_INPUTS, optional=("weights",)),
        "ppo": Loss(
            ppo, _POLICY_INPUTS, optional=("weights",),
            defaults={"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
        ),
        "cispo": Loss(
            cispo, _POLICY_INPUTS, optional=("weights",),
            defaults={"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
        ),
        "dro": Loss(dro, _POLICY_INPUTS, optional=("weights",), defaults={"beta": 0.05}),
    }
)  # fmt: skip


def get_loss(name: str) -> Loss:
    """The loss of that name; InvalidRequest with the known names otherwise."""
    if name not in LOSSES:
        raise InvalidRequest(f"loss_fn={name!r}: must be one of {', '.join(LOSSES)}.{nearest_name(name, LOSSES)}")
    return LOSSES[name]
