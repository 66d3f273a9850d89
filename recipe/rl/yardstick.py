"""An independent yardstick beside the reward: does what is optimised still mean what it should?

Every few iterations the same held-out prompts are answered with the same seeds and rated twice: by the reward that the
policy is trained on, and by something it is not trained on. Where the two part there is an alarm (`yardstick_alarm`);
the checkpoint that the independent score likes best is kept for good, and so are the replies on which the two disagree
most. Nothing of this touches the training: its numbers are the same with and without a yardstick.

The files lie in the run's folder and a resumed run goes on with them: yardstick.jsonl (one line a measurement),
yardstick_best.json, disagreements.jsonl. docs/yardstick.md says how to read them.

Axes: _P prompts, _R replies to one prompt, _N replies to all prompts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chz
import numpy as np

from mint.errors import InvalidRequest, NotFound
from recipe import journal
from recipe.completers import TokensWithLogprobs
from recipe.evaluators import IterationEvaluator
from recipe.reply_sampling import Score, draw_replies, log_ratios, score_replies
from recipe.rl.reply_statistics import distinct_share, rank_correlation, ranks, repeated_share
from recipe.rl.yardstick_alarm import Alarm, compare_with_best
from recipe.rl.yardstick_record import (
    BEST_FILE,
    MEASUREMENTS_FILE,
    BestCheckpoint,
    Measurement,
    best_of,
    read_best,
    read_measurements,
    write_best,
)
from renderers import Message, Renderer, get_text

if TYPE_CHECKING:
    import mint

logger = logging.getLogger(__name__)

__all__ = ["BestCheckpoint", "Measurement", "Yardstick", "YardstickSampling", "read_best", "read_measurements"]

DISAGREEMENTS_FILE = "disagreements.jsonl"


@chz.chz(typecheck=True)
class YardstickSampling:
    """When a yardstick measures, and on how much."""

    # Measure before every such iteration and after the last; 0 means never.
    every: int = 10
    # The first held-out prompts; None: all.
    num_prompts: int | None = 32
    replies_per_prompt: int = 2
    # The alarm's level: the share of false alarms that is put up with at a measurement.
    alpha: float = 0.01
    # Replies of each measurement that are kept for reading.
    num_disagreements: int = 8
    seed: int = 0

    @chz.validate
    def _check(self) -> None:
        lowest = {"every": 0, "num_prompts": 1, "replies_per_prompt": 1, "num_disagreements": 0}
        for name, minimum in lowest.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise InvalidRequest(f"yardstick: {name}={value} must be at least {minimum}")
        if not 0 < self.alpha < 1:
            raise InvalidRequest(f"yardstick: alpha={self.alpha} must be between 0 and 1")


class Yardstick(IterationEvaluator):
    """See the module. Metrics are named yardstick/...; docs/metrics.md defines each."""

    def __init__(
        self,
        sampling: YardstickSampling,
        prompts: Sequence[list[Message]],
        renderer: Renderer,
        reward: Score,
        independent: Score,
        log_path: str | Path,
        *,
        max_tokens: int,
        failed_reply_reward: float | None = None,
        reference_client: mint.SamplingClient | None = None,
        service: mint.ServiceClient | None = None,
        ttl_seconds: int | None = None,
    ) -> None:
        """log_path: the run's folder. max_tokens, failed_reply_reward: as in training; None scores failed replies too.

        reference_client: what KL is measured against. ttl_seconds: life of a checkpoint that was the best and no longer
        is, which `service` sets; without one such checkpoints stay, as the best always does.
        """
        self.prompts = list(prompts[: sampling.num_prompts])
        if not self.prompts:
            raise InvalidRequest("a yardstick needs held-out prompts, and there are none: set yardstick.every=0")
        self.sampling = sampling
        self.renderer = renderer
        self.reward = reward
        self.independent = independent
        self.max_tokens = max_tokens
        self.failed_reply_reward = failed_reply_reward
        self.reference_client = reference_client
        self._service = service
        self._ttl_seconds = ttl_seconds
        self._folder = Path(log_path).expanduser()
        self._measurements: list[Measurement] = []

    def start(self, first_iteration: int) -> None:
        """See IterationEvaluator."""
        for file in (self._folder / MEASUREMENTS_FILE, self._folder / DISAGREEMENTS_FILE):
            if lines := journal.read_lines(file):
                journal.rewrite_lines(file, [line for line in lines if line["iteration"] < first_iteration])
        self._measurements = read_measurements(self._folder)
        write_best(self._folder, self._measurements)

    def is_due(self, iteration: int) -> bool:
        """See IterationEvaluator."""
        return self.sampling.every > 0 and iteration % self.sampling.every == 0

    async def __call__(
        self, training_client: mint.TrainingClient, sampling_client: mint.SamplingClient, iteration: int
    ) -> dict[str, float]:
        """See IterationEvaluator."""
        replies_PR = await draw_replies(
            sampling_client, self.prompts, self.renderer, self.sampling.replies_per_prompt, self.max_tokens,
            self.sampling.seed, "yardstick",
        )  # fmt: skip
        reward_PR = await score_replies(replies_PR, self.prompts, self.renderer, self.reward, self.failed_reply_reward)
        independent_PR = await score_replies(replies_PR, self.prompts, self.renderer, self.independent)
        metrics = text_metrics(replies_PR, self.renderer)
        if self.reference_client is not None:
            log_ratios_PR = await log_ratios(self.reference_client, self.prompts, self.renderer, replies_PR)
            metrics["kl_per_reply"] = float(log_ratios_PR.mean())
        best = best_of(self._measurements)
        metrics |= score_metrics(reward_PR, independent_PR) | self._alarm_metrics(reward_PR, independent_PR, best)
        metrics = {f"yardstick/{name}": value for name, value in metrics.items()}

        paths: dict[str, str] = {}
        if best is None or independent_PR.mean() > best.value:
            name = f"yardstick_{iteration:06d}"
            state, sampler = training_client.save_state(name), training_client.save_weights_for_sampler(name)
            paths = {"state_path": (await state).path, "sampler_path": (await sampler).path}
        for line in self._disagreements(iteration, replies_PR, reward_PR, independent_PR):
            journal.append_line(self._folder / DISAGREEMENTS_FILE, line)
        measurement = Measurement(iteration, metrics, reward_PR, independent_PR, **paths)
        journal.append_line(self._folder / MEASUREMENTS_FILE, measurement.to_json())
        self._measurements.append(measurement)
        if paths:
            write_best(self._folder, self._measurements)
            await self._retire(best)
        return metrics

    def _alarm_metrics(
        self, reward_PR: np.ndarray, independent_PR: np.ndarray, best: Measurement | None
    ) -> dict[str, float]:
        if best is None:
            return {"alarm": 0.0, "alarm_parted": 0.0, "alarm_reversed": 0.0}
        alarm = compare_with_best(
            reward_PR,
            independent_PR,
            best.reward_PR,
            best.independent_PR,
            num_earlier=len(self._measurements),
            alpha=self.sampling.alpha,
        )
        if alarm.is_raised:
            logger.warning("%s", alarm_message(alarm, best, reward_PR, independent_PR))
        return {
            "alarm": float(alarm.is_raised),
            "alarm_parted": float(alarm.is_parted),
            "alarm_reversed": float(alarm.is_reversed),
            "reward_up_p": alarm.reward_up_p,
            "independent_down_p": alarm.independent_down_p,
        }

    def _disagreements(
        self,
        iteration: int,
        replies_PR: Sequence[Sequence[TokensWithLogprobs]],
        reward_PR: np.ndarray,
        independent_PR: np.ndarray,
    ) -> list[dict[str, Any]]:
        """The replies whose places among all replies differ most between the two scores, the widest apart first."""
        num_replies = reward_PR.size
        reward_place_N, independent_place_N = (
            (ranks(scores_PR.ravel()) - 1) / max(num_replies - 1, 1) for scores_PR in (reward_PR, independent_PR)
        )
        apart_N = np.abs(reward_place_N - independent_place_N)
        chosen = np.argsort(-apart_N, kind="stable")[: self.sampling.num_disagreements]
        lines: list[dict[str, Any]] = []
        for i in chosen.tolist():
            i_prompt, i_reply = divmod(i, reward_PR.shape[1])
            reply, _ = self.renderer.parse_response(replies_PR[i_prompt][i_reply].tokens)
            lines.append(
                {
                    "iteration": iteration,
                    "i_prompt": i_prompt,
                    "i_reply": i_reply,
                    "prompt": [dict(message) for message in self.prompts[i_prompt]],
                    "reply": get_text(reply),
                    "reward": float(reward_PR[i_prompt, i_reply]),
                    "independent": float(independent_PR[i_prompt, i_reply]),
                    "reward_place": float(reward_place_N[i]),
                    "independent_place": float(independent_place_N[i]),
                }
            )
        return lines

    async def _retire(self, former: Measurement | None) -> None:
        """Let a checkpoint that is no longer the best live as long as the run's other checkpoints."""
        if former is None or self._service is None or self._ttl_seconds is None:
            return
        rest = self._service.create_rest_client()
        for path in (former.state_path, former.sampler_path):
            assert path is not None, f"the best measurement, of iteration {former.iteration}, has no checkpoint"
            with suppress(NotFound):  # a resumed run retires it again, and its time may be over
                await rest.set_checkpoint_ttl_from_tinker_path_async(path, self._ttl_seconds)


