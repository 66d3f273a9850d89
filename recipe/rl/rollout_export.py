"""Episodes as files: one JSON line per member and per failed call, and a few groups as text for people.

`rollouts/iteration_000012.jsonl` and `rollouts/test_000012.jsonl` in the run's folder; an iteration done again after a
resume replaces its files. The fields are listed in docs/metrics.md.

Axes: _P group of the batch (problem), _G member of a group.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from mint.atomic_files import storage_errors
from recipe import journal
from recipe.rl.batch import ScoredGroup
from recipe.rl.types import EnvFault, Observation, TokensWithLogprobs, TrajectoryGroup, Transition

# Raised when a field changes its meaning or goes away.
FORMAT_VERSION = 1


class Decoder(Protocol):
    """The one method of a tokenizer that is needed here."""

    def decode(self, token_ids: list[int]) -> Any:
        """Tokens as text."""
        ...


def export_rollouts(
    stem: Path,
    groups_P: Sequence[TrajectoryGroup | ScoredGroup],
    decoder: Decoder,
    *,
    faults: Sequence[EnvFault] = (),
    as_json: bool,
    num_groups_as_text: int,
) -> None:
    """Write <stem>.jsonl with every episode and fault where `as_json`, and <stem>.txt with the first groups of each."""
    if not as_json and num_groups_as_text == 0:
        return
    records = rollout_records(groups_P, decoder) + [_fault_record(fault, decoder) for fault in faults]
    if as_json:
        write_records(stem.with_suffix(".jsonl"), records)
    if num_groups_as_text > 0:
        write_text(stem.with_suffix(".txt"), records, num_groups_as_text)


def rollout_records(groups_P: Sequence[TrajectoryGroup | ScoredGroup], decoder: Decoder) -> list[dict[str, Any]]:
    """One dictionary per episode; `advantage` is None for groups without advantages (evaluation)."""
    return [record for group in groups_P for record in _group_records(group, decoder)]


def write_records(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Write the records as JSON lines, all of them or none."""
    text = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
    _write(path, text)


def write_text(path: Path, records: Sequence[dict[str, Any]], num_groups: int) -> None:
    """Write the first `num_groups` groups of the records, and of those that failed, for people to read."""
    texts: list[str] = []
    for has_failed, text_of in ((False, _episode_text), (True, _fault_text)):
        chosen = [record for record in records if ("fault" in record) == has_failed]
        shown = list(dict.fromkeys(record["group"] for record in chosen))[:num_groups]
        texts += [text_of(record) for record in chosen if record["group"] in shown]
    _write(path, "\n".join(texts))


def _group_records(scored: TrajectoryGroup | ScoredGroup, decoder: Decoder) -> list[dict[str, Any]]:
    group = scored.group if isinstance(scored, ScoredGroup) else scored
    advantages_G = scored.mean_advantages_G if isinstance(scored, ScoredGroup) else [None] * len(group)
    members = zip(
        group.trajectories_G,
        group.get_total_rewards(),
        group.final_rewards_G,
        group.metrics_G,
        advantages_G,
        strict=True,
    )
    return [
        {
            "version": FORMAT_VERSION,
            "group": group.i_group,
            "member": i_member,
            "env": group.env_name,
            "tags": group.tags,
            "total_reward": total_reward,
            "final_reward": final_reward,
            "advantage": advantage,
            "metrics": metrics,
            "turns": [_turn_record(transition, decoder) for transition in trajectory.transitions],
        }
        for i_member, (trajectory, total_reward, final_reward, metrics, advantage) in enumerate(members)
    ]


def _fault_record(fault: EnvFault, decoder: Decoder) -> dict[str, Any]:
    """The episode up to the call that failed; the reply it failed on comes last, without a reward."""
    turns = [_turn_record(transition, decoder) for transition in fault.transitions]
    if fault.unrated_turn is not None:
        turns.append(_sampled_record(*fault.unrated_turn, decoder) | {"reward": None, "metrics": {}, "logs": {}})
    return {
        "version": FORMAT_VERSION,
        "group": fault.i_group,
        "member": fault.i_member,
        "attempt": fault.attempt,
        "env": fault.env_name,
        "fault": {"kind": fault.kind, "where": fault.where, "error": fault.error, "traceback": fault.traceback},
        "turns": turns,
    }


def _turn_record(transition: Transition, decoder: Decoder) -> dict[str, Any]:
    rating = {"reward": transition.reward, "metrics": transition.metrics, "logs": transition.logs}
    return _sampled_record(transition.ob, transition.ac, decoder) | rating


def _sampled_record(observation: Observation, action: TokensWithLogprobs, decoder: Decoder) -> dict[str, Any]:
    prompt_tokens = observation.to_ints()
    return {
        "prompt": decoder.decode(prompt_tokens),
        "response": decoder.decode(list(action.tokens)),
        "prompt_tokens": prompt_tokens,
        "tokens": list(action.tokens),
        "logprobs": list(action.logprobs),
        "stop_reason": action.stop_reason,
    }


def _episode_text(record: dict[str, Any]) -> str:
    advantage = record["advantage"]
    head = f"=== group {record['group']} member {record['member']}: reward {record['total_reward']:.4g}"
    head += "" if advantage is None else f", advantage {advantage:+.4g}"
    return "\n".join([head, *_turn_lines(record)]) + "\n"


def _fault_text(record: dict[str, Any]) -> str:
    fault = record["fault"]
    head = f"=== group {record['group']}, attempt {record['attempt']}: {fault['kind']} in {fault['where']}"
    return "\n".join([head, *_turn_lines(record), "--- fault", fault["traceback"]]) + "\n"


def _turn_lines(record: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for i_turn, turn in enumerate(record["turns"]):
        reward = "no reward" if turn["reward"] is None else f"reward {turn['reward']:.4g}"
        lines += [f"--- turn {i_turn}, prompt", turn["prompt"]]
        lines += [f"--- turn {i_turn}, response ({turn['stop_reason']}, {reward})", turn["response"]]
    return lines


def _write(path: Path, text: str) -> None:
    with storage_errors(path):
        path.parent.mkdir(exist_ok=True)  # not the run's folder: where that was removed, the run should say so
    journal.replace_file(path, text)
