"""From `key=value` arguments to a running stage: what every recipe's entry point does."""

from __future__ import annotations

import asyncio
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
    line, 1 for anything later, 130 for Ctrl-C.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        config = Blueprint(config_class).apply(dict(preset)).make_from_argv(arguments)
    except EntrypointHelpException as help_text:
        print(help_text)
        return
    except (*_COMMAND_LINE_ERRORS, MintError) as error:
        _leave(error, status=2)
    try:
        asyncio.run(_awaited(main(config)))
    except MintError as error:
        _leave(error, status=1)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command again goes on from the last checkpoint", file=sys.stderr)
        raise SystemExit(130) from None


async def _awaited(work: Awaitable[object]) -> None:
    await work


def _leave(error: Exception, status: int) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(status) from error
