"""`mint export CHECKPOINT --to hf|peft --out DIR`: a checkpoint as a folder for transformers or PEFT, checked."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from mint.errors import InvalidRequest
from recipe.policy_target import PolicyTarget, add_machine_arguments

if TYPE_CHECKING:
    from renderers import Message, Renderer

_QUESTIONS = (
    "How can I sleep better?",
    "What is 17 + 25?",
    "Write two sentences about a river, and then one about the sea.",
    "¿Qué haces cuando llueve? Answer in English, please.",
)


def command(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of `mint export`; see `mint.cli`."""
    parser.description = "write a checkpoint as a Hugging Face model or a PEFT adapter, compared with the live model"
    parser.epilog = "Exit code 0: written, and the same model. 1: nothing was written; the message says why."
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a mint:// path, or the log_path of a stage")
    parser.add_argument("--to", required=True, choices=("hf", "peft"), help="the merged model, or the adapter")
    parser.add_argument("--out", required=True, metavar="DIR", help="a folder that does not exist yet")
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "bfloat16"), help="of the merged weights (default: float32)"
    )
    parser.add_argument(
        "--tolerance", type=float, metavar="NATS",
        help="the largest difference of a logprob that is allowed (default: 5e-4 in float32, 0.5 in bfloat16)",
    )  # fmt: skip
    add_machine_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Export and print what was compared. Raises MintError where nothing was written."""
    from mint.export import TOLERANCES, Tolerance, check_export, export_checkpoint

    check_export(options.out, options.to, options.dtype)
    tolerance = TOLERANCES[options.dtype]
    if options.tolerance is not None:
        if not options.tolerance > 0:
            raise InvalidRequest(f"--tolerance {options.tolerance:g}: must be above 0")
        tolerance = Tolerance(options.tolerance, options.tolerance)
    target = PolicyTarget.find(options.checkpoint, home=options.home, renderer_name=options.renderer)
    if target.checkpoint is None:
        raise InvalidRequest(f"{options.checkpoint!r} is not a checkpoint: give a mint:// path, or a stage's log_path")
    _without_progress_bars()
    renderer = target.renderer()
    prompts = [renderer.build_generation_prompt([_question(text)]).to_ints() for text in _QUESTIONS]
    usage = _how_to_prompt(target, renderer)
    report = export_checkpoint(
        target.checkpoint, options.out, prompts, kind=options.to, dtype=options.dtype, device=options.device,
        home=options.home, stop_token_ids=[stop for stop in renderer.get_stop_sequences() if isinstance(stop, int)],
        readme=usage, tolerance=tolerance,
    )  # fmt: skip
    print(f"{report.folder}: {_WHAT[report.kind]}, {report.dtype}, from {target.checkpoint} on {report.base_model}")
    print(
        f"  logprobs: largest |difference| {report.largest:.2e} nats, mean {report.mean:.1e} over {report.num_tokens} "
        f"tokens; bound {tolerance.largest:g}"
    )
    print(f"  greedy replies: {report.num_equal_replies} of {report.num_prompts} are the same token for token")
    return 0


_WHAT = {"hf": "merged model", "peft": "adapter"}


def _question(text: str) -> Message:
    return {"role": "user", "content": text}


def _without_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not sys.warnoptions:
        import warnings

        warnings.simplefilter("ignore")


def _how_to_prompt(target: PolicyTarget, renderer: Renderer) -> str:
    """Whether the tokenizer's chat template writes what the policy was trained on, and how to call it."""
    from recipe.check_result import Outcome
    from recipe.renderer_checks import check_chat_template, describe_stops

    tokenizer: Any = renderer.tokenizer
    check = check_chat_template(renderer, tokenizer, None)
    stops = f"A reply ends with {describe_stops(renderer, tokenizer)}.\n"
    if check.outcome is not Outcome.OK:
        return (
            f"\nThe adapter was trained with the chat format `{target.renderer_name}`, which the tokenizer's chat "
            f"template does not write: build prompts with `renderers.get_renderer({target.renderer_name!r}, "
            f"tokenizer)`.\n{stops}"
        )
    switch = "\n    enable_thinking=False," if target.renderer_name.endswith("disable_thinking") else ""
    return f"""
Prompts, in the chat format that it was trained with (`{target.renderer_name}`):

```python
messages = [{{"role": "user", "content": "How can I sleep better?"}}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True,{switch}
)
reply = model.generate(**inputs, max_new_tokens=200, do_sample=True)
print(tokenizer.decode(reply[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
```

{stops}"""
