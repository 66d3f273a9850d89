"""Where the KL penalty acts and what its coefficient is: fixed, or steered towards a KL that is asked for.

The controller is that of Ziegler et al. 2019, arXiv:1909.08593, section 2.2: after each iteration
coef *= 1 + rate * clip(KL / target - 1, -0.2, 0.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import chz

from mint.errors import InvalidRequest
from recipe.rl.kl import KLReferenceConfig

_LOOP_STATE_KEY = "kl_penalty_coef"
_MAX_ERROR = 0.2


@chz.chz(typecheck=True)
class AdaptiveKLConfig:
    """Steers the coefficient so that KL to the reference stays near a target."""

    # KL to hold, in nats per episode (kl_policy_base_per_episode).
    target: float
    # The coefficient changes by 0.2 times this at most, relatively, in one iteration.
    rate: float = 0.1

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if not 0 < self.target < float("inf"):
            raise InvalidRequest(f"kl_penalty_config.adaptive.target={self.target}: must be positive and finite.")
        if not 0 < self.rate < 1 / _MAX_ERROR:
            raise InvalidRequest(
                f"kl_penalty_config.adaptive.rate={self.rate}: must be above 0 and below {1 / _MAX_ERROR:g}, or the"
                " coefficient could reach 0 and stay there."
            )


@chz.chz(typecheck=True)
class KLPenaltyConfig:
    """How the penalty is applied; its coefficient at the start is the run's kl_penalty_coef."""

    # "advantages" takes it off the advantages; "loss_k1", "loss_k2" and "loss_k3" add that estimator to the loss.
    form: Literal["advantages", "loss_k1", "loss_k2", "loss_k3"] = "advantages"
    # In the advantages, how much a token answers for the KL of the token after it, and so on: 0 not at all, 1 fully.
    discount: float = 0.0
    # None keeps the coefficient as it is.
    adaptive: AdaptiveKLConfig | None = None

    # typecheck=True checks types last; the rules below compare numbers.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if not 0 <= self.discount <= 1:
            raise InvalidRequest(f"kl_penalty_config.discount={self.discount}: must be from 0 to 1.")
        if self.discount > 0 and self.loss_estimator is not None:
            raise InvalidRequest(
                f"kl_penalty_config.discount={self.discount} with form={self.form!r}: only a penalty in the advantages"
                " looks at later tokens; set form=advantages, or leave the discount at 0."
            )

    @property
    def loss_estimator(self) -> str | None:
        """ "k1", "k2" or "k3" for a penalty in the loss, otherwise None."""
        return self.form.removeprefix("loss_") if self.form.startswith("loss_") else None


def check_kl_penalty(
    coef: float, reference: KLReferenceConfig | None, penalty: KLPenaltyConfig, temperature: float
) -> None:
    """InvalidRequest unless these settings of a run fit together."""
    if not 0 <= coef < float("inf") or (coef > 0 and reference is None):
        raise InvalidRequest(
            f"kl_penalty_coef={coef}: must not be negative, and needs a reference; set"
            " kl_reference_config.base_model (and kl_reference_config.load_checkpoint_path)."
        )
    if coef == 0 and penalty != KLPenaltyConfig():
        raise InvalidRequest(
            "kl_penalty_config is set with kl_penalty_coef=0, which means no penalty; set kl_penalty_coef, for an"
            " adaptive coefficient to its value at the start."
        )
    if penalty.loss_estimator is not None and temperature != 1:
        raise InvalidRequest(
            f"kl_penalty_config.form={penalty.form!r} with temperature={temperature}: the loss would need logprobs at"
            " both temperatures, as KL is that of the policies at temperature 1; set temperature=1, or form=advantages."
        )


class KLCoefficient:
    """The coefficient as a run goes on. What changes in it is part of what a checkpoint records."""

    def __init__(self, coef: float, adaptive: AdaptiveKLConfig | None, loop_state: Mapping[str, Any]) -> None:
        """loop_state: of the checkpoint that the run is resumed from; empty for a new run."""
        self._adaptive = adaptive
        self.value = float(loop_state.get(_LOOP_STATE_KEY, coef)) if adaptive is not None else coef

    def observe(self, kl_per_episode: float) -> None:
        """Take note of the KL of an iteration, in nats per episode, measured under the coefficient as it is."""
        if self._adaptive is not None:
            self.value = steered(self.value, kl_per_episode, self._adaptive)

    def loop_state(self) -> dict[str, Any]:
        """What a checkpoint has to record: nothing where the coefficient is fixed."""
        return {} if self._adaptive is None else {_LOOP_STATE_KEY: self.value}


def steered(coef: float, kl_per_episode: float, config: AdaptiveKLConfig) -> float:
    """The coefficient after an iteration with that KL."""
    error = min(max(kl_per_episode / config.target - 1.0, -_MAX_ERROR), _MAX_ERROR)
    return coef * (1.0 + config.rate * error)
