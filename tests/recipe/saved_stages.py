"""What finished stages leave behind, without training: a policy and a scorer, both on the built-in model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mint
from recipe.checkpoint_utils import RunIdentity, open_training_client, save_checkpoint
from recipe.preference.readouts import SequenceLogprob
from recipe.preference.scorer import SCORER_KEY, RewardScale, scorer_state


def policy_stage(
    service: mint.ServiceClient,
    log_path: Path,
    *,
    renderer: str = "qwen3_disable_thinking",
    loop_state: dict[str, Any] | None = None,
) -> str:
    """A stage's folder with its final checkpoint, an untrained adapter; the path of its sampler weights."""

    async def make() -> str:
        identity = RunIdentity("mint-tiny", 4, renderer)
        client = await open_training_client(service, identity, seed=0)
        record = await save_checkpoint(client, "final", log_path, step=0, identity=identity, loop_state=loop_state)
        assert record.sampler_path is not None
        return record.sampler_path

    return asyncio.run(make())


def scorer_stage(service: mint.ServiceClient, log_path: Path) -> str:
    """A finished preference stage: a reply's score is its logprob."""
    state = scorer_state(SequenceLogprob(), RewardScale(), 1.0)
    return policy_stage(service, log_path, loop_state={SCORER_KEY: state})
