"""Estimates of success, and which problems a stream passes over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.curriculum import CurriculumConfig, ProblemStream, SuccessEstimate
from envs.types import Env, EnvGroupBuilder
from mint.errors import InvalidRequest


class Nothing(EnvGroupBuilder):
    async def make_envs(self) -> Sequence[Env]:
        return []


def stream(number: int, config: CurriculumConfig | None, seed: int = 0) -> ProblemStream:
    return ProblemStream("part", [Nothing() for _ in range(number)], seed, config)


def test_estimate_by_hand() -> None:
    estimate, config = SuccessEstimate(), CurriculumConfig(memory=0.5)
    assert estimate.share == 0.5
    estimate.observe([1.0, 1.0, 1.0, 0.0], config)
    assert (estimate.successes, estimate.failures) == (3.0, 1.0)
    assert estimate.share == pytest.approx(3.5 / 5)
    estimate.observe([1.0, 1.0, 0.5, 2.0], config)
    # Half of what was known, 3.5 successes and 0.5 failures on top: rewards are cut to [0, 1].
    assert (estimate.successes, estimate.failures) == (5.0, 1.0)
    assert estimate.share == pytest.approx(5.5 / 7)


def test_rewards_of_another_range() -> None:
    estimate, config = SuccessEstimate(), CurriculumConfig(lowest_reward=-1.0, highest_reward=3.0)
    estimate.observe([-1.0, 0.0, 3.0], config)
    assert (estimate.successes, estimate.failures) == (1.25, 1.75)


@pytest.mark.parametrize(
    ("rewards", "is_settled"),
    [
        ([1.0] * 8, True),
        ([0.0] * 8, True),
        ([-0.1] * 8, True),
        ([1.0] * 7 + [0.0], False),
        ([1.0] * 4, True),
        ([1.0] * 2, False),
    ],
)
def test_a_group_that_agrees_settles_a_problem(rewards: list[float], is_settled: bool) -> None:
    estimate, config = SuccessEstimate(), CurriculumConfig()
    estimate.observe(rewards, config)
    assert estimate.is_settled(config) == is_settled


@given(st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=8), max_size=10), st.floats(0, 1))
def test_an_estimate_is_a_share(groups: list[list[float]], memory: float) -> None:
    estimate, config = SuccessEstimate(), CurriculumConfig(memory=memory)
    for rewards in groups:
        estimate.observe(rewards, config)
        assert 0 < estimate.share < 1


def test_without_a_config_every_group_is_drawn_once_an_epoch() -> None:
    plain = stream(5, None)
    drawn = [plain.draw() for _ in range(15)]
    assert [sorted(drawn[start : start + 5]) for start in (0, 5, 10)] == [list(range(5))] * 3
    assert drawn[:5] != drawn[5:10] or drawn[5:10] != drawn[10:]
    assert plain.metrics() == {}


def test_settled_problems_are_passed_over_and_revisited() -> None:
    """Of ten problems 0 to 4 are always right, 5 and 6 always wrong, the others one in two."""
    problems = stream(10, CurriculumConfig(revisit_every=4))
    counts: Counter[int] = Counter()
    for _ in range(200):
        index = problems.draw()
        counts[index] += 1
        problems.observe(index, [1.0] * 8 if index < 5 else [0.0] * 8 if index < 7 else [1.0, 0.0] * 4)
    settled, open_ = [counts[i] for i in range(7)], [counts[i] for i in range(7, 10)]
    # Once to find out and then every fourth epoch, against every epoch.
    assert max(settled) <= min(open_) / 3 and min(settled) >= min(open_) // 4
    metrics = problems.metrics()
    assert (metrics["num_seen"], metrics["num_settled"]) == (10.0, 7.0)
    assert metrics["num_passed"] > 0 and 0.4 < metrics["mean_estimate"] < 0.8


def test_a_problem_that_is_no_longer_settled_comes_back() -> None:
    problems = stream(2, CurriculumConfig(revisit_every=3))
    for _ in range(2):
        problems.observe(problems.draw(), [0.0] * 8)
    after_change = []
    for _ in range(40):
        index = problems.draw()
        after_change.append(index)
        problems.observe(index, [0.0] * 8 if index == 0 else [1.0, 0.0] * 4)
    assert after_change.count(1) > 2 * after_change.count(0)


def test_a_stream_of_settled_problems_alone_still_gives_some() -> None:
    problems = stream(3, CurriculumConfig(revisit_every=5))
    drawn = []
    for _ in range(30):
        drawn.append(problems.draw())
        problems.observe(drawn[-1], [1.0] * 8)
    assert len(drawn) == 30 and set(drawn) == {0, 1, 2}


@given(
    number=st.integers(1, 6),
    steps=st.lists(st.integers(0, 4), max_size=40),
    cut=st.integers(0, 40),
    revisit_every=st.integers(1, 4),
)
def test_a_restored_stream_goes_on_as_if_nothing_had_happened(
    number: int, steps: list[int], cut: int, revisit_every: int
) -> None:
    """Each step draws and observes `k` successes of four; at `cut` one stream is made anew from the other's state."""
    config = CurriculumConfig(revisit_every=revisit_every)
    whole, resumed = stream(number, config), stream(number, config)
    for i_step, num_right in enumerate(steps):
        if i_step == cut:
            state = json.loads(json.dumps(resumed.state_dict()))
            resumed = stream(number, config)
            resumed.load_state_dict(state)
        drawn = whole.draw()
        assert resumed.draw() == drawn
        for each in (whole, resumed):
            each.observe(drawn, [1.0] * num_right + [0.0] * (4 - num_right))
    assert whole.state_dict() == resumed.state_dict()
    assert whole.metrics() == resumed.metrics()


def test_another_dataset_is_refused() -> None:
    big, small = stream(5, None), stream(2, None)
    for _ in range(4):
        big.draw()
    with pytest.raises(InvalidRequest, match="'part' has 2 groups, fewer than when the checkpoint was saved"):
        small.load_state_dict(big.state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"skip_below": 0.95}, "skip_below=0.95 and skip_above=0.9: must rise and lie in"),
        ({"memory": 1.5}, "memory=1.5"),
        ({"revisit_every": 0}, "revisit_every=0: must be at least 1"),
        ({"lowest_reward": 1.0}, "lowest_reward=1.0 and highest_reward=1.0: must rise"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        CurriculumConfig(**changes)
