"""`mint env check`: what can be known of an environment before a run, by playing it without a model.

Each group is played with its gold replies, with an empty reply, with replies that are cut off, and with odd ones.
Checked is that the gold replies earn the most and an empty or cut-off reply less; that the same replies earn the same
twice; that nothing raises or takes long; that what comes back has the types of the protocol; that episodes end.

Axes: _G member of a group.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import pickle
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from envs.env_target import Target, load_target
from envs.message_env import EnvFromMessageEnv, reply_tokens
from envs.scripted_play import GroupPlay, Reply, play_episode, play_group, sampled_text
from envs.types import Env, EnvGroupBuilder, Observation
from mint.errors import MintError
from renderers import StopCondition

_SAME = 1e-9
# Replies that a policy may well give some day, as text with control tokens written out.
_ODD_REPLIES = (
    "I do not know.",
    "0 " * 200,
    "\\boxed{\\frac{1}{0}} #### \u0000 \U0001d518\u202e {{{",
    "<think>unfinished",
    '<tool_call>\n{"name": "nothing", "arguments": {]}\n</tool_call>',
)
CHECKS = (
    "builds",
    "repeatable batches",
    "group size",
    "survives pickling",
    "types",
    "gold answer",
    "empty answer",
    "cut-off answer",
    "odd replies",
    "deterministic",
    "time",
)


@dataclass
class Report:
    """What was found: by check, how often it held and what went wrong."""

    num_held: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    failures: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    remarks: dict[str, str] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """True when no check failed."""
        return not any(self.failures.values())

    def note(self, check: str, where: str, problem: str | None) -> None:
        """One check of one group: it held, or what the problem was."""
        assert check in CHECKS, f"unknown check {check!r}"
        if problem is None:
            self.num_held[check] += 1
        else:
            self.failures[check].append(f"{where}: {problem}")

    def table(self) -> str:
        """A line a check: the verdict and what was seen."""
        lines = []
        for check in CHECKS:
            failures, num_held = self.failures.get(check, []), self.num_held.get(check, 0)
            if failures:
                others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
                lines.append(f"{check:20}FAILED  {failures[0]}{others}")
            elif num_held:
                lines.append(f"{check:20}ok      {self.remarks.get(check, f'{num_held} checked')}")
            else:
                lines.append(f"{check:20}-       {self.remarks.get(check, 'not checked')}")
        return "\n".join(lines)


async def check_target(target: Target, max_seconds: float = 10.0, max_turns: int = 50) -> Report:
    """Play every group of the target as the module's docstring says.

    max_seconds: longest time that one call of an environment may take. max_turns: an episode that goes on longer,
    whatever the replies, does not end.
    """
    groups = [(f"group {i}", builder, 2) for i, builder in enumerate(target.training_groups)]
    groups += [(f"test group {i}", builder, 1) for i, builder in enumerate(target.test_groups)]
    report = Report()
    report.note("builds", "dataset", None if groups else "it has no groups")
    report.remarks["builds"] = f"{len(target.training_groups)} training groups, {len(target.test_groups)} test groups"
    if target.dataset is not None:
        await _check_batches(target, report)
    checker = _GroupChecker(report, max_seconds, max_turns)
    for where, builder, min_size in groups:
        await checker.check(where, builder, min_size)
    report.remarks["time"] = f"slowest call {checker.slowest_seconds:.3f} s"
    return report


async def _first_prompts(builder: EnvGroupBuilder) -> list[list[int]]:
    """The prompt of each member before anybody replies; all are asked at once, as one may wait for another to leave."""

    async def no_reply(observation: Observation, stop: StopCondition) -> None:
        return None

    episodes_G = await asyncio.gather(*(play_episode(env, no_reply) for env in await builder.make_envs()))
    return [episode.trajectory.final_ob.to_ints() for episode in episodes_G]


async def _check_batches(target: Target, report: Report) -> None:
    assert target.dataset is not None
    prompts = []
    try:
        for _ in range(2):
            prompts.append([await _first_prompts(builder) for builder in target.dataset.get_batch(0)])
        problem = None if prompts[0] == prompts[1] else "asked for twice, it has other prompts; no run could be resumed"
    except Exception as error:
        problem = _name(error)
    report.note("repeatable batches", "batch 0", problem)


@dataclass
class _GroupChecker:
    report: Report
    max_seconds: float
    max_turns: int
    slowest_seconds: float = 0.0

    async def check(self, where: str, builder: EnvGroupBuilder, min_size: int) -> None:
        made = await self._make(where, builder)
        if made is None:
            return
        envs_G, golds_G = made
        too_small = len(envs_G) < min_size
        self.report.note("group size", where, f"{len(envs_G)} members, needs {min_size}" if too_small else None)
        self.report.note("survives pickling", where, _pickling_problem(builder))
        gold_G = [gold for gold in golds_G if gold is not None]
        gold: GroupPlay | None = None
        if len(gold_G) == len(envs_G):
            gold = await self._play(
                where, builder, [[Reply(action) for action in actions] for actions in gold_G], "gold"
            )
            if gold is not None:
                self._check_gold(where, gold, envs_G)
        else:
            remark = "no gold answer known: define gold_replies() (MessageEnv) or gold_actions() (Env)"
            self.report.remarks.setdefault("gold answer", remark)
        await self._check_lesser(where, builder, envs_G, gold)

    async def _make(
        self, where: str, builder: EnvGroupBuilder
    ) -> tuple[Sequence[Env], list[list[list[int]] | None]] | None:
        """The members and the gold actions of each; None where they could not be made."""
        try:
            envs_G = await builder.make_envs()
        except Exception as error:
            self.report.note("types", where, f"make_envs() raised {_name(error)}")
            return None
        try:
            return envs_G, [env.gold_actions() for env in envs_G]
        except Exception as error:
            self.report.note("gold answer", where, f"asking for it raised {_name(error)}")
            return None

    def _check_gold(self, where: str, gold: GroupPlay, envs_G: Sequence[Env]) -> None:
        for i_member, (env, reward) in enumerate(zip(envs_G, gold.rewards_G, strict=True)):
            problem = None
            if not gold.is_done_G[i_member]:
                num_turns = len(gold.episodes_G[i_member].trajectory.transitions)
                problem = f"the episode goes on after all {num_turns} gold replies"
            elif env.max_reward is not None and abs(reward - env.max_reward) > _SAME:
                problem = f"the gold answer earned {reward:g}, the most is {env.max_reward:g}"
            self.report.note("gold answer", f"{where}, member {i_member}", problem)

    async def _check_lesser(
        self, where: str, builder: EnvGroupBuilder, envs_G: Sequence[Env], gold: GroupPlay | None
    ) -> None:
        """Empty, cut-off and odd replies, each given until the episode ends."""
        empty_G = [_empty_reply(env) for env in envs_G]
        if all(reply is not None for reply in empty_G):
            replies = [[reply] * self.max_turns for reply in empty_G if reply is not None]
            self._check_less(where, "empty answer", await self._play(where, builder, replies, "empty"), gold)
        cut_G = [[Reply(_cut(env), "length")] * self.max_turns for env in envs_G]
        self._check_less(where, "cut-off answer", await self._play(where, builder, cut_G, "cut-off"), gold)
        for text in _ODD_REPLIES:
            odd_G = [[_odd_reply(env, text)] * self.max_turns for env in envs_G]
            play = await self._play(where, builder, odd_G, f"reply {text[:20]!r}")
            if play is not None:
                endless = f"the episode goes on after {self.max_turns} replies {text[:20]!r}"
                self.report.note("odd replies", where, None if all(play.is_done_G) else endless)

    def _check_less(self, where: str, check: str, play: GroupPlay | None, gold: GroupPlay | None) -> None:
        if play is None:
            return
        if gold is None:
            self.report.remarks.setdefault(check, f"earns {play.rewards_G[0]:g}; no gold answer to compare with")
            return
        for i_member, (reward, best) in enumerate(zip(play.rewards_G, gold.rewards_G, strict=True)):
            problem = f"it earned {reward:g}, the gold answer {best:g}" if reward >= best - _SAME else None
            self.report.note(check, f"{where}, member {i_member}", problem)

    async def _play(
        self, where: str, builder: EnvGroupBuilder, replies_G: list[list[Reply]], what: str
    ) -> GroupPlay | None:
        """The group played twice, each call watched; None where it could not be played."""
        plays: list[GroupPlay] = []
        for _ in range(2):
            try:
                play = await play_group(builder, replies_G, max_seconds=self.max_seconds)
            except TimeoutError:
                self.report.note("time", where, f"{what}: a call took longer than {self.max_seconds:g} s")
                return None
            except Exception as error:
                self.report.note("odd replies" if what != "gold" else "gold answer", where, f"{what}: {_name(error)}")
                return None
            self.slowest_seconds = max(self.slowest_seconds, play.slowest_seconds)
            is_slow = play.slowest_seconds > self.max_seconds
            slow = f"{what}: a call took {play.slowest_seconds:.1f} s, more than {self.max_seconds:g} s"
            self.report.note("time", where, slow if is_slow else None)
            for problem in play.type_problems or [None]:
                self.report.note("types", where, problem)
            plays.append(play)
        first, second = plays
        is_same = (first.rewards_G, first.metrics_G) == (second.rewards_G, second.metrics_G)
        differing = f"{what}: earned {_shown(first.rewards_G)} and then {_shown(second.rewards_G)}, or other metrics"
        self.report.note("deterministic", where, None if is_same else differing)
        return first


def _pickling_problem(builder: EnvGroupBuilder) -> str | None:
    try:
        pickle.loads(pickle.dumps(builder))
    except Exception as error:
        return f"{_name(error)}; use functools.partial and module-level names, not a lambda"
    return None


def _empty_reply(env: Env) -> Reply | None:
    """A reply that ends at once; None for an environment of tokens, whose end of reply only it knows."""
    if not isinstance(env, EnvFromMessageEnv):
        return None
    return Reply(reply_tokens(env.renderer, {"role": "assistant", "content": ""}))


def _cut(env: Env) -> list[int]:
    """The gold reply as far as it got before max_tokens; one token where there is none."""
    gold = env.gold_actions()
    return gold[0][:-1] if gold and len(gold[0]) > 1 else [0]


def _odd_reply(env: Env, text: str) -> Reply:
    if not isinstance(env, EnvFromMessageEnv):
        return Reply([ord(character) % 100 for character in text[:20]])
    return sampled_text(text, env.renderer.get_stop_sequences(), env.renderer.tokenizer)


def _shown(rewards_G: Sequence[float]) -> str:
    return ", ".join(f"{reward:g}" if math.isfinite(reward) else str(reward) for reward in rewards_G)


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def run(options: argparse.Namespace) -> int:
    """Check, print the table, and return 0 where all is well, else 1."""
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    try:
        target = await load_target(
            options.target, options.settings, model_name=options.model, max_groups=options.groups
        )
    except MintError:
        raise
    except Exception as error:
        raise MintError(f"{options.target} could not be made: {_name(error)}") from error
    report = await check_target(target, options.max_seconds)
    print(f"{options.target}\n\n{report.table()}")
    return 0 if report.is_sound else 1
