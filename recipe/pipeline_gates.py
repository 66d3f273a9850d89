"""The gates of a pipeline at work: numbers gathered from the stages' folders, gates.json, warnings, the stop."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.rlhf import RLHFDatasetBuilder
from mint.atomic_files import write_atomically
from recipe.gate_config import GateConfig, OnFailed
from recipe.model_info import get_context_length, resolve_renderer_name
from recipe.policy_comparison import win_rate
from recipe.preference.report_card import read_report_card
from recipe.reply_endings import measure_reply_endings, read_endings, write_endings
from recipe.rl import train as rl_train
from recipe.rl.yardstick import read_measurements
from recipe.stage_gates import (
    GATES_FILE,
    Gate,
    StageGateFailed,
    kl_within_budget,
    preference_gates,
    score_rises,
    sft_gates,
)
from recipe.supervised import train as sft_train
from recipe.tokenizer_utils import get_tokenizer
from renderers import get_renderer

if TYPE_CHECKING:
    import mint
    from recipe.preference.train import PreferenceResult

logger = logging.getLogger(__name__)


class GateKeeper:
    """Every gate of the run so far. gates.json says the same after each stage."""

    def __init__(self, root: Path) -> None:
        self._file = root / GATES_FILE
        self.gates: list[Gate] = []

    def record(self, gates: Sequence[Gate], *, is_told: bool = False) -> None:
        """Add the gates of a stage, with a warning for each that failed and does not stop the pipeline, unless the user
        is told already."""
        self.gates += gates
        document = json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"
        if not self._file.is_file() or self._file.read_bytes() != document.encode():
            write_atomically(self._file, document.encode())
        for gate in gates:
            if gate.passed is False and gate.on_failed != "stop" and not is_told:
                follows = "; stage 3 uses the rule-based reward" if gate.on_failed == "rule_reward" else ""
                logger.warning("%s%s. Try: %s", gate.finding(), follows, gate.advice)

    def enforce(self) -> None:
        """StageGateFailed where a gate failed that stops the pipeline."""
        stopping = [gate for gate in self.gates if gate.passed is False and gate.on_failed == "stop"]
        if stopping:
            found = "; ".join(gate.finding() for gate in stopping)
            settings = " ".join(f"gates.{gate.name}.on_failed=warn" for gate in stopping)
            raise StageGateFailed(
                f"{found}. Try: {'; '.join(gate.advice for gate in stopping)}. Other settings of a finished stage "
                f"need another log_path; with {settings} the same command goes on regardless. All gates: {self._file}"
            )

    def to_json(self) -> list[dict[str, Any]]:
        """gates.json."""
        return [gate.to_json() for gate in self.gates]


async def gates_of_sft(
    config: GateConfig, sft_config: sft_train.Config, result: sft_train.SFTResult, service: mint.ServiceClient
) -> list[Gate]:
    """The gates of stage 1. Its replies are drawn once, and their endings kept in its folder."""
    return sft_gates(config, result.metrics, await _endings(config, sft_config, result, service))


async def _endings(
    config: GateConfig, sft_config: sft_train.Config, result: sft_train.SFTResult, service: mint.ServiceClient
) -> Mapping[str, Any] | str:
    rule = config.replies_end
    if rule.num_replies == 0:
        return "gates.replies_end.num_replies=0"
    known = read_endings(sft_config.log_path)
    if known is not None and known.is_for(result.sampler_path, rule.num_replies, rule.max_tokens):
        return asdict(known)
    if result.held_out is None:
        return "no examples were held out, or stage 1 was not among the stages"
    renderer_name = resolve_renderer_name(sft_config.renderer_name, sft_config.model_name)
    endings = await measure_reply_endings(
        await service.create_sampling_client_async(model_path=result.sampler_path),
        result.sampler_path,
        result.held_out,
        get_renderer(renderer_name, get_tokenizer(sft_config.model_name)).get_stop_sequences(),
        num_replies=rule.num_replies,
        max_tokens=rule.max_tokens,
        context_length=await get_context_length(service, sft_config.model_name),
    )
    write_endings(sft_config.log_path, endings)
    return asdict(endings)


def gates_of_preference(config: GateConfig, log_path: str, result: PreferenceResult) -> list[Gate]:
    """The gates of stage 2, from its metrics and report_card.json."""
    return preference_gates(config, result.metrics, read_report_card(log_path))


def gate_of_failed_stage(config: GateConfig, error: Exception) -> Gate:
    """For a preference stage that ended with an error: it has nothing that could be better than chance."""
    on_failed = config.on_failed_of("beats_chance")
    advice = f"the stage failed: {error}"
    return Gate("preference", "beats_chance", "held-out pair accuracy", None, None, 0.5, None, False, on_failed, advice)


def gates_of_rl(config: GateConfig, rl_config: rl_train.Config, summary: Mapping[str, Any]) -> list[Gate]:
    """The gates of stage 3, from the summary's comparison with stage 1, or else from the stage's yardstick."""
    builder = rl_config.dataset_builder
    assert isinstance(builder, RLHFDatasetBuilder), f"stage 3 has a {type(builder).__name__}"
    on_failed = config.on_failed_of("score_rises")
    if "rl.gold_win_rate" in summary:
        num_prompts = len(builder.load_prompts()[1])
        score = score_rises(summary["rl.gold_win_rate"], num_prompts, "gold score", on_failed)
    else:
        score = _score_of_yardstick(rl_config.log_path, summary, on_failed)
    kl = kl_within_budget(summary.get("rl.kl_to_sft"), config.kl_within_budget, config.on_failed_of("kl_within_budget"))
    return [kl, score]


def _score_of_yardstick(log_path: str, summary: Mapping[str, Any], on_failed: OnFailed) -> Gate:
    """By the yardstick's first measurement, of the policy before, and that of the stage's result."""
    measurements = read_measurements(log_path)
    if len(measurements) < 2 or measurements[0].iteration != 0:
        return score_rises(None, 0, "", on_failed)
    is_best = summary["rl.state_path"] == summary.get("rl.best_state_path")
    best = [one for one in measurements if one.iteration == summary.get("rl.best_iteration")]
    after = best[0] if is_best and best else measurements[-1]
    rate = win_rate(measurements[0].independent_PR, after.independent_PR)
    return score_rises(rate, len(after.independent_PR), "yardstick", on_failed)
