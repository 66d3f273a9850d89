"""The `mint` command: models, runs and checkpoints on this machine, and whatever commands other packages add.

    mint models
    mint runs
    mint checkpoints list [RUN]
    mint checkpoints show PATH
    mint checkpoints delete PATH

Exit codes: 0 done, 1 the answer is an error (stated in one line on stderr), 2 the command line is wrong, 130 Ctrl-C. No
torch here, so that every command answers at once.

**Adding a command.** A package names it in its pyproject.toml, the words of a nested command joined by dots:

    [project.entry-points."mint.commands"]
    doctor = "recipe.doctor:command"            # mint doctor
    "env.check" = "recipe.env_check:command"    # mint env check

The object is a function that takes the command's `argparse.ArgumentParser` and completes it:

    def command(parser: argparse.ArgumentParser) -> None:
        parser.description = "One line; `mint --help` shows it too."
        parser.add_argument("model")
        parser.set_defaults(run=run)

    def run(options: argparse.Namespace) -> int | None:
        ...

`run` does the work and returns the exit code (None: 0). A MintError it raises is printed in one line and ends with 1.
`options` holds the command's own arguments and `home`, the folder of runs and checkpoints (None: $MINT_HOME, else
~/.mint). The module is imported when its command is used, or `--help` needs its description; keep the top of the module
free of torch. A module that cannot be imported breaks its own command alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from mint.checkpoint_path import CheckpointPath
from mint.checkpoint_store import CheckpointInfo, CheckpointStore, RunInfo
from mint.cli_plugins import CommandParser, add_plugins
from mint.errors import MintError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (`sys.argv` unless given) and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = _parser(wants_help=not {"-h", "--help"}.isdisjoint(arguments)).parse_args(arguments)
        code: int | None = options.run(options)
        sys.stdout.flush()
        return code or 0
    except (MintError, PermissionError) as error:
        print(f"mint: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mint: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python flushes stdout again when it exits: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser(*, wants_help: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mint", description="Models, training runs and checkpoints on this machine.")
    parser.add_argument("--home", help="folder of runs and checkpoints (default: $MINT_HOME, else ~/.mint)")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=CommandParser)

    models = commands.add_parser("models", help="base models that need no download")
    models.set_defaults(run=_models)
    runs = commands.add_parser("runs", help="training runs, the most recently used first")
    runs.set_defaults(run=_runs)

    checkpoints = commands.add_parser("checkpoints", help="list, show and delete checkpoints")
    actions = checkpoints.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = actions.add_parser("list", help="checkpoints of one run or of all, the oldest first")
    listing.add_argument("run_id", nargs="?", metavar="RUN", help="a run id, as `mint runs` prints it")
    listing.set_defaults(run=_list_checkpoints)
    for name, action, text in (
        ("show", _show_checkpoint, "read every file of a checkpoint, compare it with its checksum, print the manifest"),
        ("delete", _delete_checkpoint, "delete a checkpoint"),
    ):
        command = actions.add_parser(name, help=text, description=text)
        command.add_argument("path", metavar="PATH", help="mint://<run id>/weights/<name>, as listed")
        command.set_defaults(run=action)
    add_plugins(commands, with_summaries=wants_help)
    return parser


def _models(options: argparse.Namespace) -> None:
    del options
    from mint.installed_models import installed_models

    rows = [[name, f"{context_length} tokens"] for name, context_length in installed_models()]
    _print_table(["model", "context"], rows)
    print(
        "Anywhere a base model is asked for, a folder in Hugging Face format or a hub id (Qwen/Qwen3-0.6B) works too."
    )


def _runs(options: argparse.Namespace) -> None:
    store = CheckpointStore(options.home)
    runs = store.runs()
    if not runs:
        print(f"no training runs in {store.runs_folder}")
        return
    header = ["run", "base model", "rank", "checkpoints", "size", "last used"]
    _print_table(header, [_run_row(run, store.storage_bytes(run.run_id)) for run in runs])


def _run_row(run: RunInfo, num_bytes: int) -> list[str]:
    counts = [str(run.lora.rank), str(len(run.checkpoints)), _size(num_bytes)]
    return [run.run_id, run.base_model, *counts, _time(run.last_request_at)]


def _list_checkpoints(options: argparse.Namespace) -> None:
    store = CheckpointStore(options.home)
    found = store.checkpoints(options.run_id)
    if not found:
        print(f"no checkpoints in {store.runs_folder}" + (f"/{options.run_id}" if options.run_id else ""))
        return
    _print_table(["path", "step", "size", "saved", "expires"], [_checkpoint_row(info) for info in found])


def _checkpoint_row(info: CheckpointInfo) -> list[str]:
    step = str(info.manifest.step) if info.manifest else "?"
    expires = "never" if info.expires_at is None else _time(info.expires_at)
    return [str(info.path), step, _size(info.size_bytes), _time(info.created_at), info.problem or expires]


def _show_checkpoint(options: argparse.Namespace) -> None:
    store, path = CheckpointStore(options.home), CheckpointPath.parse(options.path)
    files = store.verify(path)
    manifest, info = store.manifest(path), store.info(path)
    lora = manifest.lora
    trained = [part for part in ("attn", "mlp", "unembed") if getattr(lora, f"train_{part}")]
    lines = {
        "path": str(path),
        "folder": str(files["manifest.json"].parent),
        "base model": manifest.base_model,
        "LoRA": f"rank {lora.rank}, alpha {lora.alpha:g}, on {', '.join(trained)}",
        "step": str(manifest.step),
        "parent": manifest.parent or "none",
        "renderer": manifest.renderer or "not recorded",
        "saved": _time(info.created_at),
        "expires": "never" if info.expires_at is None else _time(info.expires_at),
        **{name: json.dumps(value, ensure_ascii=False) for name, value in sorted(manifest.extra.items())},
    }
    width = max(len(name) for name in lines)
    for name, value in lines.items():
        print(f"{name:{width}}  {value}")
    print()
    rows = [[name, _size(entry.bytes), entry.sha256] for name, entry in sorted(manifest.files.items())]
    _print_table(["file", "size", "SHA-256"], rows)
    print("\nevery file matches its checksum")


def _delete_checkpoint(options: argparse.Namespace) -> None:
    path = CheckpointPath.parse(options.path)
    CheckpointStore(options.home).delete(path)
    print(f"deleted {path}")


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    table = [header, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    for row in table:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


if __name__ == "__main__":
    sys.exit(main())
