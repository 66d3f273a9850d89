"""The gates between the stages of a pipeline: from numbers that a stage left behind to passed, failed or not checked.

Pure functions. A number that is not there makes a gate "not checked" (passed is None), with the reason as its advice;
a number that is there and not finite fails it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mint.errors import MintError
from recipe.gate_config import GateConfig, KLWithinBudget, NLLFalls, OnFailed, RepliesEnd
from recipe.preference.losses import wilson_interval

GATES_FILE = "gates.json"


class StageGateFailed(MintError):
    """A stage did not reach what its gate asks for, and the settings say to stop there."""


@dataclass(frozen=True)
class Gate:
    """One check of one stage, an object of gates.json.

    value: what was measured; None where it was not, or is not finite. interval: its 95 % interval, where it has one.
    low_threshold, high_threshold: what the value is compared with; each gate says how. passed: None where it was not
    checked. advice: what to try, or why it was not checked; "" where it passed.
    """

    stage: str
    name: str
    measure: str
    value: float | None
    interval: tuple[float, float] | None
    low_threshold: float | None
    high_threshold: float | None
    passed: bool | None
    on_failed: OnFailed
    advice: str

    def to_json(self) -> dict[str, Any]:
        """The object."""
        return asdict(self)

    def finding(self) -> str:
        """What was measured against what, in one line."""
        if self.passed is None:
            return f"{self.stage} {self.name}: not checked ({self.advice})"
        shown = "no number" if self.value is None else f"{self.value:.3g}"
        if self.interval is not None:
            shown += " ({:.3g} to {:.3g})".format(*self.interval)
        if self.high_threshold is not None:
            return f"{self.stage} {self.name}: {self.measure} {shown}, at most {self.high_threshold:g} asked for"
        above = "above" if self.interval is not None else "at least"
        return f"{self.stage} {self.name}: {self.measure} {shown}, {above} {self.low_threshold:g} asked for"


def nll_falls(before: float | None, after: float | None, rule: NLLFalls, on_failed: OnFailed) -> Gate:
    """SFT: the share by which the held-out NLL per token fell. None where nothing was held out."""
    measure = "fall of the held-out NLL per token, as a share,"
    if before is None or after is None:
        return _not_checked(
            "sft", "nll_falls", measure, on_failed, "no examples were held out: set num_test, or test data"
        )
    fall = (before - after) / before if before > 0 else math.nan
    advice = (
        "raise sft.learning_rate or sft.max_steps; where the NLL rose, lower sft.learning_rate or sft.num_epochs. "
        "`mint doctor` shows which tokens carry loss"
    )
    return _judged("sft", "nll_falls", measure, fall, on_failed, advice, low=rule.min_fall)


def replies_end(num_ended: int, num_replies: int, max_tokens: int, rule: RepliesEnd, on_failed: OnFailed) -> Gate:
    """SFT: how many of `num_replies` replies, sampled with at most `max_tokens` tokens, ended with a stop token."""
    measure = f"share of {num_replies} held-out replies that end within {max_tokens} tokens"
    if num_replies == 0:
        return _not_checked("sft", "replies_end", measure, on_failed, "gates.replies_end.num_replies=0")
    advice = (
        "train longer (sft.max_steps, sft.num_epochs); check with `mint doctor` that the stop token carries loss and "
        "that the renderer is the model's; where replies are meant to be long, set gates.replies_end.max_tokens"
    )
    share = num_ended / num_replies
    return _judged("sft", "replies_end", measure, share, on_failed, advice, low=rule.min_share)


def beats_chance(
    accuracy: float | None, low: float | None, high: float | None, num_pairs: int, on_failed: OnFailed
) -> Gate:
    """Preference: the held-out pair accuracy and its 95 % interval. None where no pairs were held out."""
    measure = "held-out pair accuracy"
    if accuracy is None or low is None or high is None:
        reason = "no pairs were held out: set examples.held_out_share, or give held-out pairs"
        return _not_checked("preference", "beats_chance", measure, on_failed, reason)
    advice = (
        f"{num_pairs} held-out pairs: more of them make the interval narrower; more training pairs or steps "
        "(preference.max_steps, preference.num_epochs) or another preference.readout make the model better; "
        "`mint data audit` finds pairs that contradict each other"
    )
    return _judged("preference", "beats_chance", measure, accuracy, on_failed, advice, low=0.5, interval=(low, high))


def beats_length(card: Mapping[str, Any] | None, on_failed: OnFailed) -> Gate:
    """Preference: the report card's `beats_length_only`, the share of right orders where model and length disagree."""
    measure = "share of right orders where the model and reply length disagree"
    if card is None or "beats_length_only" not in card:
        return _not_checked("preference", "beats_length", measure, on_failed, _NO_CARD)
    found = card["beats_length_only"]
    advice = (
        "the model has learned little but length: balance the pairs by length (`mint data audit FILE` writes such a "
        "split), or train a readout without length in it (verdict, or a debiased one)"
    )
    if found["num_pairs"] == 0:  # it orders every pair as length does
        return _judged("preference", "beats_length", measure, 0.0, on_failed, advice, low=0.5, interval=(0.0, 1.0))
    interval = (found["low"], found["high"])
    return _judged("preference", "beats_length", measure, found["value"], on_failed, advice, low=0.5, interval=interval)


