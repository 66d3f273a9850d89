"""Settings of a run of the DPO family."""

from __future__ import annotations

import math

import chz

from mint.errors import InvalidRequest
from recipe.epoch_stage_config import EpochStageConfig
from recipe.preference.dpo.labelled_replies import LabelledReplyDatasetBuilder
from recipe.preference.dpo.losses import PREFERENCE_LOSSES, LossSettings, PreferenceLoss, get_preference_loss
from recipe.preference.types import PreferenceDatasetBuilder


@chz.chz(typecheck=True)
class LossConfig:
    """Which loss, and its numbers. None is the loss's own default; a number that it does not take is refused."""

    # One of PREFERENCE_LOSSES: dpo, ipo, hinge, slic, simpo, orpo, kto.
    name: str = "dpo"
    # What one nat counts: of the log-ratio, of the logprob (slic), per token (simpo); orpo: weight of the odds ratio.
    beta: float | None = None
    # dpo: the chance that a preference is the wrong way round; below 0.5.
    label_smoothing: float | None = None
    # The margin of rewards to reach: gamma of simpo, delta of hinge and slic.
    target_margin: float | None = None
    # Weight of the chosen reply's negative log-likelihood per token, which is added.
    nll_coef: float | None = None
    # kto: weight of replies with a thumb up, and of those with a thumb down.
    desirable_weight: float | None = None
    undesirable_weight: float | None = None

    # typecheck=True checks types last; the rules below compare values.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        taken = get_preference_loss(self.name).defaults
        for name, value in self._given().items():
            if name not in taken:
                users = ", ".join(loss for loss, row in PREFERENCE_LOSSES.items() if name in row.defaults)
                raise InvalidRequest(
                    f"loss.{name}={value} with loss.name={self.name!r}: it is a setting of {users}; leave it out"
                )
            if not math.isfinite(value):
                raise InvalidRequest(f"loss.{name}={value}: must be a finite number")
        for name in ("beta", "desirable_weight", "undesirable_weight"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise InvalidRequest(f"loss.{name}={value}: must be above 0")
        for name in ("target_margin", "nll_coef"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise InvalidRequest(f"loss.{name}={value}: must not be negative")
        if self.label_smoothing is not None and not 0.0 <= self.label_smoothing < 0.5:
            raise InvalidRequest(
                f"loss.label_smoothing={self.label_smoothing}: must be at least 0 and below 0.5; at 0.5 a preference "
                "says nothing"
            )

    @property
    def row(self) -> PreferenceLoss:
        """The loss of that name."""
        return get_preference_loss(self.name)

    def settings(self) -> LossSettings:
        """The numbers, with the loss's defaults where none is given."""
        return LossSettings(**{**self.row.defaults, **self._given()})

    def _given(self) -> dict[str, float]:
        return {name: value for name, value in chz.asdict(self).items() if name != "name" and value is not None}


@chz.chz(typecheck=True)
class Config(EpochStageConfig):
    """Settings of a run."""

    # Pairs, for any loss; or replies with a thumb up or down, for kto.
    dataset_builder: PreferenceDatasetBuilder | LabelledReplyDatasetBuilder
    loss: LossConfig = chz.field(default_factory=LossConfig)
    # mint:// path of the reference policy's sampler weights. None: the weights that the run starts from.
    reference_path: str | None = None
    # Folder for the reference's logprobs, which runs on the same data may share. None: reference_logprobs in log_path.
    reference_cache_path: str | None = None
    learning_rate: float = 2e-5

    @chz.validate
    def _loss_fits(self) -> None:
        row = self.loss.row
        if not row.uses_reference:
            for name in ("reference_path", "reference_cache_path"):
                if (value := getattr(self, name)) is not None:
                    raise InvalidRequest(
                        f"{name}={value!r} with loss.name={self.loss.name!r}: {self.loss.name} compares with no "
                        "reference; leave it out, or use a loss that does, such as dpo"
                    )
        if row.is_of_pairs and isinstance(self.dataset_builder, LabelledReplyDatasetBuilder):
            raise InvalidRequest(
                f"loss.name={self.loss.name!r} with a {type(self.dataset_builder).__name__}: {self.loss.name} compares "
                "two replies to one prompt; give pairs, or use loss.name=kto"
            )
