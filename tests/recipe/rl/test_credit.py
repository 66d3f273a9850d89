"""Which token answers for which reward, with numbers worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint import types
from mint.errors import InvalidRequest
from recipe.rl.advantages import ADVANTAGES, get_advantage_fn
from recipe.rl.credit import AdvantageConfig, LengthNorm, length_factors, token_advantages, token_returns, turn_returns
from recipe.rl.types import TokensWithLogprobs, Trajectory, TrajectoryGroup, Transition

# (tokens of the turn, its reward, token_rewards)
Turn = tuple[int, float, list[float] | None]


def trajectory(turns: list[Turn]) -> Trajectory:
    return Trajectory(
        [
            Transition(
                types.ModelInput.from_ints([1]),
                TokensWithLogprobs([5] * num_tokens, [-1.0] * num_tokens),
                reward,
                episode_done=i_turn == len(turns) - 1,
                token_rewards=token_rewards,
            )
            for i_turn, (num_tokens, reward, token_rewards) in enumerate(turns)
        ],
        types.ModelInput.from_ints([]),
    )


def group(members: list[list[Turn]], final_rewards: list[float] | None = None) -> TrajectoryGroup:
    finals = final_rewards or [0.0] * len(members)
    return TrajectoryGroup([trajectory(turns) for turns in members], finals, [{} for _ in members])


def config(**values: Any) -> AdvantageConfig:
    return AdvantageConfig(**values)


TWO_TURNS = group([[(2, 1.0, None), (1, 0.0, None)], [(1, 0.0, None), (2, 4.0, None)]], final_rewards=[0.5, 0.5])


def test_by_default_every_token_answers_for_the_whole_reward() -> None:
    # Rewards 1.5 and 4.5, mean 3.
    assert token_advantages(TWO_TURNS, get_advantage_fn("centred"), config()) == [
        [[-1.5, -1.5], [-1.5]],
        [[1.5], [1.5, 1.5]],
    ]


def test_a_turn_answers_for_what_comes_from_there_on() -> None:
    # Returns by turn: 1.5 and 0.5; 4.5 and 4.5. Means by turn: 3 and 2.5.
    assert token_advantages(TWO_TURNS, get_advantage_fn("centred"), config(credit="turn")) == [
        [[-1.5, -1.5], [-2.0]],
        [[1.5], [2.0, 2.0]],
    ]


def test_later_turns_are_discounted() -> None:
    # 1 + 0.5 * 0.5 = 1.25 and 0.5; 0 + 0.5 * 4.5 = 2.25 and 4.5. Means: 1.75 and 2.5.
    assert token_advantages(TWO_TURNS, get_advantage_fn("centred"), config(credit="turn", discount=0.5)) == [
        [[-0.5, -0.5], [-2.0]],
        [[0.5], [2.0, 2.0]],
    ]


def test_at_discount_zero_a_turn_answers_for_itself_alone() -> None:
    returns = turn_returns(TWO_TURNS.trajectories_G[1], 0.5, discount=0.0)
    assert returns == [[0.0], [4.5, 4.5]]


def test_a_turn_that_only_one_member_reaches_is_compared_with_nobody() -> None:
    longer = group(
        [[(1, 0.0, None), (1, 0.0, None), (2, 3.0, None)], [(1, 1.0, None)], [(1, 0.0, None), (1, 0.0, None)]]
    )
    # Turn 0: returns 3, 1, 0 around 4/3. Turn 1: 3 and 0 around 1.5. Turn 2: the first member alone.
    first, second, third = token_advantages(longer, get_advantage_fn("centred"), config(credit="turn"))
    assert first == [[pytest.approx(5 / 3)], [1.5], [0.0, 0.0]]
    assert second == [[pytest.approx(-1 / 3)]]
    assert third == [[pytest.approx(-4 / 3)], [-1.5]]


def test_a_token_answers_for_what_comes_from_there_on() -> None:
    dense = group([[(3, 3.0, [1.0, 0.0, 2.0])], [(2, -1.0, None)]])
    # Returns 3, 2, 2 and -1, -1 (the whole reward is the last token's); at the start of the turn 3 and -1, mean 1.
    advantages = token_advantages(dense, get_advantage_fn("centred"), config(credit="token"))
    assert advantages == [[[2.0, 1.0, 1.0]], [[-2.0, -2.0]]]


def test_token_returns_are_discounted_by_sampled_tokens_across_turns() -> None:
    episode = trajectory([(2, 1.0, None), (2, 4.0, [4.0, 0.0])])
    # Rewards 0, 1, 4, 0 and the group's 8 on the last token: 8, 4 + 4, 1 + 4, 0 + 2.5.
    assert token_returns(episode, final_reward=8.0, discount=0.5) == [[2.5, 5.0], [8.0, 8.0]]


def test_the_scale_of_a_turn_is_that_of_its_tokens() -> None:
    dense = group([[(2, 3.0, [2.0, 1.0])], [(1, -1.0, None)]])
    # Returns 3, 1 and -1; at the start 3 and -1, mean 1 and standard deviation 2: (1 - 1) / 2 = 0 for the later token.
    (first,), (second,) = token_advantages(dense, get_advantage_fn("standardised"), config(credit="token"))
    assert first == pytest.approx([1.0, 0.0], rel=1e-5)
    assert second == pytest.approx([-1.0], rel=1e-5)


def test_a_turn_without_tokens_has_no_advantages_but_keeps_its_reward() -> None:
    silent = group([[(1, 0.0, None), (0, 2.0, None)], [(1, 0.0, None), (0, 0.0, None)]])
    for credit in ("episode", "turn", "token"):
        assert token_advantages(silent, get_advantage_fn("centred"), config(credit=credit)) == [
            [[1.0], []],
            [[-1.0], []],
        ]


rewards = st.floats(-10, 10)
single_turns = st.lists(st.tuples(st.integers(1, 4), rewards), min_size=2, max_size=6)


@given(single_turns, st.sampled_from(sorted(ADVANTAGES)))
def test_in_one_turn_without_token_rewards_all_credits_are_the_same(
    members: list[tuple[int, float]], name: str
) -> None:
    made = group([[(num_tokens, reward, None)] for num_tokens, reward in members])
    by_episode, by_turn, by_token = (
        token_advantages(made, get_advantage_fn(name), config(credit=credit)) for credit in ("episode", "turn", "token")
    )
    assert by_episode == by_turn == by_token


turns = st.lists(st.tuples(st.integers(1, 3), rewards, st.none()), min_size=1, max_size=5)


@given(turns, rewards, st.floats(0, 1))
def test_turn_returns_are_the_sums_that_their_formula_says(members: list[Turn], final: float, discount: float) -> None:
    rewards_K = [reward for _, reward, _ in members]
    rewards_K[-1] += final
    expected = [
        sum(discount ** (j - k) * rewards_K[j] for j in range(k, len(rewards_K))) for k in range(len(rewards_K))
    ]
    found = turn_returns(trajectory(members), final, discount)
    assert [values[0] for values in found] == pytest.approx(expected, abs=1e-9)
    assert [len(values) for values in found] == [num_tokens for num_tokens, _, _ in members]


@pytest.mark.parametrize(
    ("length_norm", "expected"),
    # Episodes of 3 and 5 tokens: 1/3 and 1/5; their mean is 4.
    [
        ("none", [1, 1]),
        ("constant", [1 / 8, 1 / 8]),
        ("sequence_mean", [1 / 3, 1 / 5]),
        ("group_token_mean", [1 / 4] * 2),
    ],
)
def test_the_loss_of_a_sequence_is_scaled_by_its_length(length_norm: LengthNorm, expected: list[float]) -> None:
    lengths = group([[(2, 0.0, None), (1, 0.0, None)], [(5, 0.0, None)]])
    assert length_factors(lengths, length_norm, max_tokens=8) == pytest.approx(expected)


def test_the_token_mean_of_a_group_gives_every_token_of_it_the_same_weight() -> None:
    lengths = group([[(2, 0.0, None)], [(6, 0.0, None)], [(1, 0.0, None)]])
    factors = length_factors(lengths, "group_token_mean", max_tokens=8)
    # Over the group the factors times the tokens add up to one per member, as with the mean of each sequence.
    assert sum(factor * tokens for factor, tokens in zip(factors, (2, 6, 1), strict=True)) == pytest.approx(3.0)
    assert len(set(factors)) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"discount": 1.5, "credit": "turn"}, "advantage_config.discount=1.5: must be from 0 to 1"),
        ({"discount": 0.9}, "discount=0.9 with credit='episode'.*set credit=turn"),
        ({"discount": float("nan"), "credit": "turn"}, "discount=nan: must be from 0 to 1"),
    ],
)
def test_a_bad_setting_is_refused_with_its_rule(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        config(**values)


def test_an_unknown_credit_is_refused() -> None:
    with pytest.raises(TypeError, match="credit"):
        config(credit="sentence")
