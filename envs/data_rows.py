"""Rows of JSONL and Parquet files and of hub datasets: where tasks and training data come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mint.errors import InvalidRequest

SUFFIXES = (".jsonl", ".parquet")


def read_rows(
    path: str | Path, *, split: str = "train", subset: str | None = None, max_rows: int | None = None
) -> list[tuple[int, dict[str, Any]]]:
    """(line, row) of every row of a .jsonl file, a .parquet file, or a hub dataset such as "openai/gsm8k".

    Lines are counted from 1, rows likewise where there are no lines. Columns that are null are left out of a row.
    split, subset: of a hub dataset. Raises InvalidRequest for a missing or empty file, a malformed line (with its
    number), another kind of file, and a hub dataset that cannot be loaded.
    """
    file = Path(path).expanduser()
    is_local = file.exists() or file.suffix in SUFFIXES or str(path).startswith((".", "/", "~"))
    if is_local and not file.is_file():
        problem = "is a folder, not a file" if file.is_dir() else "no such file"
        raise InvalidRequest(f"{path}: {problem}; give a .jsonl or .parquet file, or the name of a hub dataset")
    if not is_local:
        rows = _read_hub(str(path), split, subset, max_rows)
    elif file.suffix == ".jsonl":
        rows = _read_jsonl(file, max_rows)
    elif file.suffix == ".parquet":
        rows = _read_parquet(file, max_rows)
    else:
        raise InvalidRequest(f"{path}: cannot read {file.suffix!r} files; give one of {', '.join(SUFFIXES)}")
    if not rows:
        raise InvalidRequest(f"{path}: the file is empty; it needs at least one row")
    return rows


def _read_jsonl(file: Path, max_rows: int | None) -> list[tuple[int, dict[str, Any]]]:
    rows: list[tuple[int, dict[str, Any]]] = []
    with file.open("rb") as lines:
        for i_line, line in enumerate(lines, start=1):
            if max_rows is not None and len(rows) == max_rows:
                break
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8"))
            except ValueError as error:
                raise InvalidRequest(f"{file}, line {i_line}: not valid JSON ({error}); repair the line") from error
            if not isinstance(row, dict):
                raise InvalidRequest(f"{file}, line {i_line}: must be a JSON object, got {type(row).__name__}")
            rows.append((i_line, _without_nulls(row)))
    return rows


def _read_parquet(file: Path, max_rows: int | None) -> list[tuple[int, dict[str, Any]]]:
    import datasets

    try:
        # Streamed: the rows are read from where they are, with no second copy in the hub's cache.
        table = datasets.load_dataset("parquet", data_files={"train": str(file)}, split="train", streaming=True)
        return _numbered(table if max_rows is None else table.take(max_rows))
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"{file}: cannot be read as Parquet ({_first_line(error)})") from error


def _read_hub(name: str, split: str, subset: str | None, max_rows: int | None) -> list[tuple[int, dict[str, Any]]]:
    import datasets

    try:
        table = datasets.load_dataset(name, subset, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        # datasets and huggingface_hub raise these three and their children: no such name, split or subset, no network.
        raise InvalidRequest(
            f"dataset {name!r} (subset {subset!r}, split {split!r}) could not be loaded from the hub: "
            f"{_first_line(error)} If the hub cannot be reached from here, download the data and give a .jsonl or "
            ".parquet file."
        ) from error
    return _numbered(table if max_rows is None else table.select(range(min(max_rows, len(table)))))


def _numbered(rows: Any) -> list[tuple[int, dict[str, Any]]]:
    return [(i_row, _without_nulls(row)) for i_row, row in enumerate(rows, start=1)]


def _without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is not None}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
