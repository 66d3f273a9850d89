"""The report card of a preference model: how far a policy may be optimised against it, as one JSON file.

docs/report_card.md says what each number means. Everything is measured on held-out pairs, through the scorer that
reinforcement learning uses, and follows from the pairs and the scores alone: nothing is drawn at random, and the order
of the pairs does not matter.

Axes: _N preference pair, _R reply.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chz
import torch

from mint.atomic_files import check_writable, write_atomically
from mint.errors import InvalidRequest, StorageError
from mint.seeds import derive_seed
from recipe.preference.calibration import calibrate
from recipe.preference.clustered_share import ShareEstimate, clustered_share
from recipe.preference.examined_scorer import ExaminedScorer, scores_by_conversation
from recipe.preference.length_balance import length_balanced
from recipe.preference.losses import wilson_interval
from recipe.preference.probes import PROBES, Probe, probes_of
from recipe.preference.reliability import brier_score, expected_calibration_error, hit, reliability_bins
from recipe.preference.rewardbench import section_averages
from recipe.preference.scorer import ScorerSpec
from recipe.preference.surface_features import FEATURES, pearson, spearman, surface_features
from recipe.preference.types import PreferencePair, prompt_key
from renderers import get_text

if TYPE_CHECKING:
    import mint

logger = logging.getLogger(__name__)

CARD_FILE = "report_card.json"
Card = dict[str, Any]
"""What report_card.json holds; numbers are rounded to DECIMALS, and null where a number is undefined."""
DECIMALS = 6


@chz.chz(typecheck=True)
class ReportCardConfig:
    """Whether the preference stage ends with a report card, and how much is scored for it."""

    # False: no report card is written.
    is_on: bool = True
    # Held-out prompts whose chosen reply is degraded in each way; 0: no probes.
    max_probe_prompts: int = 64
    # This share of the degraded replies should score below the chosen ones. A probe fails where the whole 95 % interval
    # of its share is lower, so not for bad luck with a few prompts.
    min_probe_share: float = 0.8
    # Held-out pairs that are judged again in each other wording of the judge's question; 0: none.
    max_reworded_pairs: int = 64
    # These other wordings, for readouts that ask a question. Empty: made from the question.
    judge_wordings: tuple[str, ...] = ()

    @chz.validate
    def _ranges(self) -> None:
        for name in ("max_probe_prompts", "max_reworded_pairs"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"report_card.{name}={getattr(self, name)}: must be at least 0")
        if not 0.0 < self.min_probe_share <= 1.0:
            raise InvalidRequest(f"report_card.min_probe_share={self.min_probe_share}: must be above 0 and at most 1")


async def write_report_card(
    log_path: str | Path,
    spec: ScorerSpec,
    service: mint.ServiceClient,
    held_out_pairs: Sequence[PreferencePair],
    *,
    step: int,
    config: ReportCardConfig | None = None,
) -> Card | None:
    """Write report_card.json into `log_path`, unless it is there for this `step` of the run, and return what it holds.
    A damaged one is made again, with a warning.

    None, and no file, where the config says so, where every held-out pair is a tie or none is held out, and, with a
    warning, where the folder is not for this user to write: a finished run may be read from there all the same.
    """
    config = config or ReportCardConfig()
    if not config.is_on or all(pair.is_tie for pair in held_out_pairs):
        return None
    folder = Path(log_path).expanduser()
    try:
        card = read_report_card(folder)
    except InvalidRequest as error:
        logger.warning("%s", error)
        card = None
    if card is not None and card.get("step") == step:
        return card
    try:
        check_writable(folder)
    except StorageError as error:
        logger.warning("no report card is made: %s", error)
        return None
    examined = await ExaminedScorer.of(spec, service, config.judge_wordings, held_out_pairs)
    card = {"step": step, **await examine(examined, held_out_pairs, config, were_calibrated_on=True)}
    document = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
    await asyncio.to_thread(write_atomically, folder / CARD_FILE, document.encode())
    return card


def read_report_card(log_path: str | Path) -> Card | None:
    """The card in a stage's folder; None where there is none. InvalidRequest for a file that is no report card."""
    path = Path(log_path).expanduser() / CARD_FILE
    if not path.is_file():
        return None
    try:
        card = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path}: not JSON ({error}); remove it, and it is made again") from error
    if not isinstance(card, dict) or "accuracy" not in card:
        raise InvalidRequest(f"{path}: not a report card (no key 'accuracy'); remove it, and it is made again")
    return card


