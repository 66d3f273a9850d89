"""What a stage of reinforcement learning was made from: its dataset as one SHA-256, and where its reward comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envs.rlhf import RLHFDataset, RLHFEnvGroupBuilder
from envs.types import RLDataset, RLDatasetBuilder
from recipe.config_record import config_to_json
from recipe.data_digest import digest_of_json
from recipe.stage_manifest import StageManifest, config_sha256, open_manifest
from recipe.tokenizer_utils import get_tokenizer
from renderers import get_renderer

if TYPE_CHECKING:
    import mint
    from recipe.checkpoint_utils import CheckpointRecord, RunIdentity
    from recipe.rl.config import Config


async def open_rl_manifest(
    config: Config,
    identity: RunIdentity,
    train: RLDataset,
    test: RLDataset | None,
    service: mint.ServiceClient,
    record: CheckpointRecord | None,
) -> StageManifest:
    """See `open_manifest`."""
    name = identity.renderer_name
    digest, what = rl_data_sha256(config.dataset_builder, train, test)
    return await open_manifest(
        "rl",
        config,
        identity,
        get_renderer(name, get_tokenizer(identity.base_model)) if name else None,
        digest,
        service,
        record=record,
        reward_paths=reward_paths(config.dataset_builder),
        data_is_hashed_by=what,
    )


def rl_data_sha256(builder: RLDatasetBuilder, train: RLDataset, test: RLDataset | None) -> tuple[str, str]:
    """(SHA-256, what was hashed): the "prompts" where the environments are one prompt each, else the "settings" of the
    builder, which do not show that a file it reads has changed."""
    if isinstance(train, RLHFDataset):
        return digest_of_json(_prompts(train), _prompts(test)), "prompts"
    return config_sha256(config_to_json(builder)), "settings"


def reward_paths(builder: RLDatasetBuilder) -> list[str]:
    """The checkpoints of the preference model that gives the reward; [] where none does, or it does not say."""
    return list(getattr(getattr(builder, "scorer", None), "checkpoint_paths", []))


def _prompts(dataset: RLDataset | None) -> list[Any]:
    groups = dataset.groups if isinstance(dataset, RLHFDataset) else []
    return [group.prompt for group in groups if isinstance(group, RLHFEnvGroupBuilder)]
