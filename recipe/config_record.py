"""A chz config as JSON and back: flat names as on the command line, such as "optimizer.beta1".

Besides JSON's own types a value may be a class or a function ({"$import": "module:name"}), an enum member
({"$import": ..., "value": ...}), a tuple ({"$tuple": [...]}), or anything else ({"$repr": ...}, which is for reading
only: such a config cannot be rebuilt).
"""

from __future__ import annotations

import enum
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import chz

from mint.errors import InvalidRequest

ConfigT = TypeVar("ConfigT")


def config_to_json(config: Any) -> dict[str, Any]:
    """The config's class and every field, ready for json.dumps."""
    values = {name: _encode(value) for name, value in chz.beta_to_blueprint_values(config).items()}
    return {"config_class": _encode(type(config)), "values": values}


def config_from_json(record: Mapping[str, Any]) -> Any:
    """A config equal to the one `record` was made from. InvalidRequest when a value cannot be rebuilt."""
    config_class = _decode(record["config_class"], "config_class")
    values = {name: _decode(value, name) for name, value in record["values"].items()}
    return chz.Blueprint(config_class).apply(values).make()


def load_config(log_path: str | Path, config_class: type[ConfigT]) -> ConfigT:
    """The config of the run in `log_path`, rebuilt from its config.json."""
    path = Path(log_path).expanduser() / "config.json"
    if not path.is_file():
        raise InvalidRequest(f"{path}: no such file; log_path must be the folder of a run")
    config = config_from_json(json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(config, config_class):
        raise InvalidRequest(f"{path}: holds a {type(config).__name__}, not a {config_class.__name__}")
    return config


def config_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Field -> [old value, new value] for each field that differs between two results of `config_to_json`."""
    names = sorted({*old["values"], *new["values"]})
    pairs = {name: [old["values"].get(name), new["values"].get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _encode(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return {**_encode(type(value)), "value": _encode(value.value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return {"$tuple": [_encode(item) for item in value]}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _encode(item) for key, item in value.items()}
    name = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    if callable(value) and _find(name) is value:
        return {"$import": name}
    return {"$repr": repr(value)}


def _decode(value: Any, field: str) -> Any:
    if isinstance(value, list):
        return [_decode(item, field) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(_decode(item, field) for item in value["$tuple"])
    if "$repr" in value:
        raise InvalidRequest(f"{field}={value['$repr']}: this value was recorded for reading only; give it in code")
    if "$import" in value:
        found = _find(value["$import"])
        if found is None:
            raise InvalidRequest(f"{field}={value['$import']!r}: cannot be imported; install or import its module")
        return found(_decode(value["value"], field)) if "value" in value else found
    return {key: _decode(item, field) for key, item in value.items()}


def _find(name: str) -> Any:
    """The object at "module:qualified.name", or None."""
    module_name, _, qualified_name = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualified_name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found
