"""Episodes as files: one JSON line per member, and a few groups as text for people.

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
from recipe.rl.types import TrajectoryGroup, Transition

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
    as_json: bool,
    num_groups_as_text: int,
) -> None:
    """Write <stem>.jsonl with every episode where `as_json`, and <stem>.txt with the first groups."""
    if not as_json and num_groups_as_text == 0:
        return
    records = rollout_records(groups_P, decoder)
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
    """Write the first `num_groups` groups of the records for people to read."""
    shown = list(dict.fromkeys(record["group"] for record in records))[:num_groups]
    _write(path, "\n".join(_episode_text(record) for record in records if record["group"] in shown))


def _group_records(scored: TrajectoryGroup | ScoredGroup, decoder: Decoder) -> list[dict[str, Any]]:
    group = scored.group if isinstance(scored, ScoredGroup) else scored
    advantages_G = scored.advantages_G if isinstance(scored, ScoredGroup) else [None] * len(group)
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


def _turn_record(transition: Transition, decoder: Decoder) -> dict[str, Any]:
    prompt_tokens = transition.ob.to_ints()
    return {
        "prompt": decoder.decode(prompt_tokens),
        "response": decoder.decode(list(transition.ac.tokens)),
        "prompt_tokens": prompt_tokens,
        "tokens": list(transition.ac.tokens),
        "logprobs": list(transition.ac.logprobs),
        "stop_reason": transition.ac.stop_reason,
        "reward": transition.reward,
        "metrics": transition.metrics,
        "logs": transition.logs,
    }


def _episode_text(record: dict[str, Any]) -> str:
    advantage = record["advantage"]
    head = f"=== group {record['group']} member {record['member']}: reward {record['total_reward']:.4g}"
    lines = [head + ("" if advantage is None else f", advantage {advantage:+.4g}")]
    for i_turn, turn in enumerate(record["turns"]):
        lines.append(f"--- turn {i_turn}, prompt")
        lines.append(turn["prompt"])
        lines.append(f"--- turn {i_turn}, response ({turn['stop_reason']}, reward {turn['reward']:.4g})")
        lines.append(turn["response"])
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    with storage_errors(path):
        path.parent.mkdir(exist_ok=True)  # not the run's folder: where that was removed, the run should say so
    journal.replace_file(path, text)
