"""Reinforcement learning from preferences: one prompt, one reply, one score.

The scorer comes in through RLHFDatasetBuilder and is handed down to each environment. Without one the reward is the
rule-based one of `envs.rule_reward`; the metric `reward_source_prm` says which it was (1.0: a scorer). A gold score,
where the task has one, is measured beside the reward and never is part of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import chz

from envs.group_dataset import GroupDataset, check_group_size
from envs.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from envs.rule_reward import rule_based_reward
from envs.types import ConversationScorer, Env, EnvGroupBuilder, Metrics, RLDatasetBuilder, Trajectory
from mint.errors import InvalidRequest
from renderers import Message, Renderer, get_renderer

GoldScore = Callable[[list[Message]], float]


async def reply_reward(conversation: list[Message], scorer: ConversationScorer | None) -> float:
    """The scorer's rating of the last message, or the rule-based one where there is no scorer."""
    return rule_based_reward(conversation) if scorer is None else await scorer.score(conversation)


class PreferenceEnv(MessageEnv):
    """One turn: the reply's reward is the scorer's, or the rule-based one where there is no scorer."""

    def __init__(self, prompt: list[Message], scorer: ConversationScorer | None = None) -> None:
        self.prompt = prompt
        self.scorer = scorer

    async def initial_observation(self) -> list[Message]:
        """See MessageEnv."""
        return self.prompt

    async def step(self, message: Message) -> MessageStepResult:
        """See MessageEnv."""
        conversation = [*self.prompt, message]
        reward = await reply_reward(conversation, self.scorer)
        return MessageStepResult(
            reward=reward, episode_done=True, next_messages=conversation, metrics=self.unread_reply_metrics()
        )

    def unread_reply_metrics(self) -> Metrics:
        """See MessageEnv."""
        return {"reward_source_prm": float(self.scorer is not None)}


