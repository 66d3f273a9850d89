"""Episodes as files: one JSON line per member and per failed call, and a few groups as text for people.

`rollouts/iteration_000012.jsonl` and `rollouts/test_000012.jsonl` in the run's folder, and once the update is made
`rollouts/trained_000012.jsonl` with what the trainer thought of the tokens; an iteration done again after a resume
replaces its files. The fields are listed in docs/metrics.md.

Axes: _P group of the batch (problem), _G member of a group, _K turn of an episode, _T token, _D training sequence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from mint.atomic_files import storage_errors
from recipe import journal
from recipe.rl.batch import ScoredGroup
from recipe.rl.metrics import TrainedSequence
from recipe.rl.types import EnvFault, Observation, TokensWithLogprobs, TrajectoryGroup, Transition
from recipe.token_spans import TokenSpans

# Raised when a field changes its meaning, goes away or comes to every record.
FORMAT_VERSION = 2
# A logprob needs no more to be read, and a short number makes a small file.
_TRAINER_LOGPROB_DECIMALS = 6


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
    writer = _RecordWriter(decoder)
    records = _records(groups_P, writer) + [writer.fault(fault) for fault in faults]
    if as_json:
        write_records(stem.with_suffix(".jsonl"), records)
    if num_groups_as_text > 0:
        write_text(stem.with_suffix(".txt"), records, num_groups_as_text)


def export_trainer_logprobs(stem: Path, trained_D: Sequence[TrainedSequence], *, as_json: bool) -> None:
    """Write <stem>.jsonl with one line per episode of an update, where `as_json`.

    Its `trainer_logprobs` go through the episode's sampled tokens in order, all turns after each other; null where the
    token carried no loss.
    """
    if not as_json:
        return
    logprobs_of: dict[tuple[int, int], list[float | None]] = {}
    for row in trained_D:
        sequence = row.sequence
        logprobs = row.trainer_logprobs_T[sequence.is_sampled_T].astype(float).round(_TRAINER_LOGPROB_DECIMALS).tolist()
        carries_loss = sequence.carries_loss_T[sequence.is_sampled_T].tolist()
        logprobs_of.setdefault((sequence.i_group, sequence.i_member), []).extend(
            logprob if has_loss else None for logprob, has_loss in zip(logprobs, carries_loss, strict=True)
        )
    records = [
        {"version": FORMAT_VERSION, "group": i_group, "member": i_member, "trainer_logprobs": values}
        for (i_group, i_member), values in logprobs_of.items()
    ]
    write_records(stem.with_suffix(".jsonl"), records)


def rollout_records(groups_P: Sequence[TrajectoryGroup | ScoredGroup], decoder: Decoder) -> list[dict[str, Any]]:
    """One dictionary per episode; advantages are None for groups without them (evaluation)."""
    return _records(groups_P, _RecordWriter(decoder))


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


def _records(groups_P: Sequence[TrajectoryGroup | ScoredGroup], writer: _RecordWriter) -> list[dict[str, Any]]:
    return [record for group in groups_P for record in writer.episodes(group)]


class _RecordWriter:
    """Makes the records of one batch."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._spans = TokenSpans(decoder.decode)

    def episodes(self, scored: TrajectoryGroup | ScoredGroup) -> list[dict[str, Any]]:
        """One record per member of the group."""
        group = scored.group if isinstance(scored, ScoredGroup) else scored
        mean_advantages_G = scored.mean_advantages_G if isinstance(scored, ScoredGroup) else [None] * len(group)
        advantages_GKT = scored.advantages_GKT if isinstance(scored, ScoredGroup) else [None] * len(group)
        members = zip(
            group.trajectories_G,
            group.get_total_rewards(),
            group.final_rewards_G,
            group.metrics_G,
            mean_advantages_G,
            advantages_GKT,
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
                "turns": self._turns(trajectory.transitions, advantages_KT),
            }
            for i_member, (trajectory, total_reward, final_reward, metrics, advantage, advantages_KT) in enumerate(
                members
            )
        ]

    def fault(self, fault: EnvFault) -> dict[str, Any]:
        """The episode up to the call that failed; the reply it failed on comes last, without a reward."""
        turns = self._turns(fault.transitions, None)
        if fault.unrated_turn is not None:
            turns.append(self._sampled(*fault.unrated_turn) | {"reward": None, "metrics": {}, "logs": {}})
        return {
            "version": FORMAT_VERSION,
            "group": fault.i_group,
            "member": fault.i_member,
            "attempt": fault.attempt,
            "env": fault.env_name,
            "fault": {"kind": fault.kind, "where": fault.where, "error": fault.error, "traceback": fault.traceback},
            "turns": turns,
        }

    def _turns(
        self, transitions: Sequence[Transition], advantages_KT: Sequence[Sequence[float]] | None
    ) -> list[dict[str, Any]]:
        turns = [
            self._sampled(turn.ob, turn.ac) | {"reward": turn.reward, "metrics": turn.metrics, "logs": turn.logs}
            for turn in transitions
        ]
        if advantages_KT is not None:
            for turn, advantages_T in zip(turns, advantages_KT, strict=True):
                turn["advantages"] = _compact(advantages_T)
        return turns

    def _sampled(self, observation: Observation, action: TokensWithLogprobs) -> dict[str, Any]:
        prompt_tokens, tokens = observation.to_ints(), list(action.tokens)
        response = self._decoder.decode(list(tokens))
        return {
            "prompt": self._decoder.decode(prompt_tokens),
            "response": response,
            "prompt_tokens": prompt_tokens,
            "tokens": tokens,
            "token_lengths": self._spans.lengths(tokens, response),
            "logprobs": list(action.logprobs),
            "advantages": None,
            "stop_reason": action.stop_reason,
        }


def _compact(values_T: Sequence[float]) -> float | list[float]:
    """One number where all tokens have the same, as with the reward of the whole episode on every token."""
    return values_T[0] if len(set(values_T)) == 1 else list(values_T)


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