async def examine(
    examined: ExaminedScorer,
    pairs: Sequence[PreferencePair],
    config: ReportCardConfig | None = None,
    *,
    were_calibrated_on: bool = False,
) -> Card:
    """Score the pairs, their probes and other wordings, all together and no conversation twice; the card of it.

    Ties and pairs that do not fit the model's context are counted and left out; InvalidRequest where none is left.
    were_calibrated_on: the scorer's temperature was fitted on these very pairs. Then each pair's probability is
    measured with the temperature of the half of the prompts that it is not in.
    """
    config = config or ReportCardConfig()
    decided = [pair for pair in pairs if not pair.is_tie]
    fitting = [pair for pair in decided if examined.fits(pair.chosen_conversation, pair.rejected_conversation)]
    if not fitting:
        raise InvalidRequest(
            f"a report card needs pairs: of {len(pairs)}, {len(pairs) - len(decided)} are ties and {len(decided)} are "
            "longer than the model's context; give others"
        )
    probes = [
        probe for probe in probes_of(fitting, config.max_probe_prompts) if examined.fits(probe.chosen, probe.degraded)
    ]
    reworded = [pair for pair in _sample(fitting, config.max_reworded_pairs) if examined.fits_reworded(pair)]
    conversations = [pair.chosen_conversation for pair in fitting] + [pair.rejected_conversation for pair in fitting]
    scores, *scores_reworded = await asyncio.gather(
        scores_by_conversation(examined.scorer, conversations + [probe.degraded for probe in probes]),
        *(
            scores_by_conversation(
                scorer, [conversation for pair in reworded for conversation in _conversations_of(pair)]
            )
            for scorer in examined.reworded.values()
        ),
    )
    per_score = examined.log_odds_per_score
    margins_N = [_margin(pair, scores) * per_score for pair in fitting]
    probe_results = _probes(probes, scores, per_score, config.min_probe_share)
    return _rounded(
        {
            **_accuracies(fitting, margins_N),
            "num_prompts": len({prompt_key(pair.prompt) for pair in fitting}),
            "num_ties": len(pairs) - len(decided),
            "num_too_long": len(decided) - len(fitting),
            **_calibration(fitting, margins_N, examined.temperature, were_calibrated_on),
            **_correlations(fitting, scores),
            "paraphrase": _paraphrase(examined, reworded, scores, scores_reworded),
            "probes": probe_results,
            "min_probe_share": config.min_probe_share,
            "probes_passed": all(result["passed"] for result in probe_results.values()) if probe_results else None,
        }
    )


async def examine_rewardbench(examined: ExaminedScorer, pairs: Sequence[PreferencePair]) -> Card:
    """by_subset: subset -> accuracy with its interval; sections: RewardBench's averages; num_too_long: pairs left out.

    pairs: as `read_rewardbench` gives them. Equal scores count half, where RewardBench counts them as wrong.
    """
    fitting = [pair for pair in pairs if examined.fits(pair.chosen_conversation, pair.rejected_conversation)]
    conversations = [conversation for pair in fitting for conversation in _conversations_of(pair)]
    scores = await scores_by_conversation(examined.scorer, conversations)
    by_subset = _accuracies_by_source(fitting, [_margin(pair, scores) for pair in fitting])
    sections = section_averages(by_subset)
    return _rounded({"by_subset": by_subset, "sections": sections, "num_too_long": len(pairs) - len(fitting)})


