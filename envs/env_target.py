"""What `mint env check` and `mint env play` work on: an environment, group or dataset named on the command line.

envs.arithmetic:AdditionDatasetBuilder max_operand=9     a dataset builder, its settings after it
my_task.py:make_env level=3                              a class or function that makes an environment, or a group
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import chz
from chz.blueprint import Blueprint, ConstructionException, ExtraneousBlueprintArg, MissingBlueprintArg

from envs.message_env import MessageEnv, MessageEnvGroupBuilder
from envs.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder
from mint.errors import InvalidRequest
from renderers import Renderer, get_recommended_renderer_name, get_renderer

_GROUP_SIZE = 2


@dataclass(frozen=True)
class Target:
    """Groups to play. dataset: the training set that they come from, where there is one."""

    training_groups: list[EnvGroupBuilder]
    test_groups: list[EnvGroupBuilder]
    dataset: RLDataset | None = None


@dataclass(frozen=True)
class SingleEnvGroupBuilder(EnvGroupBuilder):
    """A group of one environment of tokens, made afresh for each member."""

    make_env: Callable[[], Env]

    async def make_envs(self) -> Sequence[Env]:
        """See EnvGroupBuilder."""
        return [self.make_env() for _ in range(_GROUP_SIZE)]


async def load_target(
    reference: str, settings: Sequence[str] = (), *, model_name: str = "mint-tiny", max_groups: int | None = None
) -> Target:
    """The groups behind MODULE:NAME or FILE.py:NAME, made with `settings` (key=value).

    model_name: whose tokenizer and renderer are used where the settings do not say. max_groups: of the training set,
    and of the test set; None: all. Raises InvalidRequest for a name that is not there, settings that do not fit, and
    things that are no environment; what the user's own code raises comes through as it is.
    """
    made = await _make(_import(reference), settings, model_name, reference)
    if isinstance(made, RLDatasetBuilder):
        training, test = await made()
        return Target(_groups_of(training, max_groups), _groups_of(test, max_groups) if test else [], training)
    if isinstance(made, RLDataset):
        return Target(_groups_of(made, max_groups), [], made)
    if isinstance(made, EnvGroupBuilder):
        return Target([made], [])
    raise InvalidRequest(
        f"{reference} gives {type(made).__name__}: it must be, or make, an RLDatasetBuilder, an RLDataset, an "
        "EnvGroupBuilder, a MessageEnv or an Env"
    )


async def _make(thing: Any, settings: Sequence[str], model_name: str, reference: str) -> Any:
    if isinstance(thing, type) and chz.is_chz(thing):
        return _configured(thing, settings, model_name)
    if not callable(thing) or isinstance(thing, RLDatasetBuilder):
        if settings:
            raise InvalidRequest(f"{reference} is made already and takes no settings, got {' '.join(settings)}")
        return thing
    values = dict(_setting(text) for text in settings)
    _check_arguments(thing, values, reference)
    make = partial(thing, **values)
    made = make()
    if inspect.isawaitable(made):
        made = await made
    if isinstance(made, MessageEnv):
        return MessageEnvGroupBuilder(make, _renderer(model_name), _GROUP_SIZE)
    return SingleEnvGroupBuilder(make) if isinstance(made, Env) else made


def _configured(config: type, settings: Sequence[str], model_name: str) -> Any:
    """The config with the settings; fields that every dataset builder needs and nobody sets get the usual values."""
    usual = {
        "model_name": model_name,
        "renderer_name": get_recommended_renderer_name(model_name),
        "group_size": 4,
        "groups_per_batch": 8,
        "num_batches": 4,
    }
    is_set = {text.partition("=")[0] for text in settings}
    parameters = inspect.signature(config).parameters
    required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    blueprint = Blueprint(config).apply({name: usual[name] for name in (required & usual.keys()) - is_set})
    try:
        return blueprint.make_from_argv(list(settings))
    except (ConstructionException, ExtraneousBlueprintArg, MissingBlueprintArg) as error:
        raise InvalidRequest(str(error)) from error


def _import(reference: str) -> Any:
    module_name, _, name = reference.rpartition(":")
    if not module_name or not name:
        raise InvalidRequest(f"{reference!r}: write MODULE:NAME or FILE.py:NAME, such as envs.arithmetic:AdditionEnv")
    module = _import_file(Path(module_name)) if module_name.endswith(".py") else _import_module(module_name)
    if not hasattr(module, name):
        raise InvalidRequest(f"{module_name} has no {name!r}")
    return getattr(module, name)


def _import_module(name: str) -> Any:
    # As `python -m` does: the user's own modules are where the user is.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise InvalidRequest(f"there is no module {name!r} here; for a file write FILE.py:NAME")
    return importlib.import_module(name)


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise InvalidRequest(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, f"no loader for {path}"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # chz and pickle look a class's module up by name
    spec.loader.exec_module(module)
    return module


def _setting(text: str) -> tuple[str, Any]:
    """key=value, the value as Python writes it, else as text."""
    name, mark, value = text.partition("=")
    if not mark or not name.isidentifier():
        raise InvalidRequest(f"{text!r}: settings are written key=value")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _check_arguments(make: Callable[..., Any], values: dict[str, Any], reference: str) -> None:
    try:
        inspect.signature(make).bind(**values)
    except TypeError as error:
        raise InvalidRequest(f"{reference}{inspect.signature(make)}: {error}; give it as key=value") from error


def _groups_of(dataset: RLDataset, max_groups: int | None) -> list[EnvGroupBuilder]:
    groups: list[EnvGroupBuilder] = []
    for index in range(len(dataset)):
        if max_groups is not None and len(groups) >= max_groups:
            break
        groups += dataset.get_batch(index)
    return groups[:max_groups]


def _renderer(model_name: str) -> Renderer:
    from mint.tokenizer import load_tokenizer

    return get_renderer(get_recommended_renderer_name(model_name), load_tokenizer(model_name))