def probes_pass(card: Mapping[str, Any] | None, on_failed: OnFailed) -> Gate:
    """Preference: the worst of the report card's probes, by the share of degraded replies that score lower.

    A probe fails where its whole 95 % interval is below the card's min_probe_share.
    """
    measure = "share of degraded replies that score lower"
    if card is None or not card.get("probes"):
        return _not_checked("preference", "probes_pass", measure, on_failed, _NO_CARD if card is None else "no probes")
    probes: Mapping[str, Any] = card["probes"]
    failed = [name for name, probe in probes.items() if not probe["passed"]]
    worst = min(failed or probes, key=lambda name: float(probes[name]["share_passed"]))
    share, least = float(probes[worst]["share_passed"]), float(card["min_probe_share"])
    advice = (
        f"the policy can earn reward with replies of this kind ({', '.join(failed)}): add pairs whose rejected reply "
        "is of that kind, or train longer; report_card.json has all probes, preference.report_card.min_probe_share "
        "what is asked of them"
    )
    return Gate(
        "preference",
        "probes_pass",
        f"{measure}, kind {worst!r},",
        share,
        wilson_interval(share, int(probes[worst]["num"])),
        least,
        None,
        not failed,
        on_failed,
        "" if not failed else advice,
    )


def kl_within_budget(kl_per_reply: float | None, rule: KLWithinBudget, on_failed: OnFailed) -> Gate:
    """RL: KL(policy || start) in nats per reply, on held-out prompts. None where there are none."""
    measure = "KL to the policy before, nats per reply,"
    if kl_per_reply is None:
        return _not_checked("rl", "kl_within_budget", measure, on_failed, "there are no held-out prompts")
    advice = (
        "raise rl.kl_penalty_coef (with rl.kl_reference_config), lower rl.learning_rate or rl.max_steps, or take an "
        "earlier checkpoint (yardstick.result=best); for long replies raise gates.kl_within_budget.max_nats_per_reply"
    )
    return _judged("rl", "kl_within_budget", measure, kl_per_reply, on_failed, advice, high=rule.max_nats_per_reply)


def score_rises(win_rate: float | None, num_prompts: int, score: str, on_failed: OnFailed) -> Gate:
    """RL: the share of `num_prompts` held-out prompts on which the policy after scores higher than the one before, a
    tie counting one half. score: what scored. win_rate: None where nothing independent of the reward did."""
    measure = f"share of {num_prompts} held-out prompts won by {score}"
    if win_rate is None or num_prompts == 0:
        reason = (
            "nothing but the reward itself measured the policy: the task needs a gold score, or yardstick.independent"
        )
        return _not_checked("rl", "score_rises", "share of held-out prompts won", on_failed, reason)
    advice = (
        "where the reward rose, the preference model is exploited: look at its report card and rl/disagreements.jsonl, "
        "raise rl.kl_penalty_coef, or take yardstick.result=best; where it did not, raise rl.max_steps or "
        "rl.learning_rate; few held-out prompts make the interval wide"
    )
    interval = wilson_interval(win_rate, num_prompts)
    return _judged("rl", "score_rises", measure, win_rate, on_failed, advice, low=0.5, interval=interval)


def sft_gates(config: GateConfig, metrics: Mapping[str, Any], endings: Mapping[str, Any] | str) -> list[Gate]:
    """The gates of the SFT stage. endings: num_ended, num_replies and max_tokens, or the reason why there are none."""
    falls = nll_falls(
        metrics.get("nll_before"), metrics.get("nll_after"), config.nll_falls, config.on_failed_of("nll_falls")
    )
    on_failed = config.on_failed_of("replies_end")
    if isinstance(endings, str):
        return [falls, _not_checked("sft", "replies_end", "share of held-out replies that end", on_failed, endings)]
    numbers = (endings["num_ended"], endings["num_replies"], endings["max_tokens"])
    return [falls, replies_end(*numbers, config.replies_end, on_failed)]


def preference_gates(config: GateConfig, metrics: Mapping[str, Any], card: Mapping[str, Any] | None) -> list[Gate]:
    """The gates of the preference stage. metrics: PreferenceResult's. card: report_card.json; None: there is none."""
    accuracy, low, high = (metrics.get(f"test/pair_accuracy{end}") for end in ("", "_low", "_high"))
    num_pairs = int(metrics.get("test/num_pairs", 0))
    return [
        beats_chance(accuracy, low, high, num_pairs, config.on_failed_of("beats_chance")),
        beats_length(card, config.on_failed_of("beats_length")),
        probes_pass(card, config.on_failed_of("probes_pass")),
    ]


def is_fit_as_reward(gates: list[Gate]) -> bool:
    """Whether stage 3 may be rewarded by the preference model with these gates."""
    return not any(gate.passed is False and gate.on_failed == "rule_reward" for gate in gates)


_NO_CARD = "the stage has no report_card.json: it holds no pairs out, or preference.report_card.is_on=False"


def _not_checked(stage: str, name: str, measure: str, on_failed: OnFailed, reason: str) -> Gate:
    return Gate(stage, name, measure.rstrip(","), None, None, None, None, None, on_failed, reason)


def _judged(
    stage: str,
    name: str,
    measure: str,
    value: float,
    on_failed: OnFailed,
    advice: str,
    *,
    low: float | None = None,
    high: float | None = None,
    interval: tuple[float, float] | None = None,
) -> Gate:
    """The gate of a number. With an interval all of it has to be above `low`."""
    if not math.isfinite(value):
        passed = False
    elif interval is not None:
        assert low is not None and high is None, "an interval is compared with a lower threshold"
        passed = interval[0] > low
    else:
        passed = (low is None or value >= low) and (high is None or value <= high)
    shown = round(value, 6) if math.isfinite(value) else None
    ends = None if interval is None else (round(interval[0], 6), round(interval[1], 6))
    return Gate(stage, name, measure, shown, ends, low, high, passed, on_failed, "" if passed else advice)
