"""What a preference run leaves behind, and the last things that are done for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recipe import stage_manifest
from recipe.checkpoint_utils import CheckpointRecord
from recipe.preference.report_card import write_report_card
from recipe.preference.report_card_text import one_line
from recipe.preference.scorer import ScorerSpec
from recipe.preference.types import PreferencePair
from recipe.report import bring_up_to_date
from recipe.run_log import read_metrics

if TYPE_CHECKING:
    import mint
    from recipe.preference.train import Config

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreferenceResult:
    """What a preference run leaves behind.

    metrics: those of the last training step and, where pairs were held out, of the evaluation after it (docs/metrics.md
    has their names), test/pair_accuracy_before and num_steps. scorer: makes the scorer of the trained model. Of an
    ensemble, state_path and sampler_path are the first member's; `scorer` has them all.
    """

    state_path: str
    sampler_path: str
    scorer: ScorerSpec
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def test_pair_accuracy(self) -> float | None:
        """Share of held-out pairs ordered as they should be; None where none were held out."""
        return self.metrics.get("test/pair_accuracy")

    @property
    def is_better_than_chance(self) -> bool | None:
        """Whether the whole 95 % interval of the held-out accuracy is above one half; None where none were held out."""
        low = self.metrics.get("test/pair_accuracy_low")
        return None if low is None else low > 0.5


async def finish(
    config: Config,
    manifest: stage_manifest.StageManifest,
    record: CheckpointRecord,
    held_out_pairs: Sequence[PreferencePair],
    service: mint.ServiceClient,
) -> PreferenceResult:
    """The report card, made here where the folder has none of this step, and the result."""
    card = await write_report_card(
        config.log_path,
        ScorerSpec.from_record(record),
        service,
        held_out_pairs,
        step=record.step,
        config=config.report_card,
    )
    if card is not None:
        print(one_line(card), flush=True)
    stage_manifest.complete(config.log_path, manifest, record)
    bring_up_to_date(config.log_path)
    return result_of(config.log_path, record)


def result_of(log_path: str, record: CheckpointRecord) -> PreferenceResult:
    """The result of the run whose final checkpoint this is."""
    metrics = last_metrics(log_path, record)
    assert record.state_path is not None and record.sampler_path is not None, f"incomplete record {record}"
    result = PreferenceResult(record.state_path, record.sampler_path, ScorerSpec.from_record(record), metrics)
    if result.is_better_than_chance is False:
        logger.warning(
            "the preference model orders %.3f of the held-out pairs as they should be (95 %% interval %.3f to %.3f), "
            "which may be chance: train longer, or check the pairs",
            metrics["test/pair_accuracy"],
            metrics["test/pair_accuracy_low"],
            metrics["test/pair_accuracy_high"],
        )
    return result


def last_metrics(log_path: str, record: CheckpointRecord) -> dict[str, float]:
    """The last value of every metric of a run but its times, num_steps, and test/pair_accuracy_before: the first."""
    lines = read_metrics(log_path)
    metrics: dict[str, float] = {"num_steps": record.step}
    for line in lines:
        metrics |= {key: value for key, value in line.items() if key != "step" and not key.startswith("time/")}
    before = next((line["test/pair_accuracy"] for line in lines if "test/pair_accuracy" in line), None)
    if before is not None:
        metrics["test/pair_accuracy_before"] = before
    return metrics
