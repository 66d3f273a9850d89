"""Commands that other packages add to `mint`, by the entry points of the group "mint.commands"; see `mint.cli`.

A command's parser is there from the start and empty; its module is imported when the command is used.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mint.errors import MintError

GROUP = "mint.commands"

Commands = Any
"""What `ArgumentParser.add_subparsers` returns; argparse has no public name for it."""


class CommandParser(argparse.ArgumentParser):
    """A parser that the entry points in `candidates` complete when it is first used; without any, a plain one."""

    candidates: Sequence[EntryPoint] = ()

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """As in argparse. MintError where the command's module cannot be loaded."""
        if self.candidates:
            complete(self, self.candidates)
            self.candidates = ()
        return super().parse_known_args(*args, **kwargs)


def add_plugins(commands: Commands, *, with_summaries: bool) -> None:
    """Add every command of the group to the subparsers of `mint`; the names that `mint` has itself stay its own.

    with_summaries: import the modules for the one line that `--help` shows of each.
    """
    own = set(commands.choices)
    found = _found()
    groups: dict[tuple[str, ...], Commands] = {(): commands}
    for words, candidates in sorted(found.items()):
        is_group = any(other[: len(words)] == words for other in found if other != words)
        if words[0] in own or is_group:
            continue
        summary = _summary(candidates) if with_summaries else ""
        parser = _group(groups, words[:-1]).add_parser(words[-1], help=summary)
        parser.candidates = candidates


def complete(parser: argparse.ArgumentParser, candidates: Sequence[EntryPoint]) -> None:
    """Let the command that an entry point names add its arguments to `parser`. MintError where it cannot."""
    entry = candidates[0]
    if len(candidates) > 1:
        places = " and ".join(sorted(candidate.value for candidate in candidates))
        raise MintError(f"`{parser.prog}` is two commands, {places}: uninstall one of the packages")
    try:
        entry.load()(parser)
    except Exception as error:
        owner = f"the package {entry.dist.name}" if entry.dist is not None else "the package it is part of"
        first_line = (str(error).splitlines() or [""])[0]
        raise MintError(
            f"`{parser.prog}` cannot be loaded from {entry.value} ({type(error).__name__}: {first_line}): "
            f"install {owner} again, or remove it"
        ) from error


def _found() -> dict[tuple[str, ...], list[EntryPoint]]:
    """The entry points by the words of their command. A package installed twice counts once."""
    found: dict[tuple[str, ...], dict[str, EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(tuple(entry.name.split(".")), {})[entry.value] = entry
    return {words: list(by_value.values()) for words, by_value in found.items()}


def _summary(candidates: Sequence[EntryPoint]) -> str:
    parser = argparse.ArgumentParser(prog=f"mint {candidates[0].name.replace('.', ' ')}", add_help=False)
    try:
        complete(parser, candidates)
    except MintError as error:
        return _as_help(str(error))
    return _as_help((parser.description or "").partition("\n")[0])


def _as_help(text: str) -> str:
    return text.replace("%", "%%")


def _group(groups: dict[tuple[str, ...], Commands], words: tuple[str, ...]) -> Commands:
    if words not in groups:
        parser = _group(groups, words[:-1]).add_parser(words[-1], help=f"see `mint {' '.join(words)} --help`")
        groups[words] = parser.add_subparsers(
            title="commands", required=True, metavar="COMMAND", parser_class=CommandParser
        )
    return groups[words]
