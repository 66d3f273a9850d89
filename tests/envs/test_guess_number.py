"""Guess the number, alone and with two players who wait for each other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from envs import EnvFromMessageEnv, EnvGroupBuilder, TokensWithLogprobs, Trajectory, Transition
from envs.guess_number import (
    Exchange,
    GuessNumberDatasetBuilder,
    GuessNumberEnv,
    GuessRules,
    TwoPlayerGuessGroupBuilder,
    read_answer,
    read_guess,
)
from mint import types
from mint.errors import InvalidRequest
from recipe.completers import MintTokenCompleter
from recipe.rl.datums import sequences_from_trajectory
from recipe.rl.env_faults import EnvFaultConfig
from recipe.rl.rollouts import SeedScope, roll_out_groups
from recipe.rl.types import TrajectoryGroup
from renderers import Message, Renderer

END = "<|im_end|>"


class ScriptedPolicy:
    """Says what `reply` makes of the prompt's text; a reply without an end is cut off."""

    def __init__(self, tokenizer: Any, reply: Callable[[str], str]) -> None:
        self.tokenizer = tokenizer
        self.reply = reply

    async def __call__(
        self, model_input: types.ModelInput, stop: Any, *, seed: int | None = None, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        await asyncio.sleep(0)
        text = self.reply(self.tokenizer.decode(model_input.to_ints()))
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        return TokensWithLogprobs(tokens, [-0.5] * len(tokens), "stop" if text.endswith(END) else "length")


async def _play(builder: EnvGroupBuilder, policy: Any) -> TrajectoryGroup:
    batch = await asyncio.wait_for(
        roll_out_groups([builder], policy, SeedScope(0, "train", 0), EnvFaultConfig(on_fault="stop")), timeout=30
    )
    (group,) = batch.groups_P
    return group


def bisect(text: str) -> str:
    """The guess in the middle of what the answers leave."""
    low, high = 1, 16
    turns = re.findall(r"(\d+)<\|im_end\|>\n<\|im_start\|>user\n(higher|lower)", text, re.IGNORECASE)
    for guess, answer in turns:
        low, high = (int(guess) + 1, high) if answer.lower() == "higher" else (low, int(guess) - 1)
    return f"{(low + high) // 2}{END}"


def honest(text: str) -> str:
    secret = int(re.findall(r"The number is (\d+)", text)[0])
    guess = int(re.findall(r"Guess: (\d+)", text)[-1])
    return ("right" if guess == secret else "higher" if secret > guess else "lower") + END


def both(keeper: Callable[[str], str], guesser: Callable[[str], str] = bisect) -> Callable[[str], str]:
    return lambda text: keeper(text) if "The number is" in text else guesser(text)


@pytest.mark.parametrize("secret", [1, 5, 8, 16])
async def test_bisection_finds_the_number_alone(renderer: Renderer, tokenizer: Any, secret: int) -> None:
    env = GuessNumberEnv(secret, GuessRules())
    adapter = EnvFromMessageEnv(renderer, env)
    prompt, _ = await adapter.initial_observation()
    while True:
        guess = tokenizer.encode(bisect(tokenizer.decode(prompt.to_ints())), add_special_tokens=False)
        result = await adapter.step(guess)
        if result.episode_done:
            break
        prompt = result.next_observation
    expected = {1: 4, 5: 4, 8: 1, 16: 5}[secret]
    assert (result.reward, result.metrics["found"], result.metrics["num_guesses"]) == (1.0, 1.0, expected)


async def test_guesses_run_out_and_unclear_ones_count() -> None:
    env = GuessNumberEnv(3, GuessRules(highest=4, max_guesses=2))
    result = await env.step({"role": "assistant", "content": "1 or 2"})
    assert (result.episode_done, result.next_messages[-1]["content"]) == (False, "Reply with a number only.")
    result = await env.step({"role": "assistant", "content": "4"})
    assert (result.episode_done, result.reward) == (True, 0.0)
    assert env.episode_metrics() == {"found": 0.0, "num_guesses": 2.0, "unclear_guesses": 1.0}


@pytest.mark.parametrize(("text", "guess"), [("7", 7), ("It is 12.", 12), ("1 or 2", None), ("", None)])
def test_guess_is_read(text: str, guess: int | None) -> None:
    assert read_guess(text) == guess


@pytest.mark.parametrize(
    ("text", "answer"), [("Higher.", "higher"), ("right", "right"), ("higher or lower", None), ("brighter", None)]
)
def test_answer_is_read(text: str, answer: str | None) -> None:
    assert read_answer(text) == answer


async def test_two_good_players_win_every_game(renderer: Renderer, tokenizer: Any) -> None:
    builder = TwoPlayerGuessGroupBuilder(5, GuessRules(), renderer, num_games=3)
    group = await _play(builder, ScriptedPolicy(tokenizer, both(honest)))
    # Each role is compared with its own kind, and all of a kind earned the same.
    assert group.get_total_rewards() == [0.0] * 6
    assert [metrics for metrics in group.metrics_G] == [{"guesser/reward": 1.0}, {"keeper/reward": 1.0}] * 3
    assert [len(trajectory.transitions) for trajectory in group.trajectories_G] == [4] * 6
    guesser, keeper = group.trajectories_G[0], group.trajectories_G[1]
    assert guesser.transitions[-1].metrics["guesser/found"] == 1.0
    assert keeper.transitions[-1].metrics["keeper/true_answers"] == 1.0
    assert all(len(sequences_from_trajectory(t, 1.0)) == 1 for t in group.trajectories_G)


async def test_a_keeper_earns_the_share_of_its_true_answers(renderer: Renderer, tokenizer: Any) -> None:
    # The first guess is 8, which 5 is below; "lower" leads to 4, which 5 is above, "higher" to 12.
    builder = TwoPlayerGuessGroupBuilder(5, GuessRules(max_guesses=2), renderer, num_games=2)
    for answer in ("lower", "higher"):
        policy = ScriptedPolicy(tokenizer, both(lambda text, answer=answer: f"{answer}{END}"))
        group = await _play(builder, policy)
        expected = {"lower": 0.5, "higher": 0.0}[answer]
        assert [metrics.get("keeper/reward") for metrics in group.metrics_G] == [None, expected] * 2


async def test_each_role_is_compared_with_its_own_kind(renderer: Renderer) -> None:
    builder = TwoPlayerGuessGroupBuilder(5, GuessRules(), renderer, num_games=2)
    nothing = types.ModelInput.empty()
    trajectories = [
        Trajectory([Transition(nothing, TokensWithLogprobs([], []), reward, True)], nothing)
        for reward in (1.0, 1.0, 0.0, 0.5)
    ]
    added = await builder.compute_group_rewards(trajectories, await builder.make_envs())
    assert [reward for reward, _ in added] == [-0.5, -0.75, -0.5, -0.75]
    assert [metrics for _, metrics in added] == [
        {"guesser/reward": 1.0},
        {"keeper/reward": 1.0},
        {"guesser/reward": 0.0},
        {"keeper/reward": 0.5},
    ]


@pytest.mark.parametrize(
    ("keeper", "guesser"),
    [
        (lambda text: "hig", bisect),  # the keeper is cut off at once
        (honest, lambda text: "8"),  # the guesser is: there is no first guess to answer
        (lambda text: "hig", lambda text: "8"),
        (lambda text: "<tool_call>" + END, bisect),  # broken
    ],
)
async def test_nobody_waits_for_a_player_who_left(
    renderer: Renderer, tokenizer: Any, keeper: Any, guesser: Any
) -> None:
    def polite(text: str) -> str:
        return f"right{END}" if "Guess: nothing" in text else keeper(text)

    builder = TwoPlayerGuessGroupBuilder(5, GuessRules(), renderer, num_games=2)
    group = await _play(builder, ScriptedPolicy(tokenizer, both(polite, guesser)))
    assert len(group) == 4
    assert all(trajectory.transitions[-1].episode_done for trajectory in group.trajectories_G)


async def test_a_player_whose_prompt_cannot_be_written_frees_the_other(renderer: Renderer) -> None:
    envs = await TwoPlayerGuessGroupBuilder(5, GuessRules(), renderer, num_games=1).make_envs()
    guesser, keeper = envs
    assert isinstance(keeper, EnvFromMessageEnv) and isinstance(guesser, EnvFromMessageEnv)
    keeper.max_trajectory_tokens = 1
    await guesser.initial_observation()
    step = asyncio.create_task(guesser.message_env.step({"role": "assistant", "content": "8"}))
    with pytest.raises(InvalidRequest, match="KeeperEnv: the first prompt has"):
        await keeper.initial_observation()
    assert (await asyncio.wait_for(step, timeout=5)).episode_done


async def test_who_has_hung_up_is_gone_for_good() -> None:
    exchange = Exchange()
    exchange.say_to("keeper", "4")
    exchange.hang_up_on("keeper")
    assert [await exchange.hear("keeper") for _ in range(3)] == ["4", None, None]


async def test_players_on_the_engine_share_its_batches(service: Any, renderer: Renderer, tiny_model_dir: Any) -> None:
    client = service.create_sampling_client(base_model=str(tiny_model_dir))
    builder = TwoPlayerGuessGroupBuilder(5, GuessRules(max_guesses=2), renderer, num_games=2)
    groups = [await _play(builder, MintTokenCompleter(client, max_tokens=6)) for _ in range(2)]
    turns = [[t.ac.tokens for tr in group.trajectories_G for t in tr.transitions] for group in groups]
    assert turns[0] == turns[1]


async def test_builder_makes_groups_of_one_kind_or_of_two() -> None:
    from mint import builtin

    settings: dict[str, Any] = {
        "model_name": str(builtin.model_dir()),
        "renderer_name": "qwen3_disable_thinking",
        "group_size": 2,
        "groups_per_batch": 3,
        "num_batches": 2,
    }
    for num_players, names in ((1, ["GuessNumberEnv"] * 2), (2, ["GuesserEnv", "KeeperEnv"] * 2)):
        train, test = await GuessNumberDatasetBuilder(**settings, num_players=num_players)()
        assert (len(train), test) == (2, None)
        envs = await train.get_batch(1)[2].make_envs()
        assert [type(env.message_env).__name__ for env in envs if isinstance(env, EnvFromMessageEnv)] == names
    with pytest.raises(InvalidRequest, match="highest=1, max_guesses=5: must be at least 2 and at least 1"):
        GuessNumberDatasetBuilder(**settings, highest=1)


async def test_gold_reply_earns_the_most() -> None:
    env = GuessNumberEnv(9, GuessRules())
    (reply,) = env.gold_replies()
    assert (await env.step(reply)).reward == env.max_reward
    empty: Message = {"role": "assistant", "content": ""}
    assert (await GuessNumberEnv(9, GuessRules()).step(empty)).reward == 0.0
