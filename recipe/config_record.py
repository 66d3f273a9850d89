"""A chz config as JSON and back: flat names as on the command line, such as "optimizer.beta1".

Besides JSON's own types a value may be a class or a function ({"$import": "module:name"}), an enum member
({"$import": ..., "value": ...}), a tuple ({"$tuple": [...]}), or anything else ({"$repr": ...}, which is for reading
only: such a config cannot be rebuilt).

A config.json may come from somebody else, and a config calls the classes in it. So what is read back is restricted to
chz classes and enums of this project, of the package of the config asked for, and of packages that the caller names.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import chz

from mint.errors import InvalidRequest

ConfigT = TypeVar("ConfigT")
_OUR_PACKAGES = frozenset({"mint", "renderers", "envs", "recipe", "recipes"})


def config_to_json(config: Any) -> dict[str, Any]:
    """The config's class and every field, ready for json.dumps."""
    values = {name: _encode(value) for name, value in chz.beta_to_blueprint_values(config).items()}
    return {"config_class": _encode(type(config)), "values": values}


def config_from_json(
    record: Mapping[str, Any], config_class: type[ConfigT], *, trusted_packages: Collection[str] = ()
) -> ConfigT:
    """A config equal to the one `record` was made from, which is a `config_class`.

    trusted_packages: names such as "my_tasks" of packages whose classes and functions the record may name, besides the
    chz classes and enums of this project and of the package of `config_class`. Name none that you would not run.
    InvalidRequest when a value cannot be rebuilt.
    """
    decoder = _Decoder(_OUR_PACKAGES | {_package_of(config_class.__module__)}, frozenset(trusted_packages))
    try:
        recorded_class, recorded_values = record["config_class"], dict(record["values"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"not the record of a config ({error!r}); it needs config_class and values") from error
    found = decoder.decode(recorded_class, "config_class")
    if not (inspect.isclass(found) and chz.is_chz(found)):
        raise InvalidRequest(f"config_class={recorded_class!r}: must name a chz class")
    if not issubclass(found, config_class):
        raise InvalidRequest(f"holds a {found.__name__}, not a {config_class.__name__}")
    values = {name: decoder.decode(value, name) for name, value in recorded_values.items()}
    return chz.Blueprint(found).apply(values).make()


def load_config(
    log_path: str | Path, config_class: type[ConfigT], *, trusted_packages: Collection[str] = ()
) -> ConfigT:
    """The config of the run in `log_path`, rebuilt from its config.json; trusted_packages as in `config_from_json`."""
    path = Path(log_path).expanduser() / "config.json"
    if not path.is_file():
        raise InvalidRequest(f"{path}: no such file; log_path must be the folder of a run")
    try:
        return config_from_json(json.loads(path.read_bytes()), config_class, trusted_packages=trusted_packages)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path}: not a config in JSON ({error})") from error


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
    name = _name_of(value)
    if callable(value) and _find(name) is value:
        return {"$import": name}
    return {"$repr": repr(value)}


class _Decoder:
    def __init__(self, config_packages: frozenset[str], trusted_packages: frozenset[str]) -> None:
        self._config_packages = config_packages
        self._trusted_packages = trusted_packages

    def decode(self, value: Any, field: str) -> Any:
        if isinstance(value, list):
            return [self.decode(item, field) for item in value]
        if not isinstance(value, dict):
            return value
        if "$tuple" in value:
            return tuple(self.decode(item, field) for item in value["$tuple"])
        if "$repr" in value:
            raise InvalidRequest(f"{field}={value['$repr']}: this value was recorded for reading only; give it in code")
        if "$import" in value:
            found = self._imported(str(value["$import"]), field)
            if "value" not in value:
                return found
            if not _is_enum(found):
                raise InvalidRequest(f"{field}={value['$import']!r}: has a value, but is no enum")
            return found(self.decode(value["value"], field))
        return {key: self.decode(item, field) for key, item in value.items()}

    def _imported(self, name: str, field: str) -> Any:
        """The class or function of that name, if it may be used. Its module is not imported unless it may."""
        package = _package_of(name)
        is_trusted = package in self._trusted_packages
        if not is_trusted and package not in self._config_packages:
            raise InvalidRequest(
                f"{field}={name!r}: is in the package {package!r}, which this file may not name; if you trust the "
                f"file, pass trusted_packages=[{package!r}]"
            )
        found = _find(name)
        if found is None:
            raise InvalidRequest(f"{field}={name!r}: cannot be imported; install or import its module")
        # What a module merely imports (recipe.journal:os) is not its own, and a config would call any function.
        if name != _name_of(found) or not (is_trusted or _is_enum(found) or chz.is_chz(found)):
            raise InvalidRequest(
                f"{field}={name!r}: is not a config class or enum; functions and other classes are read back only from "
                f"trusted_packages=[{package!r}]"
            )
        return found


def _is_enum(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, enum.Enum)


def _package_of(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def _name_of(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"


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