def text_metrics(replies_PR: Sequence[Sequence[TokensWithLogprobs]], renderer: Renderer) -> dict[str, float]:
    """What is seen of the replies without a judge."""
    replies_N = [reply for replies in replies_PR for reply in replies]
    num_tokens = sum(len(reply.tokens) for reply in replies_N)
    words_N = [get_text(renderer.parse_response(reply.tokens)[0]).lower().split() for reply in replies_N]
    return {
        "reply_tokens": num_tokens / len(replies_N),
        "repetition": float(np.mean([repeated_share(words) for words in words_N])),
        "distinct_2": distinct_share(words_N),
        "entropy": -sum(sum(reply.logprobs) for reply in replies_N) / num_tokens,
        "cut_share": float(np.mean([reply.stop_reason == "length" for reply in replies_N])),
    }


def score_metrics(reward_PR: np.ndarray, independent_PR: np.ndarray) -> dict[str, float]:
    """The two scores side by side. InvalidRequest where one of them is not finite."""
    for name, scores_PR in (("reward", reward_PR), ("independent score", independent_PR)):
        if not np.isfinite(scores_PR).all():
            raise InvalidRequest(f"yardstick: the {name} of a held-out reply is not finite; look at what computes it")
    return {
        "reward": float(reward_PR.mean()),
        "independent": float(independent_PR.mean()),
        "rank_correlation": rank_correlation(reward_PR.ravel(), independent_PR.ravel()),
    }


def alarm_message(alarm: Alarm, best: Measurement, reward_PR: np.ndarray, independent_PR: np.ndarray) -> str:
    """What parted, by how much, and what to do."""
    what: list[str] = []
    if alarm.is_parted:
        what.append(
            f"the reward rose from {best.reward_PR.mean():.3f} to {reward_PR.mean():.3f} while the independent score "
            f"fell from {best.value:.3f} to {independent_PR.mean():.3f}"
        )
    if alarm.is_reversed:
        what.append("replies that the reward likes better are now those that the independent score likes less")
    return (
        f"yardstick: since iteration {best.iteration} {' and '.join(what)}. The policy is learning what the reward "
        f"measures wrongly: the checkpoint in {BEST_FILE} is better than the later ones; read {DISAGREEMENTS_FILE}"
    )
