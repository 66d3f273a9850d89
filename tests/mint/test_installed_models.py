from __future__ import annotations

import json
from pathlib import Path

from mint import builtin
from mint.installed_models import installed_models


def add_to_cache(hub_cache: Path, name: str, config: dict[str, object]) -> None:
    """Lay a model out as huggingface_hub keeps it."""
    folder = hub_cache / f"models--{name.replace('/', '--')}"
    (folder / "snapshots" / "0123").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123")
    (folder / "snapshots" / "0123" / "config.json").write_text(json.dumps(config))


def test_qwen3_models_in_the_cache_follow_the_built_in_one(tmp_path: Path) -> None:
    add_to_cache(tmp_path, "Qwen/Qwen3-0.6B", {"model_type": "qwen3", "max_position_embeddings": 40960})
    add_to_cache(tmp_path, "Qwen/Qwen2-0.5B", {"model_type": "qwen2", "max_position_embeddings": 32768})
    assert installed_models(tmp_path) == [(builtin.NAME, 4096), ("Qwen/Qwen3-0.6B", 40960)]


def test_without_a_cache_the_built_in_model_is_left(tmp_path: Path) -> None:
    assert installed_models(tmp_path / "absent") == [(builtin.NAME, 4096)]
