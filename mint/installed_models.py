"""The base models that need no download. No torch here, so that the `mint` command can list them at once."""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_hub import CacheNotFound, scan_cache_dir, try_to_load_from_cache

from mint import builtin


def installed_models(hub_cache: Path | None = None) -> list[tuple[str, int]]:
    """(name, context length in tokens) of the built-in model and of every Qwen3 model in the hub's cache.

    hub_cache: its folder; None means where huggingface_hub keeps it (HF_HUB_CACHE, HF_HOME).
    """
    models = [(builtin.NAME, _context_length(builtin.model_dir() / "config.json"))]
    try:
        repositories = sorted(scan_cache_dir(hub_cache).repos, key=lambda repository: repository.repo_id)
    except CacheNotFound:
        return models
    for repository in repositories:
        if repository.repo_type == "model":
            path = try_to_load_from_cache(repository.repo_id, "config.json", cache_dir=hub_cache)
            if isinstance(path, str):
                models.append((repository.repo_id, _context_length(Path(path))))
    return [(name, context_length) for name, context_length in models if context_length]


def _context_length(config_file: Path) -> int:
    """0 for a model that is not a Qwen3."""
    config = json.loads(config_file.read_text(encoding="utf-8"))
    return int(config["max_position_embeddings"]) if config.get("model_type") == "qwen3" else 0
