"""`mint doctor MODEL`: look at a model before a run, and say what was found.

It shows what was loaded, which renderer speaks to it and which tokens of a conversation carry loss; then it checks
the renderer against the tokenizer's chat template and the engine's sampler against its trainer, on that very model.

Axes: _T token of a conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mint.errors import InvalidRequest
from recipe.check_result import Check, Outcome
from recipe.terminal import Palette

if TYPE_CHECKING:
    from mint.backend import ModelFacts
    from renderers import Renderer

LORA_RANK = 8


def command(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of `mint doctor`; see `mint.cli`."""
    parser.description = "check a model, its renderer and the engine before a run"
    parser.epilog = "Exit code 0: all is well. 1: a check failed, or the model or renderer cannot be used."
    parser.add_argument("model", metavar="MODEL", help="mint-tiny, a folder in Hugging Face format, or a hub id")
    parser.add_argument("--renderer", metavar="NAME", help="instead of the one recommended for the model")
    parser.add_argument("--tokens", type=_positive, default=256, metavar="N", help="tokens to sample (default: 256)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 or mps (default: the best there is)")
    parser.add_argument("--dtype", help="float32 or bfloat16 (default: bfloat16 on CUDA, else float32)")
    parser.add_argument("--seed", type=int, default=0, help="of the adapter and the samples (default: 0)")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def run(options: argparse.Namespace) -> int:
    """Print the report; 1 where a check failed. Raises MintError for a model or renderer that cannot be used."""
    if os.environ.get("MINT_BASE_URL"):
        raise InvalidRequest(
            "MINT_BASE_URL is set, but `mint doctor` checks the engine on this machine: unset it (env -u MINT_BASE_URL)"
        )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # text of a model on a terminal that knows less than UTF-8
    report = _Report(Palette.of(sys.stdout, os.environ))
    # A home of its own: the training run made here is nobody's to keep.
    with tempfile.TemporaryDirectory(prefix="mint-doctor-") as home:
        asyncio.run(_examine(options, home, report))
    return report.end()


class _Report:
    """Prints sections and checks as they come, and remembers what failed."""

    def __init__(self, palette: Palette) -> None:
        self.palette = palette
        self.checks: list[Check] = []

    def section(self, title: str, lines: Sequence[str] = ()) -> None:
        print("\n".join([self.palette.paint(title, "bold"), *lines]), flush=True)

    def facts(self, title: str, facts: dict[str, str]) -> None:
        width = max(map(len, facts))
        self.section(title, [f"  {name:{width}}  {value}" for name, value in facts.items()])

    def check(self, check: Check) -> None:
        self.checks.append(check)
        print("\n".join(check.lines(self.palette)), flush=True)

    def end(self) -> int:
        failed = [check.name for check in self.checks if check.outcome is Outcome.FAIL]
        if failed:
            print(self.palette.paint(f"{len(failed)} of {len(self.checks)} checks failed: ", "red") + ", ".join(failed))
            return 1
        print(self.palette.paint("All is well.", "green"))
        return 0


async def _examine(options: argparse.Namespace, home: str, report: _Report) -> None:
    import mint
    from recipe.parity_checks import check_parity
    from recipe.renderer_checks import SAMPLE, check_chat_template, check_round_trip
    from recipe.tokenizer_utils import get_tokenizer
    from renderers import get_renderer

    service = mint.ServiceClient(home=home, device=options.device, dtype=options.dtype)
    facts = service.describe_model(options.model)
    report.facts(f"Model {options.model}", _model_facts(facts))
    recommended = _recommended(options.model, is_needed=options.renderer is None)
    tokenizer = get_tokenizer(options.model)
    renderer = get_renderer(options.renderer or str(recommended), tokenizer)
    report.facts(f"Renderer {renderer.name}", _renderer_facts(renderer, recommended, tokenizer))
    example, weights_T = renderer.build_supervised_example(SAMPLE)
    tokens_T = example.to_ints()
    _show_loss(report, tokens_T, list(map(float, weights_T)), tokenizer)
    report.section("Checks")
    report.check(check_chat_template(renderer, tokenizer, recommended))
    report.check(check_round_trip(renderer, tokenizer))
    client = await service.create_lora_training_client_async(options.model, rank=LORA_RANK, seed=options.seed)
    prompt = renderer.build_generation_prompt(SAMPLE[:-1]).to_ints()
    for check in await check_parity(
        client, (tokens_T, weights_T.tolist()), prompt, options.tokens, options.seed, facts.dtype, facts.context_length
    ):
        report.check(check)


def _recommended(model: str, *, is_needed: bool) -> str | None:
    from renderers import get_recommended_renderer_name

    try:
        return get_recommended_renderer_name(model)
    except InvalidRequest as error:
        if is_needed:
            raise InvalidRequest(f"{error} (--renderer NAME)") from None
        return None


def _model_facts(facts: ModelFacts) -> dict[str, str]:
    return {
        "shape": (
            f"{facts.num_layers} layers, hidden {facts.hidden}, mlp {facts.mlp_hidden}, {facts.num_query_heads} query "
            f"and {facts.num_kv_heads} key/value heads of {facts.head_dim}"
        ),
        "vocabulary": f"{facts.vocab_size:,} tokens, embeddings {'tied' if facts.is_tied else 'not tied'}",
        "context": f"{facts.context_length:,} tokens",
        "parameters": f"{facts.num_parameters:,}",
        "device": facts.device,
        "dtype": f"{facts.dtype} (adapters float32)",
    }


def _renderer_facts(renderer: Renderer, recommended: str | None, tokenizer: Any) -> dict[str, str]:
    from recipe.renderer_checks import describe_stops

    return {
        "recommended": recommended or "no renderer is known for this model's name",
        "stops": describe_stops(renderer, tokenizer),
    }


def _show_loss(report: _Report, tokens_T: list[int], weights_T: list[float], tokenizer: Any) -> None:
    from recipe.token_view import token_texts, token_view

    decode: Callable[[list[int]], str] = tokenizer.decode
    special_ids = set(tokenizer.added_tokens_decoder)
    is_special_T = [token in special_ids for token in tokens_T]
    num_trained = sum(weight != 0 for weight in weights_T)
    lines = token_view(token_texts(tokens_T, decode), weights_T, is_special_T, report.palette)
    report.section(f"Loss: {num_trained} of {len(tokens_T)} tokens of a sample conversation", lines)
