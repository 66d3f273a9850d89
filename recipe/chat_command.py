"""`mint chat CHECKPOINT`: talk with a policy in the terminal, or through a pipe: a line is a question.

The API has no streaming, so a reply is printed when it is complete.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from mint.errors import InvalidRequest, MintError, nearest_name
from recipe.policy_target import (
    TARGET_HELP,
    PolicyTarget,
    add_machine_arguments,
    add_sampling_arguments,
    local_service,
    scorer_of,
)
from recipe.terminal import Palette

if TYPE_CHECKING:
    from recipe.chat_session import ChatReply, ChatSession

COMMANDS = {
    "/help": "this list",
    "/retry": "another reply to the last question",
    "/undo": "take back the last question and its reply",
    "/reset": "begin anew; the system message stays",
    "/save FILE": "append the conversation to a .jsonl file, which supervised fine-tuning reads",
    "/quit": "leave, as Ctrl-D and Ctrl-C do",
}


def command(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of `mint chat`; see `mint.cli`."""
    parser.description = "talk with a checkpoint or a base model"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "in the conversation:\n" + _command_list("  ")
    parser.add_argument("target", metavar="CHECKPOINT", help=TARGET_HELP)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_sampling_arguments(parser, temperature=0.7, max_tokens=256, seed=None)
    parser.add_argument("--scorer", metavar="LOG_PATH", help="score replies with this finished preference stage")
    add_machine_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Talk until the input ends. Raises MintError where the policy or the scorer cannot be opened."""
    from mint.tokenizer import load_context_length
    from recipe.chat_session import ChatSession, SamplingSettings

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # text of a model on a terminal that knows less than UTF-8
    target = PolicyTarget.find(options.target, home=options.home, renderer_name=options.renderer)
    service = local_service(options)
    session = ChatSession(
        client=target.open(service),
        renderer=target.renderer(),
        settings=SamplingSettings(options.temperature, options.max_tokens, options.seed),
        context_length=load_context_length(target.base_model),
        system=options.system,
        scorer=scorer_of(options.scorer, service),
    )
    palette = Palette.of(sys.stdout, os.environ)
    if sys.stdin.isatty():
        of_what = f" of {target.checkpoint}" if target.checkpoint else ""
        print(palette.paint(f"{target.base_model}{of_what}, {target.renderer_name}; /help for commands", "dim"))
    try:
        _talk(session, palette)
    except KeyboardInterrupt:
        print()
    return 0


def _talk(session: ChatSession, palette: Palette) -> None:
    for line in _lines(palette):
        text = line.strip()
        try:
            if not text.startswith("/"):
                if text:
                    _show(session.ask(text), session, palette)
            elif not _obey(text, session, palette):
                return
        except MintError as error:
            print(palette.paint(str(error), "red"), flush=True)


def _lines(palette: Palette) -> Iterator[str]:
    """What is typed, or piped in, line by line."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with suppress(ImportError):  # with it, input() has a history and can be edited
        import readline  # noqa: F401
    while True:
        try:
            yield input(palette.paint("you> ", "bold"))
        except EOFError:
            print()
            return


def _obey(text: str, session: ChatSession, palette: Palette) -> bool:
    """Do what a line that begins with a slash says; False to leave."""
    name, _, argument = text.partition(" ")
    if name == "/quit":
        return False
    if name == "/help":
        print(_command_list())
    elif name == "/retry":
        _show(session.retry(), session, palette)
    elif name == "/undo":
        print(palette.paint(f"taken back: {session.undo()}", "dim"))
    elif name == "/reset":
        session.reset()
        print(palette.paint("a new conversation", "dim"))
    elif name == "/save" and argument.strip():
        print(palette.paint(f"saved in {session.save(argument.strip())}", "dim"))
    else:
        known = [command.split()[0] for command in COMMANDS]
        raise InvalidRequest(f"{text!r} is no command (/help lists them).{nearest_name(name, known)}")
    return True


def _show(reply: ChatReply, session: ChatSession, palette: Palette) -> None:
    from renderers import ParseStatus, get_text

    print(get_text(reply.message))
    notes: list[str] = []
    if reply.score is not None:
        notes.append(f"score {reply.score:.3f}")
    if reply.status is ParseStatus.CUT:
        notes.append(f"cut after {reply.num_tokens} tokens: --max-tokens {session.settings.max_tokens}")
    if reply.status is ParseStatus.MALFORMED:
        notes.append("breaks the chat format")
    if notes:
        print(palette.paint(f"[{'; '.join(notes)}]", "dim"))
    sys.stdout.flush()


def _command_list(indent: str = "") -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(f"{indent}{name:{width}}  {what}" for name, what in COMMANDS.items())
