"""The yardstick of a pipeline: what stage 3 is measured with while it trains, and which checkpoint is its result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import chz

from envs.rlhf import RLHFDatasetBuilder
from mint.errors import InvalidRequest
from recipe.independent_scores import GoldRule, IndependentScore, ScoredPolicy, SecondPreferenceModel
from recipe.preference import train as preference_train
from recipe.preference.disjoint_half import DisjointHalfBuilder
from recipe.reply_sampling import Score
from recipe.rl import train as rl_train
from recipe.rl.yardstick import Yardstick, YardstickSampling, read_best, read_measurements
from recipe.tokenizer_utils import get_tokenizer
from renderers import get_renderer

if TYPE_CHECKING:
    import mint

SECOND_MODEL_FOLDER = "yardstick_preference"


@chz.chz(typecheck=True)
class OtherHalf(IndependentScore):
    """A preference model that the pipeline trains on half of the pairs; the reward's is then trained on the other half.

    The halves share no prompt.
    """

    async def open(self, policy: ScoredPolicy, service: mint.ServiceClient) -> Score:
        """See IndependentScore; the pipeline replaces this by a SecondPreferenceModel."""
        raise InvalidRequest("OtherHalf is trained by recipe.pipeline; elsewhere name a SecondPreferenceModel")


@chz.chz(typecheck=True)
class YardstickConfig(YardstickSampling):
    """When stage 3 is measured, with what, and what follows from it."""

    # GoldRule, SecondPreferenceModel, OtherHalf, ModelJudge or EndpointModelJudge. None: the task's gold rule, and no
    # yardstick where it has none.
    independent: IndependentScore | None = None
    # Which checkpoint is the result of stage 3: its last one, or the best by the yardstick.
    result: Literal["last", "best"] = "last"

    @chz.validate
    def _check_result(self) -> None:
        if self.result == "best" and self.every == 0:
            raise InvalidRequest("yardstick.result='best' with yardstick.every=0: nothing is measured; set every")

    def reward_config(self, config: preference_train.Config) -> preference_train.Config:
        """The settings of stage 2, left with half of the pairs where the yardstick needs the other."""
        return _half(config, 0) if self.every and isinstance(self.independent, OtherHalf) else config

    async def train_second_model(
        self, config: preference_train.Config, root: Path, service: mint.ServiceClient
    ) -> IndependentScore | None:
        """What measures: `independent`, once the model on the other half is trained. config: stage 2's, all pairs."""
        if not self.every or not isinstance(self.independent, OtherHalf):
            return self.independent
        log_path = str(root / SECOND_MODEL_FOLDER)
        await preference_train.main(chz.replace(_half(config, 1), log_path=log_path), service)
        return SecondPreferenceModel(log_path=log_path)

    async def open(
        self,
        independent: IndependentScore | None,
        rl_config: rl_train.Config,
        service: mint.ServiceClient,
        sft_path: str,
    ) -> list[Yardstick]:
        """The yardstick of a stage with these settings; [] where there is none. sft_path: the policy it starts from."""
        builder = rl_config.dataset_builder
        assert isinstance(builder, RLHFDatasetBuilder), f"stage 3 has a {type(builder).__name__}"
        if independent is None and builder.gold_score() is not None:
            independent = GoldRule()
        _, prompts = builder.load_prompts()
        if not self.every or independent is None or not prompts:
            return []
        renderer = get_renderer(builder.renderer_name, get_tokenizer(builder.model_name))
        start_client = await service.create_sampling_client_async(model_path=sft_path)
        policy = ScoredPolicy(builder, renderer, start_client, rl_config.max_tokens)
        yardstick = Yardstick(
            self,
            prompts,
            renderer,
            builder.reward,
            await independent.open(policy, service),
            rl_config.log_path,
            max_tokens=rl_config.max_tokens,
            failed_reply_reward=builder.failed_reply_reward,
            reference_client=start_client,
            service=service,
            ttl_seconds=rl_config.ttl_seconds,
        )
        return [yardstick]

    def summary(self, rl_path: Path, last_state_path: str, last_sampler_path: str) -> dict[str, Any]:
        """rl.* of the pipeline's summary: the result's checkpoint and, where there was a yardstick, what it found."""
        found: dict[str, Any] = {"rl.state_path": last_state_path, "rl.sampler_path": last_sampler_path}
        best, measurements = read_best(rl_path), read_measurements(rl_path)
        if best is None:
            if self.result == "best":
                raise InvalidRequest(
                    "yardstick.result='best', but stage 3 had no yardstick: the task has no gold rule or no held-out "
                    "prompts; name yardstick.independent, or leave result out"
                )
            return found
        if self.result == "best":
            found = {"rl.state_path": best.state_path, "rl.sampler_path": best.sampler_path}
        found |= {
            "rl.best_iteration": best.iteration,
            "rl.best_state_path": best.state_path,
            "rl.best_sampler_path": best.sampler_path,
            "rl.yardstick_alarms": sum(measured.metrics["yardstick/alarm"] for measured in measurements),
        }
        return found


def _half(config: preference_train.Config, half: Literal[0, 1]) -> preference_train.Config:
    source = config.dataset_builder
    builder = DisjointHalfBuilder(source=source, half=half, examples=source.examples)
    return chz.replace(config, dataset_builder=builder)