@dataclass(frozen=True)
class RLHFEnvGroupBuilder(EnvGroupBuilder):
    """One prompt, group_size times. The settings are those of RLHFDatasetBuilder."""

    prompt: list[Message]
    renderer: Renderer
    group_size: int
    scorer: ConversationScorer | None = None
    gold: GoldScore | None = None
    failed_reply_reward: float = -3.0

    async def make_envs(self) -> Sequence[Env]:
        """See EnvGroupBuilder."""
        return [
            EnvFromMessageEnv(
                self.renderer, PreferenceEnv(self.prompt, self.scorer), failed_parse_reward=self.failed_reply_reward
            )
            for _ in range(self.group_size)
        ]

    async def compute_group_rewards(
        self, trajectories: list[Trajectory], envs: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Adds no reward; measures the gold score of every reply, those included that no scorer sees."""
        return [(0.0, self._gold_metrics(trajectory)) for trajectory in trajectories]

    def _gold_metrics(self, trajectory: Trajectory) -> Metrics:
        if self.gold is None:
            return {}
        reply, _ = self.renderer.parse_response(trajectory.transitions[-1].ac.tokens)
        return {"gold": float(self.gold([*self.prompt, reply]))}

    def logging_tags(self) -> list[str]:
        """See EnvGroupBuilder."""
        return ["rlhf"]


class RLHFDataset(GroupDataset):
    """A group for each prompt. A prompt that cannot be rendered or is too long is an InvalidRequest naming it."""

    def __init__(
        self,
        prompts: Sequence[list[Message]],
        renderer: Renderer,
        group_size: int,
        groups_per_batch: int,
        *,
        scorer: ConversationScorer | None = None,
        gold: GoldScore | None = None,
        failed_reply_reward: float = -3.0,
        max_prompt_tokens: int | None = None,
        num_epochs: int = 1,
        shuffle_seed: int | None = None,
    ) -> None:
        for i_prompt, prompt in enumerate(prompts):
            _check_prompt(f"prompt {i_prompt}", prompt, renderer, max_prompt_tokens)
        groups = [
            RLHFEnvGroupBuilder(prompt, renderer, group_size, scorer, gold, failed_reply_reward) for prompt in prompts
        ]
        super().__init__(groups, groups_per_batch, num_epochs, shuffle_seed)


def _check_prompt(where: str, prompt: list[Message], renderer: Renderer, max_prompt_tokens: int | None) -> None:
    try:
        num_tokens = renderer.build_generation_prompt(prompt).length
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from error
    role = prompt[-1]["role"]
    if role not in ("user", "tool"):
        raise InvalidRequest(
            f"{where} ends with a message of role {role!r}: it must end with the user (or tool) message to reply to"
        )
    if max_prompt_tokens is not None and num_tokens > max_prompt_tokens:
        raise InvalidRequest(
            f"{where} has {num_tokens} tokens, more than max_prompt_tokens={max_prompt_tokens}: "
            "shorten or drop it, or raise the limit"
        )


@chz.chz(typecheck=True)
class RLHFDatasetBuilder(RLDatasetBuilder):
    """Prompts, and what rates the replies to them. Subclasses say where the prompts come from."""

    # Whose tokenizer to render with.
    model_name: str
    # One of renderers.get_renderer's names.
    renderer_name: str
    # Replies per prompt; advantages compare them with each other.
    group_size: int
    # Prompts per batch.
    groups_per_batch: int
    # Rates the replies; None: the rule-based reward.
    scorer: ConversationScorer | None = None
    # Reward of a reply that is cut off or breaks the format; below what the scorer gives to a poor reply.
    failed_reply_reward: float = -3.0
    # Longest prompt allowed, in tokens; leave room for the reply in the model's context. None: no limit.
    max_prompt_tokens: int | None = None
    # How often to go through the prompts.
    num_epochs: int = 1
    # Of the order of the prompts, which differs from epoch to epoch.
    seed: int = 0

    @chz.validate
    def _check(self) -> None:
        check_group_size(self.group_size)

    @abstractmethod
    def load_prompts(self) -> tuple[list[list[Message]], list[list[Message]]]:
        """(training prompts, held-out prompts): conversations to reply to, each ending with a user or tool message."""

    def gold_score(self) -> GoldScore | None:
        """The score that the task is really about, of a conversation that ends with the reply; reported, never reward.

        None where the task has none.
        """
        return None

    async def reward(self, conversation: list[Message]) -> float:
        """What the environment gives for a complete reply, the conversation's last message."""
        return await reply_reward(conversation, self.scorer)

    async def __call__(self) -> tuple[RLHFDataset, RLHFDataset | None]:
        """See RLDatasetBuilder."""
        from mint.tokenizer import load_tokenizer

        renderer = get_renderer(self.renderer_name, load_tokenizer(self.model_name))
        train_prompts, test_prompts = self.load_prompts()
        train = self._dataset(train_prompts, renderer, self.group_size, self.num_epochs, self.seed)
        if not test_prompts:
            return train, None
        return train, self._dataset(test_prompts, renderer, group_size=1, num_epochs=1, shuffle_seed=None)

    def _dataset(
        self,
        prompts: list[list[Message]],
        renderer: Renderer,
        group_size: int,
        num_epochs: int,
        shuffle_seed: int | None,
    ) -> RLHFDataset:
        return RLHFDataset(
            prompts,
            renderer,
            group_size,
            self.groups_per_batch,
            scorer=self.scorer,
            gold=self.gold_score(),
            failed_reply_reward=self.failed_reply_reward,
            max_prompt_tokens=self.max_prompt_tokens,
            num_epochs=num_epochs,
            shuffle_seed=shuffle_seed,
        )


@chz.chz(typecheck=True)
class ListRLHFDatasetBuilder(RLHFDatasetBuilder):
    """Prompts made in Python."""

    # Conversations to reply to.
    prompts: list[list[Message]]
    # Conversations to evaluate on, one reply each, in order.
    test_prompts: list[list[Message]] = chz.field(default_factory=list)
    # See `gold_score`.
    gold: GoldScore | None = None

    def load_prompts(self) -> tuple[list[list[Message]], list[list[Message]]]:
        """See RLHFDatasetBuilder."""
        return self.prompts, self.test_prompts

    def gold_score(self) -> GoldScore | None:
        """See RLHFDatasetBuilder."""
        return self.gold
