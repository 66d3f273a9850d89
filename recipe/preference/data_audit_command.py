"""`mint data audit FILE`: look at preference pairs before a model is trained on them, and write clean ones."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mint.errors import InvalidRequest, MintError
from recipe.terminal import Palette

if TYPE_CHECKING:
    from recipe.preference.data_audit import AuditedFile, AuditResult, TokenLengths
    from recipe.preference.pair_rows import PairColumns
    from renderers import Message


def command(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of `mint data audit`; see `mint.cli`."""
    parser.description = "examine preference pairs before training, and write clean ones"
    parser.epilog = "Exit code 0: training takes the file. 1: it would refuse it, or the file cannot be read."
    parser.add_argument("file", metavar="FILE", help="a .jsonl or .parquet file of pairs, or the name of a hub dataset")
    parser.add_argument(
        "columns",
        nargs="*",
        metavar="columns.NAME=VALUE",
        help="the file's columns, as for training: columns.label=winner",
    )
    parser.add_argument("--split", default="train", help="of a hub dataset (default: train)")
    parser.add_argument("--subset", help="of a hub dataset")
    parser.add_argument("--max-rows", type=_positive, metavar="N", help="read only the first rows")
    parser.add_argument("--held-out", metavar="FILE", help="pairs for testing: which prompts does this file share?")
    parser.add_argument("--rl-prompts", metavar="FILE", help="prompts for RL: which of them does this file share?")
    parser.add_argument("--rl-column", default="prompt", metavar="NAME", help="their column (default: prompt)")
    parser.add_argument("--model", help="count tokens with this model's tokenizer")
    parser.add_argument("--renderer", metavar="NAME", help="instead of the one recommended for the model")
    parser.add_argument("--readout", default="verdict", help="whose rendering to count (default: verdict)")
    parser.add_argument(
        "--max-length", type=_positive, metavar="N", help="most tokens of a reply (default: the model's context)"
    )
    parser.add_argument("--no-word-model", action="store_true", help="leave out the model of words, the slowest part")
    parser.add_argument("--json", metavar="PATH", help="write everything found, with all line numbers; - for stdout")
    parser.add_argument("--write-clean", metavar="PREFIX", help="write PREFIX_train.jsonl and three files like it")
    parser.add_argument("--drop-near-duplicates", action="store_true", help="near duplicates are not clean either")
    parser.add_argument(
        "--held-out-share", type=float, default=0.1, metavar="SHARE", help="of the prompts written (default: 0.1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="which prompts these are (default: 0)")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def run(options: argparse.Namespace) -> int:
    """Print the findings; 1 where training would refuse the file. Raises MintError for bad options and files."""
    from recipe.preference.data_audit import audit_pairs, read_for_audit

    _check_options(options)
    columns = _columns(options.columns)
    file = read_for_audit(options.file, columns, split=options.split, subset=options.subset, max_rows=options.max_rows)
    held_out = read_for_audit(options.held_out, columns) if options.held_out else None
    if held_out is not None and held_out.broken:
        raise InvalidRequest(f"{held_out.broken[0]} (`mint data audit {held_out.path}` finds all such rows)")
    result = audit_pairs(
        file,
        held_out=held_out,
        rl_prompts=_rl_prompts(options),
        tokens=_tokens(options, file),
        with_model=not options.no_word_model,
        drop_near=options.drop_near_duplicates,
    )
    written = _write(options, file, held_out, result)
    document = {**dataclasses.asdict(result.audit), "written": written}
    if options.json == "-":
        print(json.dumps(document, indent=2))
    else:
        _print(result, written)
    if options.json not in (None, "-"):
        _write_json(options.json, document)
    return _exit_code(result)


def _check_options(options: argparse.Namespace) -> None:
    if options.max_length is not None and options.model is None:
        raise InvalidRequest(
            f"--max-length {options.max_length} is in tokens, which depend on the model: name it with --model"
        )
    if not 0.0 <= options.held_out_share < 1.0:
        raise InvalidRequest(f"--held-out-share {options.held_out_share}: must be at least 0 and below 1")


def _columns(settings: list[str]) -> PairColumns:
    import chz
    from chz.blueprint import Blueprint, ExtraneousBlueprintArg, InvalidBlueprintArg

    from recipe.preference.pair_rows import PairColumns

    for setting in settings:
        if not setting.startswith("columns.") or "=" not in setting:
            raise InvalidRequest(f"{setting!r}: columns are named as for training, for example columns.prompt=question")
    try:
        return Blueprint(PairColumns).make_from_argv([setting.removeprefix("columns.") for setting in settings])
    except (ExtraneousBlueprintArg, InvalidBlueprintArg) as error:
        fields = ", ".join(f"columns.{field}" for field in chz.chz_fields(PairColumns))
        raise InvalidRequest(f"{' '.join(settings)}: {str(error).splitlines()[0]} Known are {fields}") from error


def _rl_prompts(options: argparse.Namespace) -> tuple[str, list[list[Message]]] | None:
    from envs.data_rows import read_rows
    from recipe.conversation_files import messages_in

    if options.rl_prompts is None:
        return None
    prompts: list[list[Message]] = []
    for line, row in read_rows(options.rl_prompts):
        value = row.get(options.rl_column)
        if isinstance(value, str):
            prompts.append([{"role": "user", "content": value}])
            continue
        try:
            prompts.append(messages_in(value, options.rl_column))
        except InvalidRequest as error:
            raise InvalidRequest(
                f"{options.rl_prompts}, line {line}: {error}; its columns are {', '.join(map(repr, row))}. "
                "Name the one with the prompt with --rl-column"
            ) from error
    return options.rl_prompts, prompts


def _tokens(options: argparse.Namespace, file: AuditedFile) -> TokenLengths | None:
    if options.model is None:
        return None
    from mint.tokenizer import load_context_length
    from recipe.model_info import resolve_renderer_name
    from recipe.preference.pair_lengths import token_lengths
    from recipe.preference.readouts import get_readout
    from recipe.tokenizer_utils import get_tokenizer
    from renderers import get_renderer

    readout = get_readout(options.readout)
    renderer = get_renderer(resolve_renderer_name(options.renderer, options.model), get_tokenizer(options.model))
    limits = [limit for limit in (options.max_length, load_context_length(options.model)) if limit is not None]
    return token_lengths(file.pairs_N, file.lines_N, readout, renderer, model=options.model, limit=min(limits))


def _write(
    options: argparse.Namespace, file: AuditedFile, held_out: AuditedFile | None, result: AuditResult
) -> dict[str, int]:
    from recipe.preference.clean_splits import clean_splits, write_splits

    if options.write_clean is None:
        return {}
    splits = clean_splits(
        file,
        result,
        held_out=held_out,
        held_out_share=options.held_out_share,
        seed=options.seed,
        drop_near=options.drop_near_duplicates,
    )
    return write_splits(splits, options.write_clean, [file.path, *([held_out.path] if held_out else [])])


def _print(result: AuditResult, written: dict[str, int]) -> None:
    from recipe.preference.data_audit_report import checks, facts, source_lines

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # text of a file on a terminal that knows less than UTF-8
    palette = Palette.of(sys.stdout, os.environ)
    found = facts(result.audit)
    width = max(map(len, found))
    print(palette.paint(f"Preference pairs in {result.audit.path}", "bold"))
    print("\n".join(f"  {name:{width}}  {value}" for name, value in found.items()))
    print(palette.paint("Findings", "bold"))
    for check in checks(result.audit):
        print("\n".join(check.lines(palette)))
    table = source_lines(result.audit)
    if table:
        print(palette.paint("Sources", "bold"))
        print("\n".join(table))
    if written:
        print(palette.paint("Written", "bold"))
        print("\n".join(f"  {num_pairs:>8,} pairs  {path}" for path, num_pairs in written.items()))


def _exit_code(result: AuditResult) -> int:
    from recipe.check_result import Outcome
    from recipe.preference.data_audit_report import checks

    return int(any(check.outcome is Outcome.FAIL for check in checks(result.audit)))


def _write_json(path: str, document: dict[str, Any]) -> None:
    from mint.atomic_files import write_atomically

    file = Path(path).expanduser()
    if not file.absolute().parent.is_dir():
        raise MintError(f"--json {path}: there is no folder {file.absolute().parent}; make it, or give another path")
    write_atomically(file, (json.dumps(document, indent=2) + "\n").encode("utf-8"))
