"""Chat, learned from a rating of replies: a rule, a preference model, or a judge that compares replies in pairs.

    python recipes/chat_rl.py                                   a rule, on the built-in model
    python recipes/chat_rl.py reward=PreferenceReward           a preference model, trained first
    python recipes/chat_rl.py reward=PreferenceReward reward.is_judge=True       the same as judge, in tournaments
    python recipes/chat_rl.py reward=ModelJudgeReward           a model that reads two replies, trained first
    python recipes/chat_rl.py reward=EndpointJudgeReward reward.base_url=http://localhost:8000/v1 reward.model=...

Any setting can be changed the same way (--help lists all). The end of a run compares the policy before and after on
held-out prompts: by its reward or its judge, and by the gold score of the task, which no reward has seen.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import chz

import mint
from envs import advice
from envs.chat import TournamentDatasetBuilder
from envs.judges import EndpointJudge, SamplingClientJudge, ScorerJudge, judge_messages
from envs.rlhf import RLHFDatasetBuilder
from envs.tournament import PairJudge
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.command_line import run_recipe
from recipe.policy_comparison import Score, compare_policies, judged_win_rate
from recipe.preference import train as preference_train
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.readouts import SequenceLogprob
from recipe.preference.types import PairExampleConfig, PreferenceDatasetBuilder, PreferencePair, PreferenceSplit
from recipe.rl import train as rl_train
from recipe.rl.types import RLDatasetBuilder
from recipe.supervised import train as sft_train
from recipe.supervised.data import ListSFTDatasetBuilder, SFTExampleConfig
from recipe.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, Renderer, get_renderer

RUBRIC = "Which reply gives better advice?"


@chz.chz(typecheck=True)
class RewardSource(ABC):
    """Where the rating of replies comes from."""

    @abstractmethod
    async def rate(self, prompts: RLHFDatasetBuilder, service: mint.ServiceClient, log_path: Path) -> RLDatasetBuilder:
        """The prompts, with what rates the replies to them."""


@chz.chz(typecheck=True)
class ProxyReward(RewardSource):
    """The rule of envs.rule_reward: enough words, no repeats, the question's own words taken up."""

    async def rate(self, prompts: RLHFDatasetBuilder, service: mint.ServiceClient, log_path: Path) -> RLDatasetBuilder:
        """See RewardSource."""
        return chz.replace(prompts, scorer=None)


@chz.chz(typecheck=True)
class AdvicePairBuilder(PreferenceDatasetBuilder):
    """Pairs of answers; those held out are on topics of their own."""

    num_train: int = 1600
    num_test: int = 128
    examples: PairExampleConfig = chz.field(default_factory=lambda: PairExampleConfig(batch_size=8))

    def __call__(self) -> PreferenceSplit:
        """See PreferenceDatasetBuilder."""
        train = [PreferencePair(**pair) for pair in advice.pairs(self.num_train, seed=0)]
        test = [PreferencePair(**pair) for pair in advice.pairs(self.num_test, seed=1, split="heldout")]
        return ListPreferenceDatasetBuilder(pairs=train, held_out_pairs=test, examples=self.examples)()


@chz.chz(typecheck=True)
class PreferenceReward(RewardSource):
    """A preference model, trained on pairs of the advice task."""

    # Compare replies in tournaments instead of scoring each; keeps the reward within 0 and 1.
    is_judge: bool = False
    pairs: AdvicePairBuilder = chz.field(default_factory=AdvicePairBuilder)
    learning_rate: float = 3e-3
    max_steps: int | None = None

    async def rate(self, prompts: RLHFDatasetBuilder, service: mint.ServiceClient, log_path: Path) -> RLDatasetBuilder:
        """See RewardSource."""
        config = preference_train.Config(
            log_path=str(log_path / "preference"),
            dataset_builder=self.pairs,
            model_name=prompts.model_name,
            renderer_name=prompts.renderer_name,
            readout=SequenceLogprob(is_per_token=True),
            learning_rate=self.learning_rate,
            max_steps=self.max_steps,
        )
        result = await preference_train.main(config, service)
        scorer = result.scorer.build(service)
        return tournament(prompts, ScorerJudge(scorer)) if self.is_judge else chz.replace(prompts, scorer=scorer)


@chz.chz(typecheck=True)
class JudgePageBuilder(SupervisedDatasetBuilder):
    """Pairs of answers as a judge reads them, in random order, and the letter of the better one."""

    rubric: str = RUBRIC
    num_train: int = 3200
    num_test: int = 128
    examples: SFTExampleConfig = chz.field(default_factory=lambda: SFTExampleConfig(batch_size=16))

    def __call__(
        self, renderer: Renderer, context_length: int | None = None
    ) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """See SupervisedDatasetBuilder."""
        rng = random.Random(derive_seed("judge pages", 0))
        data = ListSFTDatasetBuilder(
            conversations=[self._page(pair, rng) for pair in advice.pairs(self.num_train, seed=0)],
            test_conversations=[self._page(pair, rng) for pair in advice.pairs(self.num_test, seed=1, split="heldout")],
            examples=self.examples,
        )
        return data(renderer, context_length)

    def _page(self, pair: advice.AdvicePair, rng: random.Random) -> list[Message]:
        better, worse = pair["chosen"], pair["rejected"]
        letter, first, second = ("A", better, worse) if rng.random() < 0.5 else ("B", worse, better)
        page = judge_messages(self.rubric, pair["prompt"], first, second)
        return [*page, {"role": "assistant", "content": letter}]


