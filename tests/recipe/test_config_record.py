"""A config written to config.json and rebuilt from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import chz
import pytest

from mint.errors import InvalidRequest
from recipe.config_record import config_changes, config_from_json, config_to_json, load_config
from recipe.run_log import RunLog


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@chz.chz(typecheck=True)
class Data:
    path: str = "a"


@chz.chz(typecheck=True)
class ListData(Data):
    rows: list[Any]
    color: Color = Color.RED


@chz.chz(typecheck=True)
class Settings:
    data: Data
    parts: list[Data] = chz.field(default_factory=list)
    shape: tuple[int, ...] = (1, 2)
    function: Callable[..., Any] | None = None
    rate: float = 1 / 3
    options: dict[str, float] | None = None


def through_json(config: Any) -> Any:
    return config_from_json(
        json.loads(json.dumps(config_to_json(config))), type(config), trusted_packages=["json", "collections"]
    )


def test_subclasses_enums_tuples_functions_and_lists_come_back_equal() -> None:
    config = Settings(
        data=ListData(rows=[[{"role": "user", "content": "é"}]], color=Color.BLUE),
        parts=[Data(path="b"), ListData(rows=[])],
        shape=(3,),
        function=json.dumps,
        options={"low": 0.8},
    )
    rebuilt = through_json(config)
    assert rebuilt == config
    assert type(rebuilt.data) is ListData
    assert rebuilt.data.color is Color.BLUE
    assert rebuilt.function is json.dumps


def test_defaults_come_back_equal() -> None:
    config = Settings(data=Data())
    assert through_json(config) == config


def test_what_cannot_be_rebuilt_is_written_for_reading_and_refused_by_name() -> None:
    record = config_to_json(Settings(data=Data(), function=lambda: 1))
    assert "lambda" in record["values"]["function"]["$repr"]
    with pytest.raises(InvalidRequest, match="function=.*recorded for reading only"):
        config_from_json(record, Settings)


def test_changes_name_old_and_new_value() -> None:
    old, new = config_to_json(Settings(data=Data())), config_to_json(Settings(data=Data(path="c"), rate=0.5))
    assert config_changes(old, new) == {"data.path": ["a", "c"], "rate": [1 / 3, 0.5]}


def test_a_run_folder_gives_its_config_back(tmp_path: Path) -> None:
    config = Settings(data=Data(path="x"))
    RunLog(tmp_path, config=config).close()
    assert load_config(tmp_path, Settings) == config
    with pytest.raises(InvalidRequest, match="holds a Settings, not a Data"):
        load_config(tmp_path, Data)
    with pytest.raises(InvalidRequest, match="no such file; log_path must be the folder of a run"):
        load_config(tmp_path / "none", Settings)
