"""What a dataset of environments is, as one SHA-256, and where its reward comes from."""

from __future__ import annotations

from typing import Any

from envs.rlhf import RLHFDataset, RLHFEnvGroupBuilder
from envs.types import RLDataset, RLDatasetBuilder
from recipe.config_record import config_to_json
from recipe.data_digest import digest_of_json
from recipe.stage_manifest import config_sha256


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