@chz.chz(typecheck=True)
class ModelJudgeReward(RewardSource):
    """A model that reads the rubric and two replies and says A or B."""

    # What it is trained on, where it is; the rubric counts in any case.
    pages: JudgePageBuilder = chz.field(default_factory=JudgePageBuilder)
    # mint:// path of a judge's sampler weights; None trains one on pairs of the advice task.
    sampler_path: str | None = None
    learning_rate: float = 2e-3
    max_steps: int | None = None

    async def rate(self, prompts: RLHFDatasetBuilder, service: mint.ServiceClient, log_path: Path) -> RLDatasetBuilder:
        """See RewardSource."""
        sampler_path = self.sampler_path or await self._train(prompts, service, log_path)
        renderer = get_renderer(prompts.renderer_name, get_tokenizer(prompts.model_name))
        client = await service.create_sampling_client_async(model_path=sampler_path)
        return tournament(prompts, SamplingClientJudge(client, renderer, self.pages.rubric))

    async def _train(self, prompts: RLHFDatasetBuilder, service: mint.ServiceClient, log_path: Path) -> str:
        config = sft_train.Config(
            log_path=str(log_path / "judge"),
            dataset_builder=self.pages,
            model_name=prompts.model_name,
            renderer_name=prompts.renderer_name,
            learning_rate=self.learning_rate,
            max_steps=self.max_steps,
            eval_every=0,
        )
        return (await sft_train.main(config, service)).sampler_path


@chz.chz(typecheck=True)
class EndpointJudgeReward(RewardSource):
    """A model behind an OpenAI-compatible endpoint, its key in OPENAI_API_KEY. The settings are EndpointJudge's."""

    base_url: str
    model: str
    rubric: str = RUBRIC
    timeout_seconds: float = 60.0
    max_retries: int = 4
    max_concurrent: int = 32
    max_tokens: int = 8
    asks_logprobs: bool = True

    async def rate(self, prompts: RLHFDatasetBuilder, service: mint.ServiceClient, log_path: Path) -> RLDatasetBuilder:
        """See RewardSource."""
        return tournament(prompts, EndpointJudge(**chz.asdict(self)))


def tournament(prompts: RLHFDatasetBuilder, judge: PairJudge) -> TournamentDatasetBuilder:
    """Win rates are between 0 and 1, so a failed reply need not cost as much as with a scorer."""
    return TournamentDatasetBuilder(prompts=chz.replace(prompts, failed_reply_reward=-0.5), judge=judge)


@chz.chz(typecheck=True)
class Config:
    """A run: what rates the replies, and how the policy learns from it."""

    log_path: str
    reward: RewardSource
    # Its dataset_builder says which prompts, here and held out; its log_path is taken relative to this one's.
    rl: rl_train.Config


PRESET = {
    "log_path": "runs/chat_rl",
    "reward": ProxyReward,
    "rl.log_path": "rl",
    "rl.model_name": "mint-tiny",
    "rl.dataset_builder": advice.AdviceDatasetBuilder,
    "rl.dataset_builder.model_name": "mint-tiny",
    "rl.dataset_builder.renderer_name": "qwen3_disable_thinking",
    "rl.dataset_builder.group_size": 8,
    "rl.dataset_builder.groups_per_batch": 16,
    "rl.dataset_builder.num_epochs": 3,
    "rl.learning_rate": 1e-3,
    "rl.max_tokens": 48,
    "rl.max_steps": 25,
    "rl.eval_every": 0,
}


async def run(config: Config) -> dict[str, float]:
    """Train, and compare the policy before and after."""
    started = time.monotonic()
    root = Path(config.log_path).expanduser()
    service = mint.ServiceClient(base_url=config.rl.base_url)
    prompts = config.rl.dataset_builder
    if not isinstance(prompts, RLHFDatasetBuilder):
        raise InvalidRequest(f"rl.dataset_builder is a {type(prompts).__name__}: it must be an RLHFDatasetBuilder")
    rated = await config.reward.rate(prompts, service, root)
    rl_config = chz.replace(config.rl, log_path=str(root / config.rl.log_path), dataset_builder=rated)
    result = await rl_train.main(rl_config, service)

    first_path = config.rl.load_checkpoint_path
    before = await service.create_sampling_client_async(
        model_path=first_path, base_model=None if first_path else config.rl.model_name
    )
    after = await service.create_sampling_client_async(model_path=result.sampler_path)
    renderer = get_renderer(prompts.renderer_name, get_tokenizer(prompts.model_name))
    _, held_out = prompts.load_prompts()
    sampling: dict[str, Any] = {"max_tokens": config.rl.max_tokens, "seed": derive_seed(config.rl.seed, "comparison")}
    scores: dict[str, Score] = {}
    summary: dict[str, float] = {}
    if isinstance(rated, TournamentDatasetBuilder):
        summary["judge/win_rate"] = await judged_win_rate(before, after, held_out, renderer, rated.judge, **sampling)
        print(f"preferred to before by the judge: {summary['judge/win_rate']:.0%}")
    elif isinstance(rated, RLHFDatasetBuilder):
        scores["reward"] = rated.reward
    if (gold := prompts.gold_score()) is not None:
        scores["gold"] = _as_async(gold)
    for name, score in scores.items():
        compared = await compare_policies(before, after, held_out, renderer, score, replies_per_prompt=2, **sampling)
        summary |= {f"{name}/before": compared.before, f"{name}/after": compared.after}
        print(f"{name} on held-out prompts: {compared.before:.3f} before, {compared.after:.3f} after")
    print(f"{time.monotonic() - started:.0f} seconds")
    return summary


def _as_async(gold: Any) -> Score:
    async def score(conversation: list[Message]) -> float:
        return float(gold(conversation))

    return score


def main(argv: list[str] | None = None) -> None:
    """Run with the preset and the changes on the command line."""
    run_recipe(Config, PRESET, run, argv)


if __name__ == "__main__":
    main()
