"""RL, DPO and best-of-n against one preference model, at equal sampled tokens.

    python recipes/rlhf_pipeline.py
    python -m benchmarks.equal_tokens runs/rlhf_pipeline runs/equal_tokens

Works on a finished run of the pipeline's preset. RL's own number of sampled tokens is spent twice more with the policy
of stage 1: on the training prompts, where the replies that the preference model likes best and least of every group are
the pairs for DPO; and on the held-out prompts, where it picks the best of n. One JSON line per way and DPO step size:
gold on held-out prompts, how often the reply beats one of stage 1's, the reward, and KL to stage 1. "dpo, given pairs"
trains on the pairs that the preference model was trained on and samples nothing.

Axes: _P prompts, _R replies to one prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import mint
from envs import advice
from mint.seeds import derive_seed
from recipe.best_of_n import best_of_n_kl_bound, draw_best_of_n
from recipe.checkpoint_utils import get_last_checkpoint
from recipe.completers import TokensWithLogprobs
from recipe.policy_comparison import compare_policies
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.dpo import train as dpo_train
from recipe.preference.dpo.config import LossConfig
from recipe.preference.scorer import PreferenceScorer, ScorerSpec
from recipe.preference.types import PairExampleConfig, PreferencePair
from recipe.reply_sampling import draw_replies, score_replies
from recipe.run_log import read_metrics
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, Renderer, get_renderer, get_text

MODEL, RENDERER, MAX_TOKENS, RANK = "mint-tiny", "qwen3_disable_thinking", 48, 32
WAYS = ("rl", "best_of_n", "dpo")
_GROUP_SIZE = 8
# For best-of-n: of a reply that was cut off or breaks the format; below what a whole one gets.
_FAILED_REPLY_SCORE = -5.0


@dataclass(frozen=True)
class Setting:
    """What a finished pipeline leaves for the other ways to start from."""

    service: mint.ServiceClient
    sft_state_path: str
    sft: mint.SamplingClient
    scorer: PreferenceScorer
    renderer: Renderer
    held_out: list[list[Message]]
    rl_tokens: int

    async def compare(self, policy: mint.SamplingClient, seed: int) -> dict[str, float]:
        """The policy beside stage 1's on the held-out prompts."""
        sampling: dict[str, Any] = {"replies_per_prompt": 4, "max_tokens": MAX_TOKENS, "seed": seed}
        arguments = (self.sft, policy, self.held_out, self.renderer)
        by_gold, by_reward = await asyncio.gather(
            compare_policies(*arguments, _gold, **sampling), compare_policies(*arguments, self.scorer.score, **sampling)
        )
        return {
            "gold_before": by_gold.before,
            "gold": by_gold.after,
            "reply_win_rate": by_gold.reply_win_rate,
            "prompt_win_rate": by_gold.win_rate,
            "reward": by_reward.after,
            "kl_per_reply": by_gold.kl_per_reply,
        }


async def _gold(conversation: list[Message]) -> float:
    return advice.gold_of_conversation(conversation)


