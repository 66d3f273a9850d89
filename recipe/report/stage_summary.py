"""What a stage's folder says about it, its rollouts aside: config, metrics as columns, checkpoints, cards and gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe.report.tolerant_reading import FolderReader, number

# What makes a folder one of a stage.
_STAGE_FILES = ("metrics.jsonl", "config.json", "checkpoints.jsonl")
# Where a config's class lives -> what its stage is; the first that fits.
_KIND_OF_MODULE = (
    ("recipe.supervised", "sft"),
    ("recipe.preference.dpo", "dpo"),
    ("recipe.preference", "preference"),
    ("recipe.rl", "rl"),
)
# A metric that only this kind of stage has, for folders without a config.
_KIND_OF_METRIC = (
    ("train_mean_nll", "sft"),
    ("pair_accuracy", "preference"),
    ("env/all/reward/total", "rl"),
    ("batch/is_skipped", "rl"),
)
_ORDER = ("sft", "preference", "dpo", "rl")
_MAX_SETTING_CHARACTERS = 400
_MAX_DISAGREEMENTS = 400


def stage_folders(root: Path) -> list[Path]:
    """The folders of a run's stages, in their order: `root` itself where it is one, and those directly below."""
    below = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = [path for path in (root, *below) if any((path / name).is_file() for name in _STAGE_FILES)]
    return sorted(found, key=lambda path: (path != root, *_place(path.name)))


def read_stage(reader: FolderReader, folder: Path) -> dict[str, Any]:
    """Everything the page shows of a stage but its rollouts."""
    config = reader.json_file(folder / "config.json")
    config = config if isinstance(config, dict) else {}
    config_class = _text_of(config.get("config_class"))
    metrics = _metric_columns(reader, folder / "metrics.jsonl")
    checkpoints = [record for _, record in reader.lines(folder / "checkpoints.jsonl")]
    return {
        "name": folder.name,
        "folder": "" if folder == reader.root else reader.name_of(folder),
        "kind": _kind(config_class, metrics["columns"]),
        "config_class": config_class,
        "settings": _settings(config.get("values")),
        "config_changes": [record for _, record in reader.lines(folder / "config_changes.jsonl")],
        "metrics": metrics,
        "seconds": _seconds(metrics["columns"]),
        "checkpoints": [_checkpoint(record) for record in checkpoints],
        "num_unusable_checkpoints": sum(1 for _ in reader.lines(folder / "checkpoints_unusable.jsonl")),
        "manifest": reader.json_file(folder / "stage_manifest.json"),
        "gates": _gates(reader.json_file(folder / "gates.json")) if folder != reader.root else [],
        "report_card": reader.json_file(folder / "report_card.json"),
        "yardstick_best": reader.json_file(folder / "yardstick_best.json"),
        "disagreements": [record for _, record in reader.lines(folder / "disagreements.jsonl")][-_MAX_DISAGREEMENTS:],
    }


def read_pipeline(reader: FolderReader) -> dict[str, Any]:
    """What lies in the run's folder itself: summary and gates. The wall clock of the last call is left out, so that
    a finished run that is started again has the same report."""
    summary = reader.json_file(reader.root / "summary.json")
    if isinstance(summary, dict):
        summary = {key: value for key, value in summary.items() if key != "seconds"}
    gates = reader.json_file(reader.root / "gates.json")
    return {"summary": summary if isinstance(summary, dict) else None, "gates": _gates(gates)}


def _gates(gates: Any) -> list[dict[str, Any]]:
    found = gates.get("gates", []) if isinstance(gates, dict) else gates
    return [gate for gate in found if isinstance(gate, dict)] if isinstance(found, list) else []


def _place(name: str) -> tuple[int, str]:
    kinds = [i for i, kind in enumerate(_ORDER) if name.lower().startswith(kind)]
    return (kinds[0] if kinds else len(_ORDER), name)


def _text_of(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("$import", "")
    return value if isinstance(value, str) else ""


def _kind(config_class: str, columns: dict[str, Any]) -> str:
    for module, kind in _KIND_OF_MODULE:
        if config_class.startswith((module + ".", module + ":")):
            return kind
    return next((kind for metric, kind in _KIND_OF_METRIC if metric in columns), "stage")


def _settings(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        return {}
    return {str(name): _shown(value)[:_MAX_SETTING_CHARACTERS] for name, value in values.items()}


def _shown(value: Any) -> str:
    """As it would stand on a command line, where it can."""
    if isinstance(value, dict) and "value" in value:
        return str(value["value"])
    if isinstance(value, dict) and len(value) == 1:
        return str(next(iter(value.values())))
    return value if isinstance(value, str) else str(value)


def _metric_columns(reader: FolderReader, path: Path) -> dict[str, Any]:
    """{"steps": one per line, "columns": {key: one number or null per line}}; what is no number is left out."""
    steps: list[float | int] = []
    columns: dict[str, list[float | int | None]] = {}
    for line_number, record in reader.lines(path):
        step = number(record.get("step"))
        if step is None:
            reader.report(path, line_number, "has no step, left out")
            continue
        for key, value in record.items():
            if key != "step" and (value := number(value)) is not None:
                if key not in columns:
                    columns[key] = [None] * len(steps)
                columns[key].append(value)
        steps.append(step)
        for column in columns.values():
            column.extend([None] * (len(steps) - len(column)))
    return {"steps": steps, "columns": columns}


def _seconds(columns: dict[str, list[float | int | None]]) -> float | None:
    times = [value for key in ("time/step", "time/evaluation") for value in columns.get(key, []) if value is not None]
    return round(sum(times), 1) if times else None


def _checkpoint(record: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "step", "state_path", "sampler_path", "base_model", "renderer", "lora_rank")
    return {name: record.get(name) for name in names if record.get(name) is not None}
