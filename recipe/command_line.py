"""From `key=value` arguments to a running stage: what every recipe's entry point does."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from chz.blueprint import (
    Blueprint,
    ConstructionException,
    EntrypointHelpException,
    ExtraneousBlueprintArg,
    InvalidBlueprintArg,
    MissingBlueprintArg,
)

from mint.errors import MintError
from recipe.interruption import run_until_interrupted

ConfigT = TypeVar("ConfigT")
_COMMAND_LINE_ERRORS = (ConstructionException, ExtraneousBlueprintArg, InvalidBlueprintArg, MissingBlueprintArg)


def run_recipe(
    config_class: type[ConfigT],
    preset: Mapping[str, Any],
    main: Callable[[ConfigT], Awaitable[object]],
    argv: Sequence[str] | None = None,
) -> None:
    """Run `main` with the preset as changed by the command line (`argv`; None: sys.argv).

    --help lists every setting. What a user can cause ends in one line on stderr and an exit status: 2 for the command
    line, 1 for anything later, 130 for Ctrl-C, 143 for SIGTERM.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    config = parse_config(config_class, preset, argv)
    try:
        run_until_interrupted(main(config))
    except MintError as error:
        _leave(error, status=1)


def parse_config(config_class: type[ConfigT], preset: Mapping[str, Any], argv: Sequence[str] | None = None) -> ConfigT:
    """The preset as changed by the command line (`argv`; None: sys.argv).

    --help prints every setting and leaves with exit status 0; what does not fit is one line on stderr and status 2.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return Blueprint(config_class).apply(dict(preset)).make_from_argv(arguments)
    except EntrypointHelpException as help_text:
        print(help_text)
        raise SystemExit(0) from None
    except (*_COMMAND_LINE_ERRORS, MintError) as error:
        _leave(error, status=2)


def _leave(error: Exception, status: int) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(status) from error
