"""How well a preference model orders pairs it was not trained on.

Axes: _N preference pair, _R reply (chosen replies, then rejected ones).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from recipe.preference.calibration import calibrate, calibration_metrics
from recipe.preference.losses import pair_statistics, wilson_interval
from recipe.preference.readouts import Readout
from recipe.preference.rendered_pairs import RenderedPair
from recipe.preference.scorer import PreferenceScorer
from recipe.preference.types import PreferencePair, prompt_key
from renderers import Renderer, get_text

if TYPE_CHECKING:
    import mint

# Training pairs that set the scale of rewards where no pairs are held out.
_NUM_SCALE_PAIRS = 64


@dataclass(frozen=True)
class PairRewards:
    """Raw rewards of N pairs, in the order of the pairs."""

    chosen_N: torch.Tensor
    rejected_N: torch.Tensor

    def at(self, positions: Sequence[int]) -> PairRewards:
        """Those of some of the pairs."""
        return PairRewards(self.chosen_N[list(positions)], self.rejected_N[list(positions)])

    def all_rewards(self) -> list[float]:
        """rewards_R of every reply."""
        return [*self.chosen_N.tolist(), *self.rejected_N.tolist()]

    def metrics(self, prefix: str = "test/") -> dict[str, float]:
        """loss, pair_accuracy with its 95 % interval, and mean_margin."""
        statistics = pair_statistics(self.chosen_N, self.rejected_N)
        low, high = wilson_interval(statistics.accuracy, statistics.num_pairs)
        return {
            f"{prefix}loss": statistics.loss,
            f"{prefix}pair_accuracy": statistics.accuracy,
            f"{prefix}pair_accuracy_low": low,
            f"{prefix}pair_accuracy_high": high,
            f"{prefix}mean_margin": statistics.mean_margin,
            f"{prefix}num_pairs": float(statistics.num_pairs),
        }


@dataclass(frozen=True)
class PairEvaluation:
    """Rewards of held-out pairs through a scorer on a snapshot; of some training pairs where none are held out."""

    readout: Readout
    renderer: Renderer
    train_pairs: Sequence[RenderedPair]
    test_pairs: Sequence[RenderedPair]
    base_client: mint.SamplingClient | None = None

    async def run(self, training_client: mint.TrainingClient) -> PairRewards:
        """The rewards, for the weights as they are when this is called."""
        snapshot = await training_client.save_weights_and_get_sampling_client()
        return await self.rewards_of(
            PreferenceScorer(snapshot, self.renderer, self.readout, base_client=self.base_client)
        )

    async def rewards_of(self, scorer: PreferenceScorer) -> PairRewards:
        """The rewards that a scorer gives."""
        return await reward_pairs(scorer, self.test_pairs or self.train_pairs[:_NUM_SCALE_PAIRS])

    def metrics(self, rewards: PairRewards) -> dict[str, float]:
        """test/...: how well the held-out pairs are ordered, ties left out; nothing where none are held out."""
        decided = [i for i, pair in enumerate(self.test_pairs) if not pair.pair.is_tie]
        if not decided:
            return {}
        length_only = length_only_accuracy([self.test_pairs[i].pair for i in decided])
        return rewards.at(decided).metrics("test/") | {"test/length_only_accuracy": length_only}

    def calibration(self, rewards: PairRewards) -> tuple[float, dict[str, float]]:
        """The scorer's temperature, and test/... of what it does to held-out pairs; 1 and nothing where there are too
        few to fit it on some and try it on others."""
        decided = [i for i, pair in enumerate(self.test_pairs) if not pair.pair.is_tie]
        margins_N = rewards.at(decided).chosen_N - rewards.at(decided).rejected_N
        calibration = calibrate(margins_N, [prompt_key(self.test_pairs[i].pair.prompt) for i in decided])
        if calibration is None:
            return 1.0, {}
        return calibration.temperature, calibration_metrics(margins_N, calibration, "test/")


async def reward_pairs(scorer: PreferenceScorer, pairs: Sequence[RenderedPair]) -> PairRewards:
    """The raw reward of every reply, all computed together."""
    replies_R = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    rewards_R = await asyncio.gather(*(scorer.raw_reward_of_rendered(reply) for reply in replies_R))
    rewards = torch.tensor(rewards_R, dtype=torch.float64)
    return PairRewards(rewards[: len(pairs)], rewards[len(pairs) :])


def length_only_accuracy(pairs: Sequence[PreferencePair]) -> float:
    """The pair accuracy of "the longer reply is better", in characters; replies of equal length count half.

    What a preference model has to beat before it can be said to have learned more than length.
    """
    assert pairs, "the accuracy of no pairs is undefined"
    lengths_N = [(len(get_text(pair.chosen)), len(get_text(pair.rejected))) for pair in pairs]
    return sum((chosen > rejected) + 0.5 * (chosen == rejected) for chosen, rejected in lengths_N) / len(pairs)