def _calibration(
    pairs_N: Sequence[PreferencePair], margins_N: Sequence[float], temperature: float, were_calibrated_on: bool
) -> Card:
    """Brier score, calibration error and bins, with the temperature and, under uncalibrated_..., without."""
    raw_N = [margin * temperature for margin in margins_N]
    if were_calibrated_on and temperature != 1.0:
        by_half = calibrate(torch.tensor(raw_N, dtype=torch.float64), [prompt_key(pair.prompt) for pair in pairs_N])
        if by_half is not None:
            margins_N = [raw / held_out for raw, held_out in zip(raw_N, by_half.cross_fitted_N.tolist(), strict=True)]
    bins = reliability_bins(margins_N)
    return {
        "brier": brier_score(margins_N),
        "ece": expected_calibration_error(bins),
        "temperature": temperature,
        "uncalibrated_brier": brier_score(raw_N),
        "uncalibrated_ece": expected_calibration_error(reliability_bins(raw_N)),
        "reliability": [asdict(one) for one in bins],
    }


def _accuracies(pairs_N: Sequence[PreferencePair], margins_N: Sequence[float]) -> Card:
    """Every accuracy of the card: overall, of length alone, by source, and where length says nothing."""
    prompts_N = [prompt_key(pair.prompt) for pair in pairs_N]
    longer_by_N = [len(get_text(pair.chosen)) - len(get_text(pair.rejected)) for pair in pairs_N]
    keys_N = [json.dumps([key, pair.chosen, pair.rejected]) for key, pair in zip(prompts_N, pairs_N, strict=True)]

    def accuracy(positions: Sequence[int]) -> Card:
        return asdict(clustered_share([hit(margins_N[i]) for i in positions], [prompts_N[i] for i in positions]))

    length_only: ShareEstimate = clustered_share([hit(longer_by) for longer_by in longer_by_N], prompts_N)
    return {
        "accuracy": accuracy(range(len(pairs_N))),
        "length_only_accuracy": asdict(length_only),
        "beats_length_only": asdict(_beats_length_only(margins_N, longer_by_N, prompts_N)),
        "length_balanced": accuracy(length_balanced(longer_by_N, keys_N)),
        "by_source": _accuracies_by_source(pairs_N, margins_N),
    }


def _beats_length_only(
    margins_N: Sequence[float], longer_by_N: Sequence[int], prompts_N: Sequence[str]
) -> ShareEstimate:
    """Of the pairs that the model and length alone order differently, the share that the model orders rightly: above
    one half where it knows more than length does. Length alone is "the longer is better" or "the shorter", whichever is
    right more often here.

    The same pairs for both, as in the test of McNemar (1947), "Note on the sampling error of the difference between
    correlated proportions or percentages".
    """
    lengths_N = [hit(longer_by) for longer_by in longer_by_N]
    if sum(lengths_N) < len(lengths_N) / 2:
        lengths_N = [1 - by_length for by_length in lengths_N]
    gains_N = [hit(margin) - by_length for margin, by_length in zip(margins_N, lengths_N, strict=True)]
    decided = [i for i, gain in enumerate(gains_N) if gain != 0]
    return clustered_share([float(gains_N[i] > 0) for i in decided], [prompts_N[i] for i in decided])


def _accuracies_by_source(pairs_N: Sequence[PreferencePair], margins_N: Sequence[float]) -> Card:
    hits_of: dict[str, list[float]] = defaultdict(list)
    prompts_of: dict[str, list[str]] = defaultdict(list)
    for pair, margin in zip(pairs_N, margins_N, strict=True):
        if pair.source is not None:
            hits_of[pair.source].append(hit(margin))
            prompts_of[pair.source].append(prompt_key(pair.prompt))
    return {source: asdict(clustered_share(hits_of[source], prompts_of[source])) for source in sorted(hits_of)}


