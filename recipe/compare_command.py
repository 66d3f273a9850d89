"""`mint compare CHECKPOINT_A CHECKPOINT_B PROMPTS`: the replies of two policies side by side, and who wins."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mint.errors import InvalidRequest
from recipe.policy_target import (
    TARGET_HELP,
    PolicyTarget,
    add_machine_arguments,
    add_sampling_arguments,
    at_least_one,
    local_service,
    scorer_of,
)
from recipe.terminal import Palette

if TYPE_CHECKING:
    import mint
    from recipe.reply_comparison import ComparedPrompt, ComparedReply, Contestant
    from renderers import Message


def command(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of `mint compare`; see `mint.cli`."""
    parser.description = "two policies on the same prompts, side by side"
    parser.add_argument("a", metavar="CHECKPOINT_A", help=TARGET_HELP)
    parser.add_argument("b", metavar="CHECKPOINT_B", help="another of these")
    parser.add_argument(
        "prompts", metavar="PROMPTS",
        help="a .txt file (one prompt a line), a .jsonl or .parquet file (column prompt or messages), or - for stdin",
    )  # fmt: skip
    parser.add_argument(
        "--samples", type=at_least_one, default=1, metavar="N", help="of each for each prompt (default: 1)"
    )
    parser.add_argument("--max-prompts", type=at_least_one, metavar="N", help="only the first N prompts")
    parser.add_argument("--scorer", metavar="LOG_PATH", help="score replies with this finished preference stage")
    add_sampling_arguments(parser, temperature=1.0, max_tokens=256, seed=0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_machine_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the comparison. Raises MintError where a policy, the scorer or the prompts cannot be had."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # text of a model on a terminal that knows less than UTF-8
    asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> None:
    from recipe.reply_comparison import compare_replies, comparison_document

    prompts = read_prompts(options.prompts, options.max_prompts)
    targets = [
        PolicyTarget.find(text, home=options.home, renderer_name=options.renderer) for text in (options.a, options.b)
    ]
    service = local_service(options)
    a, b = (_contestant(target, service, options) for target in targets)
    compared = await compare_replies(
        a, b, prompts, num_samples=options.samples, seed=options.seed, scorer=scorer_of(options.scorer, service)
    )
    document = comparison_document(compared, *(target.checkpoint or target.base_model for target in targets))
    if options.json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    palette, width = Palette.of(sys.stdout, os.environ), shutil.get_terminal_size((100, 24)).columns
    for i, each in enumerate(compared, start=1):
        print("\n".join(_side_by_side(i, each, width, palette)), end="\n\n")
    print("\n".join(_summary(document)))


def _contestant(target: PolicyTarget, service: mint.ServiceClient, options: argparse.Namespace) -> Contestant:
    from recipe.reply_comparison import Contestant

    return Contestant(target.open(service), target.renderer(), options.temperature, options.max_tokens)


def read_prompts(source: str, max_prompts: int | None = None) -> list[list[Message]]:
    """Conversations to reply to: lines of text, or JSON objects with `prompt` or `messages`, whose last reply is left
    out. InvalidRequest names the line that holds none."""
    from envs.data_rows import read_rows

    if source != "-" and Path(source).suffix != ".txt":
        rows = [(f"{source}, line {line}", row) for line, row in read_rows(source, max_rows=max_prompts)]
        return [_prompt(where, row) for where, row in rows]
    if source != "-" and not Path(source).expanduser().is_file():
        raise InvalidRequest(f"{source}: no such file; give a .txt, .jsonl or .parquet file, or - for stdin")
    text = sys.stdin.read() if source == "-" else Path(source).expanduser().read_text(encoding="utf-8")
    name = "stdin" if source == "-" else source
    lines = [(f"{name}, line {i}", line.strip()) for i, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise InvalidRequest(f"{name}: holds no prompt; write one a line")
    return [_prompt(where, _row(where, line, is_text=source != "-")) for where, line in lines[:max_prompts]]


def _row(where: str, line: str, *, is_text: bool) -> dict[str, Any]:
    if is_text or not line.startswith("{"):
        return {"prompt": line}
    try:
        return json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{where}: begins with {{ and is not valid JSON ({error})") from error


def _prompt(where: str, row: dict[str, Any]) -> list[Message]:
    from renderers import validate_messages

    value = row.get("prompt", row.get("messages"))
    if value is None:
        raise InvalidRequest(f"{where}: no column prompt or messages; its columns are {', '.join(map(repr, row))}")
    messages = cast("list[Message]", [{"role": "user", "content": value}] if isinstance(value, str) else value)
    try:
        validate_messages(messages)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from error
    if messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages:
        raise InvalidRequest(f"{where}: nothing is left to reply to without its last message, the assistant's")
    return messages


def _side_by_side(number: int, compared: ComparedPrompt, width: int, palette: Palette) -> list[str]:
    asked = "\n".join(f"{message['role']}: {message['content']}" for message in compared.prompt)
    if len(compared.prompt) == 1:
        asked = compared.prompt[0]["content"]
    lines = [palette.paint(line, "bold") for line in _wrapped(f"{number}. {asked}", width)]
    column = max((width - 3) // 2, 10)
    for a, b in zip(compared.a_S, compared.b_S, strict=True):
        left, right = (_cell(name, reply, column) for name, reply in (("A", a), ("B", b)))
        for i in range(max(len(left), len(right))):
            first = left[i] if i < len(left) else ""
            second = right[i] if i < len(right) else ""
            lines.append(f"{first:{column}} │ {second}".rstrip())
    return lines


def _cell(name: str, reply: ComparedReply, column: int) -> list[str]:
    notes = [name]
    if reply.score is not None:
        notes.append(f"{reply.score:.3f}")
    if reply.is_cut:
        notes.append(f"cut after {reply.num_tokens} tokens")
    return [*_wrapped("  ".join(notes), column), *_wrapped(reply.text, column)]


def _wrapped(text: str, width: int) -> list[str]:
    return [part for line in text.splitlines() or [""] for part in textwrap.wrap(line, width) or [""]]


def _summary(document: dict[str, Any]) -> list[str]:
    rows = [
        ("mean score", "mean_score", "{:.3f}"),
        ("mean tokens", "mean_tokens", "{:.1f}"),
        ("cut", "share_cut", "{:.0%}"),
    ]
    lines = [f"{side.upper()}  {document[side]['name']}" for side in ("a", "b")]
    lines.append(f"{'':12}{'A':>10}{'B':>10}")
    for title, key, form in rows:
        values = [document[side][key] for side in ("a", "b")]
        if None not in values:
            lines.append(f"{title:12}" + "".join(f"{form.format(value):>10}" for value in values))
    lines.append(f"equal replies: {document['share_equal']:.0%}")
    wins = document["win_rate_of_b"]
    if wins["value"] is not None:
        lines.append(
            f"B scores higher than A: {wins['value']:.1%} (95 % interval {wins['low']:.1%} to {wins['high']:.1%}, "
            f"{wins['num_pairs']} pairs of replies, {len(document['prompts'])} prompts)"
        )
    return lines
