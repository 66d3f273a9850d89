"""Rollouts as files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from mint import types
from recipe.rl.batch import ScoredGroup
from recipe.rl.datums import sequences_from_trajectory
from recipe.rl.metrics import TrainedSequence
from recipe.rl.rollout_export import export_trainer_logprobs, rollout_records, write_records, write_text
from recipe.rl.types import TokensWithLogprobs, Trajectory, TrajectoryGroup, Transition


class Letters:
    """Token i is the i-th letter."""

    def decode(self, token_ids: list[int]) -> str:
        return "".join(chr(ord("a") + token) for token in token_ids)


def group(i_group: int) -> TrajectoryGroup:
    def trajectory(token: int) -> Trajectory:
        action = TokensWithLogprobs(tokens=[token], logprobs=[-0.25], stop_reason="stop")
        transition = Transition(types.ModelInput.from_ints([0, 1]), action, 0.5, True, {"correct": 1.0}, {"gold": "b"})
        return Trajectory([transition], types.ModelInput.from_ints([]))

    return TrajectoryGroup(
        [trajectory(2), trajectory(3)], [0.5, 0.0], [{"rank": 0.0}, {"rank": 1.0}], ["letters"], "LetterEnv", i_group
    )


def test_a_record_holds_text_tokens_logprobs_rewards_and_advantage() -> None:
    first, second = rollout_records([ScoredGroup(group(4), [[[0.25]], [[-0.25]]], [1.0, 1.0])], Letters())
    assert first == {
        "version": 2,
        "group": 4,
        "member": 0,
        "env": "LetterEnv",
        "tags": ["letters"],
        "total_reward": 1.0,
        "final_reward": 0.5,
        "advantage": 0.25,
        "metrics": {"rank": 0.0},
        "turns": [
            {
                "prompt": "ab",
                "response": "c",
                "prompt_tokens": [0, 1],
                "tokens": [2],
                "token_lengths": [1],
                "logprobs": [-0.25],
                "advantages": 0.25,
                "stop_reason": "stop",
                "reward": 0.5,
                "metrics": {"correct": 1.0},
                "logs": {"gold": "b"},
            }
        ],
    }
    assert (second["member"], second["advantage"], second["total_reward"]) == (1, -0.25, 0.5)


def test_one_json_line_per_episode_and_a_second_export_replaces_the_first(tmp_path: Path) -> None:
    path = tmp_path / "rollouts" / "iteration_000012.jsonl"
    write_records(path, rollout_records([ScoredGroup(group(0), [[[0.0]], [[0.0]]], [1.0, 1.0]), group(1)], Letters()))
    write_records(path, rollout_records([group(2)], Letters()))
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(record["group"], record["member"], record["advantage"]) for record in records] == [
        (2, 0, None),
        (2, 1, None),
    ]
    assert [entry.name for entry in path.parent.iterdir()] == ["iteration_000012.jsonl"]


def test_text_shows_the_first_groups_only(tmp_path: Path) -> None:
    records = rollout_records([ScoredGroup(group(0), [[[0.25]], [[-0.25]]], [1.0, 1.0]), group(1)], Letters())
    path = tmp_path / "iteration_000000.txt"
    write_text(path, records, num_groups=1)
    text = path.read_text(encoding="utf-8")
    assert "=== group 0 member 0: reward 1, advantage +0.25\n--- turn 0, prompt\nab\n" in text
    assert "group 1" not in text


def test_advantages_that_differ_within_a_turn_are_listed_and_tests_have_none() -> None:
    action = TokensWithLogprobs(tokens=[0, 1], logprobs=[-0.25, -0.5], stop_reason="length")
    turn = Transition(types.ModelInput.from_ints([0]), action, 0.0, True, {}, {})
    pair = TrajectoryGroup([Trajectory([turn], types.ModelInput.from_ints([]))] * 2, [0.0, 1.0], [{}, {}])
    scored = rollout_records([ScoredGroup(pair, [[[0.5, -0.5]], [[0.0, 0.0]]], [1.0, 1.0])], Letters())
    assert [record["turns"][0]["advantages"] for record in scored] == [[0.5, -0.5], 0.0]
    assert [record["turns"][0]["advantages"] for record in rollout_records([pair], Letters())] == [None, None]


def test_trainer_logprobs_follow_the_sampled_tokens_of_all_turns(tmp_path: Path) -> None:
    """Two turns whose second prompt extends the first make one sequence; a token without advantage has no number."""

    def turn(prompt: list[int], tokens: list[int]) -> Transition:
        action = TokensWithLogprobs(tokens=tokens, logprobs=[-0.5] * len(tokens), stop_reason="stop")
        return Transition(types.ModelInput.from_ints(prompt), action, 0.0, False, {}, {})

    episode = Trajectory([turn([9, 9], [1, 2]), turn([9, 9, 1, 2, 8], [3])], types.ModelInput.from_ints([]))
    (sequence,) = sequences_from_trajectory(episode, [[1.0, 0.0], [-1.0]], i_group=4, i_member=1)
    trained = TrainedSequence(sequence, np.array([-9.0, -0.1, -0.2, -8.0, -0.3], dtype=np.float32))
    export_trainer_logprobs(tmp_path / "rollouts" / "trained_000003", [trained], as_json=True)
    (line,) = (tmp_path / "rollouts" / "trained_000003.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {"version": 2, "group": 4, "member": 1, "trainer_logprobs": [-0.1, None, -0.3]}