def _correlations(pairs: Sequence[PreferencePair], scores: dict[str, float]) -> Card:
    """The score's correlation with each surface feature, over all different replies."""
    replies = {
        prompt_key([*pair.prompt, reply]): (pair.prompt, reply)
        for pair in pairs
        for reply in (pair.chosen, pair.rejected)
    }
    scores_R = [scores[key] for key in replies]
    features_R = [surface_features(prompt, reply) for prompt, reply in replies.values()]
    columns = {name: [features[name] for features in features_R] for name in FEATURES}
    return {
        "correlations": {name: spearman(values_R, scores_R) for name, values_R in columns.items()},
        "pearson_correlations": {name: pearson(values_R, scores_R) for name, values_R in columns.items()},
    }


def _paraphrase(
    examined: ExaminedScorer,
    pairs_N: Sequence[PreferencePair],
    scores: dict[str, float],
    scores_reworded: Sequence[dict[str, float]],
) -> Card:
    """How much margins change, and how many pairs change sides, when the judge's question is worded differently."""
    if not examined.reworded or not pairs_N:
        reason = examined.not_reworded_because if not examined.reworded else "no pair was judged again"
        return {"applicable": False, "reason": f"not applicable: {reason}"}
    per_score = examined.log_odds_per_score
    by_wording: Card = {}
    for question, other_scores in zip(examined.reworded, scores_reworded, strict=True):
        before_N = [_margin(pair, scores) * per_score for pair in pairs_N]
        after_N = [_margin(pair, other_scores) * per_score for pair in pairs_N]
        changed_N = [hit(before) != hit(after) for before, after in zip(before_N, after_N, strict=True)]
        deltas_N = [abs(after - before) for before, after in zip(before_N, after_N, strict=True)]
        by_wording[question] = {
            "share_changed": sum(changed_N) / len(pairs_N),
            "mean_abs_delta": math.fsum(deltas_N) / len(pairs_N),
        }
    return {
        "applicable": True,
        "num_pairs": len(pairs_N),
        "share_changed": max(one["share_changed"] for one in by_wording.values()),
        "mean_abs_delta": max(one["mean_abs_delta"] for one in by_wording.values()),
        "by_wording": by_wording,
    }


def _probes(probes: Sequence[Probe], scores: dict[str, float], per_score: float, min_share: float) -> Card:
    """For each kind of degraded reply: how often, and by how much, the chosen reply scores higher."""
    results: Card = {}
    for name in PROBES:
        margins = [
            (scores[prompt_key(probe.chosen)] - scores[prompt_key(probe.degraded)]) * per_score
            for probe in probes
            if probe.name == name
        ]
        if margins:
            share = sum(margin > 0 for margin in margins) / len(margins)
            low, high = wilson_interval(share, len(margins))
            results[name] = {
                "share_passed": share,
                "low": low,
                "high": high,
                "mean_margin": math.fsum(margins) / len(margins),
                "num": len(margins),
                "passed": high >= min_share,
            }
    return results


def _margin(pair: PreferencePair, scores: dict[str, float]) -> float:
    return scores[prompt_key(pair.chosen_conversation)] - scores[prompt_key(pair.rejected_conversation)]


def _sample(pairs: Sequence[PreferencePair], max_pairs: int) -> list[PreferencePair]:
    """Up to `max_pairs` pairs, which follows from their text."""
    by_key = {json.dumps(list(map(prompt_key, _conversations_of(pair)))): pair for pair in pairs}
    keys = sorted(by_key, key=lambda key: (derive_seed("report card sample", key), key))
    return [by_key[key] for key in keys[:max_pairs]]


def _conversations_of(pair: PreferencePair) -> list[list[Any]]:
    return [pair.chosen_conversation, pair.rejected_conversation]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, DECIMALS) if isinstance(value, float) else value
