"""The tokens trained on are exactly the tokens sampled.

The oracle never builds a sequence: it lists, for each sampled token, the tokens that came before it when it was drawn.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint import types
from mint.errors import InvalidRequest
from recipe.rl.datums import num_sampled_tokens, sequences_from_trajectory, trajectory_to_datums
from recipe.rl.types import TokensWithLogprobs, Trajectory, Transition


def turn(observation: list[int], tokens: list[int], logprobs: list[float] | None = None) -> Transition:
    action = TokensWithLogprobs(tokens=tokens, logprobs=[-0.5] * len(tokens) if logprobs is None else logprobs)
    return Transition(ob=types.ModelInput.from_ints(observation), ac=action, reward=0.0, episode_done=False)


def episode(*turns: Transition) -> Trajectory:
    return Trajectory(transitions=list(turns), final_ob=types.ModelInput.from_ints([]))


def arrays(datum: types.Datum) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in datum.loss_fn_inputs.items()}


def test_one_turn_becomes_one_datum_shifted_by_one() -> None:
    [datum] = trajectory_to_datums(episode(turn([10, 11, 12], [20, 21], [-0.25, -0.5])), advantage=2.0)
    assert datum.model_input.to_ints() == [10, 11, 12, 20]
    assert arrays(datum) == {
        "target_tokens": [11, 12, 20, 21],
        "weights": [0.0, 0.0, 1.0, 1.0],
        "logprobs": [0.0, 0.0, -0.25, -0.5],
        "advantages": [0.0, 0.0, 2.0, 2.0],
    }


def test_observations_that_extend_the_history_are_merged_into_one_datum() -> None:
    trajectory = episode(turn([1, 2], [3], [-1.0]), turn([1, 2, 3, 4, 5], [6, 7], [-2.0, -3.0]))
    [datum] = trajectory_to_datums(trajectory, advantage=-1.0)
    assert datum.model_input.to_ints() == [1, 2, 3, 4, 5, 6]
    assert arrays(datum)["target_tokens"] == [2, 3, 4, 5, 6, 7]
    assert arrays(datum)["weights"] == [0, 1, 0, 0, 1, 1]
    assert arrays(datum)["logprobs"] == [0, -1.0, 0, 0, -2.0, -3.0]
    assert arrays(datum)["advantages"] == [0, -1.0, 0, 0, -1.0, -1.0]


def test_an_observation_that_rewrites_history_starts_a_new_datum() -> None:
    trajectory = episode(turn([1, 2], [3]), turn([1, 2, 9], [4]), turn([1, 2, 9, 4, 5], [6]))
    first, second = trajectory_to_datums(trajectory, advantage=1.0)
    assert (first.model_input.to_ints(), arrays(first)["target_tokens"]) == ([1, 2], [2, 3])
    assert (second.model_input.to_ints(), arrays(second)["target_tokens"]) == ([1, 2, 9, 4, 5], [2, 9, 4, 5, 6])
    assert arrays(second)["weights"] == [0, 0, 1, 0, 1]


def test_an_observation_shorter_than_the_history_starts_a_new_datum() -> None:
    assert len(trajectory_to_datums(episode(turn([1, 2, 3], [4]), turn([1, 2], [5])), advantage=1.0)) == 2


def test_an_episode_without_sampled_tokens_gives_no_datum() -> None:
    assert trajectory_to_datums(episode(turn([1, 2], [])), advantage=1.0) == []


def test_missing_logprobs_are_an_error() -> None:
    with pytest.raises(InvalidRequest, match="2 tokens and 1 logprobs"):
        trajectory_to_datums(episode(turn([1], [2, 3], [-0.1])), advantage=1.0)


def test_an_empty_prompt_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="observation before the first action is empty"):
        trajectory_to_datums(episode(turn([], [2])), advantage=1.0)


def test_zero_advantage_carries_no_loss_but_keeps_its_weights() -> None:
    [sequence] = sequences_from_trajectory(episode(turn([1], [2, 3])), advantage=0.0, i_group=4, i_member=1)
    assert not sequence.carries_loss_T.any()
    assert sequence.num_sampled == 2
    assert (sequence.i_group, sequence.i_member) == (4, 1)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Episodes over four token ids, so that a fresh observation often shares a prefix with the history by accident."""
    some_tokens = st.lists(st.integers(0, 3), max_size=4)
    turns: list[Transition] = []
    history = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    for _ in range(draw(st.integers(1, 5))):
        tokens = draw(some_tokens)
        logprobs = draw(st.lists(st.floats(-8, 0, width=32), min_size=len(tokens), max_size=len(tokens)))
        turns.append(turn(history, tokens, logprobs))
        if draw(st.booleans()):
            history = history + tokens + draw(some_tokens)
        else:
            history = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    return episode(*turns)


def sampled_by_the_oracle(trajectory: Trajectory) -> list[tuple[list[int], int, float]]:
    """(tokens before it, the token, its logprob) of every token the policy drew, in order."""
    drawn = []
    for transition in trajectory.transitions:
        observation = transition.ob.to_ints()
        for i, (token, logprob) in enumerate(zip(transition.ac.tokens, transition.ac.logprobs, strict=True)):
            drawn.append((observation + transition.ac.tokens[:i], token, logprob))
    return drawn


def trained_on(datums: list[types.Datum]) -> list[tuple[list[int], int, float]]:
    """(tokens the model sees, the target, its sampler logprob) of every target with weight 1, in order."""
    found = []
    for datum in datums:
        tokens = datum.model_input.to_ints()
        values = arrays(datum)
        assert {len(value) for value in values.values()} == {len(tokens)}
        assert set(values["weights"]) <= {0.0, 1.0}
        for t, weight in enumerate(values["weights"]):
            if weight == 1.0:
                found.append((tokens[: t + 1], values["target_tokens"][t], values["logprobs"][t]))
    return found


@given(trajectories(), st.floats(-4, 4, width=32))
def test_trained_tokens_are_the_sampled_tokens_in_the_context_they_were_drawn_in(
    trajectory: Trajectory, advantage: float
) -> None:
    datums = trajectory_to_datums(trajectory, advantage)
    assert trained_on(datums) == sampled_by_the_oracle(trajectory)
    for datum in datums:
        values = arrays(datum)
        expected = np.asarray(values["weights"], dtype=np.float32) * np.float32(advantage)
        assert values["advantages"] == expected.tolist()
        assert all(lp == 0.0 for lp, w in zip(values["logprobs"], values["weights"], strict=True) if w == 0.0)


@given(trajectories())
def test_an_episode_that_only_appends_is_one_datum(trajectory: Trajectory) -> None:
    history: list[int] = []
    appends_only = True
    for transition in trajectory.transitions:
        observation = transition.ob.to_ints()
        appends_only &= observation[: len(history)] == history
        history = observation + transition.ac.tokens
    sequences = sequences_from_trajectory(trajectory, 1.0)
    if appends_only:
        assert len(sequences) <= 1
    assert num_sampled_tokens(sequences) == sum(len(t.ac.tokens) for t in trajectory.transitions)
