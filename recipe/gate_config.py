"""Settings of the gates between the stages of a pipeline: what each asks for, and what follows where it fails.

docs/pipeline.md has the reasons for the defaults.
"""

from __future__ import annotations

import math
from typing import Literal

import chz

from mint.errors import InvalidRequest

OnFailed = Literal["stop", "rule_reward", "warn"]
"""stop: StageGateFailed. rule_reward: stage 3 is rewarded by the rule instead of the preference model. warn: go on."""


@chz.chz(typecheck=True)
class GateRule:
    """What all gates have."""

    # "stop", "warn", or, for gates of the preference model, "rule_reward".
    on_failed: OnFailed = "stop"

    @property
    def allows_rule_reward(self) -> bool:
        """Whether the gate is about the preference model, which the rule-based reward can stand in for."""
        return False

    @chz.validate
    def _check_on_failed(self) -> None:
        if self.on_failed == "rule_reward" and not self.allows_rule_reward:
            raise InvalidRequest(
                f"on_failed='rule_reward' for {type(self).__name__}: only the preference model has a stand-in; "
                "use 'stop' or 'warn'"
            )


@chz.chz(typecheck=True)
class NLLFalls(GateRule):
    """SFT: the held-out NLL per token fell."""

    # By at least this share of what it was.
    min_fall: float = 0.01

    @chz.validate
    def _check(self) -> None:
        _check_share("nll_falls.min_fall", self.min_fall)


@chz.chz(typecheck=True)
class RepliesEnd(GateRule):
    """SFT: replies to held-out prompts come to an end of their own."""

    # At least this share of them.
    min_share: float = 0.8
    # Held-out prompts that are replied to, one reply each; 0: not checked.
    num_replies: int = 32
    # A reply that is longer is cut. None: twice the longest of the held-out replies.
    max_tokens: int | None = None

    @chz.validate
    def _check(self) -> None:
        _check_share("replies_end.min_share", self.min_share)
        if self.num_replies < 0:
            raise InvalidRequest(f"gates.replies_end.num_replies={self.num_replies}: must be at least 0")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest(f"gates.replies_end.max_tokens={self.max_tokens}: must be at least 1, or None")


@chz.chz(typecheck=True)
class PreferenceRule(GateRule):
    """A gate of the preference model."""

    @property
    def allows_rule_reward(self) -> bool:
        """See GateRule."""
        return True


@chz.chz(typecheck=True)
class BeatsChance(PreferenceRule):
    """Preference: the whole 95 % interval of the held-out pair accuracy is above one half."""

    on_failed: OnFailed = "rule_reward"


@chz.chz(typecheck=True)
class BeatsLength(PreferenceRule):
    """Preference: where the model and the rule "the longer is better" (or "the shorter", whichever is right more often)
    disagree about a held-out pair, the model is right in more than half, by the whole 95 % interval."""

    on_failed: OnFailed = "warn"


@chz.chz(typecheck=True)
class ProbesPass(PreferenceRule):
    """Preference: good replies score above what was made of them (empty, repeated, cut, refusing, ...); the share asked
    for is preference.report_card.min_probe_share."""

    on_failed: OnFailed = "warn"


@chz.chz(typecheck=True)
class KLWithinBudget(GateRule):
    """RL: the policy is not too far from the one that the stage started from."""

    on_failed: OnFailed = "warn"
    # KL(policy || start), in nats per reply.
    max_nats_per_reply: float = 25.0

    @chz.validate
    def _check(self) -> None:
        if not (math.isfinite(self.max_nats_per_reply) and self.max_nats_per_reply > 0):
            raise InvalidRequest(
                f"gates.kl_within_budget.max_nats_per_reply={self.max_nats_per_reply}: must be above 0 and finite"
            )


@chz.chz(typecheck=True)
class ScoreRises(GateRule):
    """RL: by a score that was not the reward, the policy wins on more than half of the held-out prompts against the one
    that the stage started from, by the whole 95 % interval."""

    on_failed: OnFailed = "warn"


@chz.chz(typecheck=True)
class GateConfig:
    """The gates of a pipeline."""

    # What every failed gate leads to; None: what each gate says itself.
    on_failed: Literal["stop", "warn"] | None = None
    nll_falls: NLLFalls = chz.field(default_factory=NLLFalls)
    replies_end: RepliesEnd = chz.field(default_factory=RepliesEnd)
    beats_chance: BeatsChance = chz.field(default_factory=BeatsChance)
    beats_length: BeatsLength = chz.field(default_factory=BeatsLength)
    probes_pass: ProbesPass = chz.field(default_factory=ProbesPass)
    kl_within_budget: KLWithinBudget = chz.field(default_factory=KLWithinBudget)
    score_rises: ScoreRises = chz.field(default_factory=ScoreRises)

    def on_failed_of(self, gate: str) -> OnFailed:
        """What the gate of that name leads to where it fails."""
        rule: GateRule = getattr(self, gate)
        return rule.on_failed if self.on_failed is None else self.on_failed


def _check_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InvalidRequest(f"gates.{name}={value}: must be between 0 and 1")