async def open_pipeline(folder: Path, service: mint.ServiceClient) -> Setting:
    """The policies and the scorer of a finished run of the preset."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    record = get_last_checkpoint(folder / "preference")
    assert record is not None, f"{folder}/preference has no finished run"
    return Setting(
        service,
        summary["sft.state_path"],
        await service.create_sampling_client_async(model_path=summary["sft.sampler_path"]),
        ScorerSpec.from_record(record).build(service),
        get_renderer(RENDERER, get_tokenizer(MODEL)),
        advice.prompts("rl_heldout"),
        round(sum(line.get("env/all/total_ac_tokens", 0.0) for line in read_metrics(folder / "rl"))),
    )


async def sampled_pairs(setting: Setting, seed: int) -> tuple[list[PreferencePair], int]:
    """Best against worst reply of groups drawn from stage 1's policy until RL's tokens are spent, and the tokens."""
    prompts = advice.prompts("rl_train")
    pairs: list[PreferencePair] = []
    num_tokens, epoch = 0, 0
    while num_tokens < setting.rl_tokens:
        replies_PR = await draw_replies(
            setting.sft, prompts, setting.renderer, _GROUP_SIZE, MAX_TOKENS, seed, "pairs", epoch
        )
        scores_PR = await score_replies(replies_PR, prompts, setting.renderer, setting.scorer.score, -np.inf)
        for prompt, replies_R, scores_R in zip(prompts, replies_PR, scores_PR, strict=True):
            if num_tokens >= setting.rl_tokens:
                break
            num_tokens += sum(len(reply.tokens) for reply in replies_R)
            pairs += _best_and_worst(prompt, replies_R, scores_R, setting.renderer)
        epoch += 1
    return pairs, num_tokens


def _best_and_worst(
    prompt: list[Message], replies_R: Sequence[TokensWithLogprobs], scores_R: np.ndarray, renderer: Renderer
) -> list[PreferencePair]:
    """The pair of a group, or none where its replies that can be scored are all the same."""
    rated = [(score, i) for i, score in enumerate(scores_R) if np.isfinite(score)]
    if not rated:
        return []
    best, worst = (renderer.parse_response(replies_R[i].tokens)[0] for _, i in (max(rated), min(rated)))
    return [PreferencePair(prompt, best, worst)] if get_text(best).strip() != get_text(worst).strip() else []


async def run_dpo(
    setting: Setting, folder: Path, pairs: Sequence[PreferencePair], learning_rate: float, seed: int
) -> mint.SamplingClient:
    """DPO from stage 1's policy on the pairs, once over, with the loss of the preset of recipes/dpo.py."""
    config = dpo_train.Config(
        log_path=str(folder),
        dataset_builder=ListPreferenceDatasetBuilder(
            pairs=list(pairs), examples=PairExampleConfig(batch_size=16, held_out_share=0.0)
        ),
        model_name=MODEL,
        renderer_name=RENDERER,
        load_checkpoint_path=setting.sft_state_path,
        lora_rank=RANK,
        learning_rate=learning_rate,
        loss=LossConfig(nll_coef=1.0),
        seed=seed,
    )
    result = await dpo_train.main(config, setting.service)
    return await setting.service.create_sampling_client_async(model_path=result.sampler_path)


async def best_of_n(setting: Setting, seed: int) -> dict[str, Any]:
    """As many replies to every held-out prompt as RL's tokens pay for; the preference model chooses."""
    arguments = (setting.sft, setting.held_out, setting.renderer, setting.scorer.score, _gold)
    settings: dict[str, Any] = {"max_tokens": MAX_TOKENS, "failed_reply_score": _FAILED_REPLY_SCORE}
    single = await draw_best_of_n(*arguments, n=4, seed=derive_seed(seed, "single replies"), **settings)
    n = single.replies_at_cost(setting.rl_tokens, len(setting.held_out))
    best = await draw_best_of_n(*arguments, n=n, seed=seed, **settings)
    return {
        "n": n,
        "sampled_tokens": round(best.tokens_per_reply * n * len(setting.held_out)),
        "gold": best.values_K()[-1],
        "reply_win_rate": best.win_rates_K(single.value_PN)[-1],
        "reward": best.selector_scores_K()[-1],
        "kl_bound_per_reply": best_of_n_kl_bound(n),
    }


async def run(options: argparse.Namespace) -> None:
    """One line per way."""
    setting = await open_pipeline(options.pipeline, mint.ServiceClient())
    summary = json.loads((options.pipeline / "summary.json").read_text(encoding="utf-8"))
    if "rl" in options.ways:
        rl = await setting.service.create_sampling_client_async(model_path=summary["rl.sampler_path"])
        _print("rl", await setting.compare(rl, options.seed), sampled_tokens=setting.rl_tokens)
    if "best_of_n" in options.ways:
        _print("best_of_n", await best_of_n(setting, options.seed))
    if "dpo" in options.ways:
        pairs, num_tokens = await sampled_pairs(setting, options.seed)
        given = [PreferencePair(**pair) for pair in advice.pairs(1600, seed=0)]
        for name, its_pairs, tokens in (("sampled pairs", pairs, num_tokens), ("given pairs", given, 0)):
            for rate in options.learning_rates:
                policy = await run_dpo(setting, options.output / f"{name}, {rate:g}", its_pairs, rate, options.seed)
                row = await setting.compare(policy, options.seed)
                _print(f"dpo, {name}", row, sampled_tokens=tokens, num_pairs=len(its_pairs), learning_rate=rate)


def _print(way: str, row: dict[str, Any], **more: Any) -> None:
    rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
    print(json.dumps({"way": way, **more, **rounded}), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command of the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline", type=Path, help="log_path of a finished run of the pipeline's preset")
    parser.add_argument("output", type=Path, help="where the DPO runs go")
    parser.add_argument("--learning-rates", nargs="*", type=float, default=[1e-3, 2e-3], help="of DPO")
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
