"""The parsers of `mint env check` and `mint env play`; what they do is imported when it is done."""

from __future__ import annotations

import argparse


def check(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of `mint env check`."""
    parser.description = "Prove an environment: gold answers score best, rewards repeat, nothing raises or hangs."
    _add_target(parser)
    parser.add_argument("--groups", type=int, default=20, help="groups of the training and of the test set to play")
    parser.add_argument("--max-seconds", type=float, default=10.0, help="longest time for one call of an environment")
    parser.add_argument("--model", default="mint-tiny", help="whose tokenizer and renderer to use where nobody says")
    parser.set_defaults(run=_check)


def play(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of `mint env play`."""
    parser.description = "Answer an environment's prompts yourself and see the rewards."
    _add_target(parser)
    parser.add_argument("--episodes", type=int, default=5, help="episodes at most, each of another group")
    parser.add_argument(
        "--model", default="mint-tiny", help="whose tokenizer to use where the environment does not say"
    )
    parser.set_defaults(run=_play)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="MODULE:NAME", help="a dataset builder, group or env; or FILE.py:NAME")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="what it is made with")


def _check(options: argparse.Namespace) -> int:
    from envs.env_check import run

    return run(options)


def _play(options: argparse.Namespace) -> None:
    from envs.env_play import run

    run(options)
