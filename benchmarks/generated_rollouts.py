"""Rollout files made up from a seed, by the code that writes those of real runs; see `benchmarks.generated_run`.

Axes: _P group of the batch (problem), _G member of a group, _K turn, _T token, _D training sequence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mint import types
from recipe.rl.batch import ScoredGroup
from recipe.rl.metrics import TrainedSequence
from recipe.rl.rollout_export import export_rollouts, export_trainer_logprobs
from recipe.rl.types import EnvFault, TokensWithLogprobs, Trajectory, TrajectoryGroup, Transition

_TEXT = (
    "the a good way to start is keep your plan small and check it each week write down what you need before you buy "
    "ask a friend for help with hard parts take short breaks drink water sleep early read one page turn off phone make "
    "list of three things do first then rest store tools dry clean them after use cover soil with leaves water roots "
    "slowly not often label boxes photo receipts share costs talk openly listen more walk stretch breathe measure twice"
)
WORDS = _TEXT.split()
# What a model might write to break a page that shows it.
HOSTILE_TEXT = "<script>alert('reply')</script><img src=x onerror=alert(1)>&amp;</pre>"
TOPICS = (
    "sleeping better",
    "growing tomatoes",
    "saving money",
    "learning guitar",
    "packing light",
    "baking bread",
    "meeting people",
    "training a puppy",
    "running further",
    "writing letters",
    "cleaning windows",
    "planning meals",
)
QUESTIONS = tuple(
    f"How can I get started with {topic}{suffix}?"
    for suffix in ("", " at home", " on a budget", " this month")
    for topic in TOPICS
)


@dataclass(frozen=True)
class RunShape:
    """How large the run is."""

    num_steps: int = 200
    num_groups: int = 10
    group_size: int = 5
    reply_tokens: int = 60
    seed: int = 0
    # Whether one reply is HOSTILE_TEXT and some episodes fail.
    has_oddities: bool = True


class WordDecoder:
    """Token i is the i-th word with the space before it; a few stand for other texts."""

    SPECIAL = ("<|im_start|>", "<|im_end|>", "\n", "user", "assistant", HOSTILE_TEXT, "naïve café 😀")

    def __init__(self, prompts: Sequence[str]) -> None:
        self._texts = [*self.SPECIAL, *(f" {word}" for word in WORDS), *prompts]
        self.first_word, self.first_prompt = len(self.SPECIAL), len(self.SPECIAL) + len(WORDS)

    def decode(self, token_ids: list[int]) -> str:
        """Tokens as text."""
        return "".join(self._texts[token] for token in token_ids)

    def prompt_tokens(self, i_prompt: int) -> list[int]:
        """A rendered conversation that asks the question."""
        return [0, 3, 2, self.first_prompt + i_prompt, 1, 2, 0, 4, 2]


def write_rollouts(folder: Path, step: int, done: float, rng: random.Random, shape: RunShape) -> None:
    """The files of one iteration; `done` says how far the run has come, from 0 to 1."""
    decoder = WordDecoder(QUESTIONS)
    groups_P = [
        _group(i_group, (step * shape.num_groups + i_group) % len(QUESTIONS), done, rng, shape, decoder)
        for i_group in range(shape.num_groups)
    ]
    scored_P = []
    for group in groups_P:
        rewards_G = group.get_total_rewards()
        mean = sum(rewards_G) / len(rewards_G)
        # Later tokens of a reply weigh a little more, as with discounted credit.
        advantages_GKT = [
            [
                [(reward - mean) * 0.97 ** (len(turn.ac.tokens) - t) for t in range(len(turn.ac.tokens))]
                for turn in trajectory.transitions
            ]
            for reward, trajectory in zip(rewards_G, group.trajectories_G, strict=True)
        ]
        scored_P.append(ScoredGroup(group, advantages_GKT, [1.0] * len(group)))
    faults = []
    if shape.has_oddities and step % 50 == 25:
        reply = groups_P[0].trajectories_G[0].transitions[0]
        faults = [
            EnvFault(
                "raised",
                f"step() of AdviceEnv (group {shape.num_groups}, member 0), turn 0",
                "ValueError: no such topic",
                "Traceback (most recent call last): ...\nValueError: no such topic",
                "AdviceEnv",
                shape.num_groups,
                0,
                0,
                unrated_turn=(reply.ob, reply.ac),
            )
        ]
    export_rollouts(
        folder / f"iteration_{step:06d}",
        scored_P,
        decoder,
        faults=faults,
        as_json=True,
        num_groups_as_text=0,
    )
    sequences_D = [sequence for scored in scored_P for sequence in scored.sequences()]
    noise = np.random.default_rng(step)
    trained_D = [
        TrainedSequence(
            sequence, (sequence.sampler_logprobs_T + noise.normal(0, 0.03, len(sequence.tokens) - 1)).astype(np.float32)
        )
        for sequence in sequences_D
    ]
    export_trainer_logprobs(folder / f"trained_{step:06d}", trained_D, as_json=True)


def _group(
    i_group: int, i_prompt: int, done: float, rng: random.Random, shape: RunShape, decoder: WordDecoder
) -> TrajectoryGroup:
    trajectories_G, metrics_G = [], []
    for _ in range(shape.group_size):
        num_tokens = max(4, int(rng.gauss(shape.reply_tokens * (0.7 + 0.5 * done), shape.reply_tokens / 6)))
        is_cut = rng.random() < 0.06 * done
        tokens = [decoder.first_word + rng.randrange(len(WORDS)) for _ in range(num_tokens)]
        if shape.has_oddities and rng.random() < 0.01:
            tokens[num_tokens // 2] = 5
        if rng.random() < 0.05:
            tokens[num_tokens // 3 : num_tokens // 3 + 2] = [2, 6]
        tokens += [] if is_cut else [1]
        logprobs = [-abs(rng.gauss(0, 1.2 - done)) for _ in tokens]
        observation = types.ModelInput.from_ints(decoder.prompt_tokens(i_prompt))
        action = TokensWithLogprobs(tokens=tokens, logprobs=logprobs, stop_reason="length" if is_cut else "stop")
        reward = 2.4 * done - 0.4 + rng.gauss(0, 0.8)
        turn = Transition(observation, action, reward, True, {"reward_source_prm": 1.0}, {})
        trajectories_G.append(Trajectory([turn], types.ModelInput.from_ints([])))
        metrics_G.append({"gold": max(0.0, min(1.0, 0.31 + 0.9 * done - 0.8 * done**2 + rng.gauss(0, 0.12)))})
    return TrajectoryGroup(trajectories_G, [0.0] * shape.group_size, metrics_G, ["rlhf"], "PreferenceEnv", i_group)
