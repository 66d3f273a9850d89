"""Tournaments within a group: worked numbers, bias, and what is asked of the judge."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import ListRLHFDatasetBuilder, RLHFEnvGroupBuilder, TokensWithLogprobs, Trajectory, Transition
from envs.chat import TournamentDatasetBuilder, TournamentGroupBuilder
from envs.tournament import UNREADABLE, PairJudge, Verdict, play_tournament, standings
from mint import builtin, types
from mint.errors import InvalidRequest
from renderers import Message, Renderer, get_text

PROMPT: list[Message] = [{"role": "user", "content": "How do I keep a garden healthy?"}]
END = "<|im_end|>"


def _replies(*texts: str) -> list[Message]:
    return [{"role": "assistant", "content": text} for text in texts]


class LongerIsBetter:
    """Prefers the longer reply with certainty, or with the probability `sure`; adds `bias` to the one read first."""

    def __init__(self, sure: float = 1.0, bias: float = 0.0) -> None:
        self.sure = sure
        self.bias = bias
        self.num_asked = self.most_at_once = self._asking = 0

    async def compare(self, prompt: list[Message], first: Message, second: Message) -> Verdict:
        assert prompt == PROMPT
        self.num_asked += 1
        self._asking += 1
        self.most_at_once = max(self.most_at_once, self._asking)
        await asyncio.sleep(0.001)
        self._asking -= 1
        is_longer = len(get_text(first)) > len(get_text(second))
        return Verdict(min(1.0, (self.sure if is_longer else 1 - self.sure) + self.bias))


def test_standings_by_hand() -> None:
    verdicts = {
        (0, 1): Verdict(0.9),
        (1, 0): Verdict(0.3),
        (0, 2): Verdict(0.6),
        (2, 0): Verdict(0.8),
        (1, 2): Verdict(0.5),
        (2, 1): UNREADABLE,
    }
    result = standings(3, verdicts)
    # p01 = (0.9 + 0.7) / 2 = 0.8, p02 = (0.6 + 0.2) / 2 = 0.4, p12 = (0.5 + 0.5) / 2 = 0.5
    assert result.win_rate_G == pytest.approx([(0.8 + 0.4) / 2, (0.2 + 0.5) / 2, (0.6 + 0.5) / 2])
    assert result.metrics == pytest.approx(
        {
            "judge/comparisons": 6.0,
            "judge/unreadable": 1 / 6,
            "judge/first_is_better": (0.9 + 0.3 + 0.6 + 0.8 + 0.5 + 0.5) / 6,
            # Both orders of the pair 0, 2 prefer what is read first; the other pairs do not contradict themselves.
            "judge/contradictions": 1 / 3,
        }
    )


@given(n=st.integers(2, 6), probabilities=st.lists(st.floats(0, 1), min_size=36, max_size=36))
def test_win_rates_average_one_half_whatever_the_judge_says(n: int, probabilities: list[float]) -> None:
    pairs = {(i, j): Verdict(probabilities[i * n + j]) for i in range(n) for j in range(n) if i != j}
    win_rate_G = standings(n, pairs).win_rate_G
    assert sum(win_rate_G) / n == pytest.approx(0.5)
    # The obvious way: for each opponent, the mean of both orders.
    for i in range(n):
        shares = [(pairs[i, j].first_is_better + 1 - pairs[j, i].first_is_better) / 2 for j in range(n) if j != i]
        assert win_rate_G[i] == pytest.approx(sum(shares) / len(shares))


async def test_all_pairs_are_asked_in_both_orders_and_at_once() -> None:
    judge = LongerIsBetter()
    result = await play_tournament(PROMPT, _replies("one", "three", "seventeen", ""), judge)
    assert result.win_rate_G == pytest.approx([1 / 3, 2 / 3, 1.0, 0.0])
    assert (judge.num_asked, judge.most_at_once) == (12, 12)


async def test_position_bias_cancels() -> None:
    replies = _replies("one", "three", "seventeen")
    fair = await play_tournament(PROMPT, replies, LongerIsBetter(sure=0.6))
    biased = await play_tournament(PROMPT, replies, LongerIsBetter(sure=0.6, bias=0.3))
    assert biased.win_rate_G == pytest.approx(fair.win_rate_G)
    assert fair.metrics["judge/first_is_better"] == pytest.approx(0.5)
    assert biased.metrics["judge/first_is_better"] == pytest.approx(0.8)


async def test_equal_texts_draw_unasked() -> None:
    judge = LongerIsBetter()
    result = await play_tournament(PROMPT, _replies("same", "same", "longer"), judge)
    assert result.win_rate_G == pytest.approx([0.25, 0.25, 1.0])
    assert judge.num_asked == 4
    assert (await play_tournament(PROMPT, _replies("a", "a"), judge)).metrics == {"judge/comparisons": 0.0}


@pytest.mark.parametrize("texts", [[], ["alone"]])
async def test_without_an_opponent_there_is_nothing_to_win(texts: list[str]) -> None:
    assert (await play_tournament(PROMPT, _replies(*texts), LongerIsBetter())).win_rate_G == [0.5] * len(texts)


async def test_a_judge_that_fails_is_an_error_and_the_others_are_called_off() -> None:
    cancelled = []

    class Broken:
        async def compare(self, prompt: list[Message], first: Message, second: Message) -> Verdict:
            if get_text(first) == "a":
                raise InvalidRequest("no such model")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(get_text(first))
                raise
            raise AssertionError

    with pytest.raises(InvalidRequest, match="no such model"):
        await asyncio.wait_for(play_tournament(PROMPT, _replies("a", "b"), Broken()), timeout=10)
    assert cancelled == ["b"]


def test_verdict_is_a_probability() -> None:
    with pytest.raises(InvalidRequest, match="first_is_better=1.5: must be a probability"):
        Verdict(1.5)


def _gold(conversation: list[Message]) -> float:
    return float("compost" in get_text(conversation[-1]))


async def _rewards(
    builder: TournamentGroupBuilder, tokenizer: Any, replies: list[str]
) -> list[tuple[float, dict[str, float]]]:
    """(total reward, group metrics) of each member; a reply without an end is cut off."""
    envs = await builder.make_envs()
    trajectories = []
    for env, reply in zip(envs, replies, strict=True):
        observation, _ = await env.initial_observation()
        tokens = tokenizer.encode(reply, add_special_tokens=False)
        stop: Any = "stop" if reply.endswith(END) else "length"
        result = await env.step(tokens, extra={"stop_reason": stop})
        action = TokensWithLogprobs(tokens, [0.0] * len(tokens), stop)
        turn = Transition(observation, action, result.reward, result.episode_done, result.metrics)
        trajectories.append(Trajectory([turn], types.ModelInput.empty()))
    added = await builder.compute_group_rewards(trajectories, envs)
    return [
        (trajectory.transitions[0].reward + reward, metrics)
        for trajectory, (reward, metrics) in zip(trajectories, added, strict=True)
    ]


async def test_failed_replies_take_no_part(renderer: Renderer, tokenizer: Any) -> None:
    prompts = RLHFEnvGroupBuilder(PROMPT, renderer, group_size=4, gold=_gold, failed_reply_reward=-1.0)
    builder = TournamentGroupBuilder(prompts, LongerIsBetter())
    replies = ["no" + END, "a very long reply that is cut", "add compost" + END, "water" + END]
    rewards, metrics = zip(*await _rewards(builder, tokenizer, replies), strict=True)
    assert rewards == (0.0, -1.0, 1.0, 0.5)
    assert [entry["gold"] for entry in metrics] == [0.0, 0.0, 1.0, 0.0]
    assert all(entry["judge/comparisons"] == 6.0 for entry in metrics)
    assert builder.logging_tags() == ["rlhf", "tournament"]


def _builder(**changes: Any) -> TournamentDatasetBuilder:
    prompts = ListRLHFDatasetBuilder(
        **{
            "prompts": [PROMPT] * 3,
            "test_prompts": [PROMPT],
            "model_name": str(builtin.model_dir()),
            "renderer_name": "qwen3_disable_thinking",
            "group_size": 4,
            "groups_per_batch": 2,
            **changes,
        }
    )
    return TournamentDatasetBuilder(prompts=prompts, judge=LongerIsBetter())


async def test_builder_wraps_prompts_of_any_kind() -> None:
    builder = _builder(failed_reply_reward=-0.5)
    assert builder.renderer_name == "qwen3_disable_thinking"
    train, test = await builder()
    assert test is not None
    assert ([len(train.get_batch(i)) for i in range(len(train))], len(test)) == ([2, 1], 1)
    group = pickle.loads(pickle.dumps(train.get_batch(0)[1]))
    assert (len(await group.make_envs()), group.prompts.failed_reply_reward) == (4, -0.5)
    assert isinstance(group.judge, PairJudge)
    assert len(await test.get_batch(0)[0].make_envs()) == 1


class ConstantScorer:
    async def score(self, conversation: list[Message]) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scorer": ConstantScorer()}, "prompts.scorer is set: the tournament rates the replies"),
        ({"failed_reply_reward": 0.0}, "prompts.failed_reply_reward=0.0: must be below 0"),
    ],
)
def test_what_would_not_be_used_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        _builder(**changes)
