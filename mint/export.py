"""Take a checkpoint away: a Hugging Face model or a PEFT adapter, proved equal to the live model before it is there.

What is written is loaded again with transformers (and PEFT), and compared with the live model in float32 on the prompts
given: the logprob of every token of the prompt and of a sampled reply, and the greedy reply. Only then does the folder
get its name; whatever goes wrong before leaves nothing behind.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from mint.atomic_files import flush, remove, storage_errors, write_flushed
from mint.errors import InvalidRequest, MintError
from mint.seeds import derive_seed

if TYPE_CHECKING:
    from mint.engine.export_check import ReloadedModel
    from mint.sampling_client import SamplingClient

ExportKind = Literal["hf", "peft"]
KINDS: tuple[ExportKind, ...] = get_args(ExportKind)


@dataclass(frozen=True)
class Tolerance:
    """The largest and the mean |difference| of two logprobs of one token, in nats."""

    largest: float
    mean: float


TOLERANCES = {
    # Sums of the same float32 numbers in another order: 3e-6 at most on the built-in model, more on deeper ones.
    "float32": Tolerance(5e-4, 5e-5),
    # Weights rounded to eight bits of mantissa: 0.04 at most on the built-in model, 0.004 in the mean.
    "bfloat16": Tolerance(0.5, 5e-2),
}

_REPLY_TOKENS = 48


class ExportMismatch(MintError, RuntimeError):
    """What was exported does not say what the live model says; it was removed."""


@dataclass(frozen=True)
class ExportReport:
    """What was written and how it compared. largest, mean: |difference| of logprobs in nats, over num_tokens tokens.
    num_equal_replies of num_prompts greedy replies are the same token for token; where one differs, the live model
    holds both tokens for equally likely, within the tolerance."""

    folder: Path
    kind: ExportKind
    base_model: str
    dtype: str
    largest: float
    mean: float
    num_tokens: int
    num_prompts: int
    num_equal_replies: int


def check_export(target: str | os.PathLike[str], kind: str, dtype: str) -> None:
    """InvalidRequest for what would fail whatever the checkpoint: asked before a model is loaded."""
    if kind not in KINDS:
        raise InvalidRequest(f"--to {kind!r}: must be one of {', '.join(KINDS)}")
    if dtype not in TOLERANCES:
        raise InvalidRequest(f"dtype={dtype!r}: must be one of {', '.join(TOLERANCES)}")
    if os.path.lexists(target):
        raise InvalidRequest(f"{target} exists already: nothing is overwritten; name a folder that is not there")
    if os.environ.get("MINT_BASE_URL"):
        raise InvalidRequest("MINT_BASE_URL is set, but an export is made from storage on this machine: unset it")
    if kind == "peft" and find_spec("peft") is None:
        raise InvalidRequest(
            "an adapter is checked by loading it with PEFT, which is not installed: "
            "pip install 'mint-recipes[export]' (or export the merged model, --to hf)"
        )


def export_checkpoint(
    checkpoint: str,
    target: str | os.PathLike[str],
    prompts: Sequence[Sequence[int]],
    *,
    kind: ExportKind = "hf",
    dtype: str = "float32",
    device: str | None = None,
    home: str | None = None,
    stop_token_ids: Sequence[int] = (),
    readme: str = "",
    tolerance: Tolerance | None = None,
) -> ExportReport:
    """Write the checkpoint (a mint:// path) to the new folder `target`, checked on `prompts` (token ids).

    kind: "hf" is the merged model, "peft" the adapter. dtype: of merged weights; the base model under an adapter is
    compared in it. stop_token_ids: what ends a reply in training, added to what ends a text in generation_config.json.
    readme: more for the folder's README.md. tolerance: instead of the one of `TOLERANCES`.
    InvalidRequest, NotFound, CheckpointError and StorageError for what they are for; ExportMismatch where the reloaded
    model differs by more than the tolerance.
    """
    check_export(target, kind, dtype)
    if not prompts:
        raise InvalidRequest("an export is checked on at least one prompt")
    import mint
    from mint.engine.export_check import ReloadedModel

    goal = Path(target).expanduser().absolute()
    service = mint.ServiceClient(home=home, device=device, dtype="float32")
    live = service.create_sampling_client(model_path=checkpoint)
    base_model = live.get_base_model()
    where = service.describe_model(base_model).device
    accounts = _live_accounts(live, prompts)
    unfinished = goal.with_name(f".{goal.name}~{secrets.token_hex(4)}")
    try:
        with storage_errors(goal):
            unfinished.mkdir(parents=True)
            _write(home, checkpoint, unfinished, goal, kind, dtype, list(stop_token_ids))
        allowed = tolerance or TOLERANCES[dtype]
        reloaded = ReloadedModel.open(unfinished, base_model if kind == "peft" else None, dtype, where)
        num_equal = _compare_replies(reloaded, accounts, live, allowed)
        largest, mean, num_tokens = _compare_logprobs(reloaded, accounts)
        report = ExportReport(goal, kind, base_model, dtype, largest, mean, num_tokens, len(prompts), num_equal)
        _check_logprobs(report, allowed)
        write_flushed(unfinished / "README.md", _readme(report, checkpoint, readme).encode())
        check_export(target, kind, dtype)
        with storage_errors(goal):
            for file in sorted(unfinished.rglob("*")):
                flush(file)
            unfinished.rename(goal)
            flush(goal.parent)
    finally:
        with suppress(OSError):  # whatever stopped the export is the error to report
            remove(unfinished)
    return report


@dataclass(frozen=True)
class _Account:
    """What the live model says of one prompt: its greedy reply, and the logprobs of a text sampled from it."""

    prompt: list[int]
    greedy: list[int]
    text: list[int]
    logprobs: list[float]


def _live_accounts(live: SamplingClient, prompts: Sequence[Sequence[int]]) -> list[_Account]:
    from mint import types

    def params(temperature: float, i: int) -> types.SamplingParams:
        # Where a reply ends is for the export's generation_config.json to say.
        return types.SamplingParams(
            max_tokens=_REPLY_TOKENS, temperature=temperature, seed=derive_seed("export", i), stop=[]
        )

    inputs = [types.ModelInput.from_ints(list(prompt)) for prompt in prompts]
    greedy = [live.sample(prompt, 1, params(0.0, i)) for i, prompt in enumerate(inputs)]
    sampled = [live.sample(prompt, 1, params(1.0, i)) for i, prompt in enumerate(inputs)]
    texts = [[*prompt, *reply.result().sequences[0].tokens] for prompt, reply in zip(prompts, sampled, strict=True)]
    scored = [live.compute_logprobs(types.ModelInput.from_ints(text)) for text in texts]
    accounts: list[_Account] = []
    for prompt, reply, text, logprobs in zip(prompts, greedy, texts, scored, strict=True):
        known = [value for value in logprobs.result()[1:] if value is not None]
        accounts.append(_Account(list(prompt), list(reply.result().sequences[0].tokens), text, known))
    return accounts


def _write(
    home: str | None, checkpoint: str, folder: Path, goal: Path, kind: ExportKind, dtype: str, stop_ids: list[int]
) -> None:
    from mint.checkpoint_store import CheckpointStore
    from mint.engine import hf_export

    store = CheckpointStore(home)
    if kind == "hf":
        hf_export.write_merged(store, checkpoint, folder, dtype, stop_ids)
    else:
        hf_export.write_adapter(store, checkpoint, folder, goal)


def _compare_logprobs(reloaded: ReloadedModel, accounts: list[_Account]) -> tuple[float, float, int]:
    """Largest and mean |difference|, and the number of tokens; what is not a number counts as infinite."""
    differences: list[float] = []
    for account in accounts:
        found = reloaded.logprobs(account.text)
        differences += [abs(a - b) for a, b in zip(found, account.logprobs, strict=True)]
    finite = [math.inf if math.isnan(value) else value for value in differences]
    return max(finite), sum(finite) / len(finite), len(finite)


def _compare_replies(
    reloaded: ReloadedModel, accounts: list[_Account], live: SamplingClient, tolerance: Tolerance
) -> int:
    """How many greedy replies are equal. ExportMismatch for one that differs where the live model is decided."""
    num_equal = 0
    for account in accounts:
        reply, expected = reloaded.greedy(account.prompt, _REPLY_TOKENS), reloaded.until_end(account.greedy)
        num_equal += reply == expected
        i = next((i for i, (a, b) in enumerate(zip(expected, reply, strict=False)) if a != b), None)
        if reply != expected and (i is None or not _is_tie(live, account.prompt, expected, reply, i, tolerance)):
            ours, theirs = (reloaded.tokenizer.decode(tokens) for tokens in (expected, reply))
            raise ExportMismatch(
                f"the export's greedy reply is {theirs!r}, the live model's {ours!r}; nothing was kept. {_ADVICE}"
            )
    return num_equal


def _is_tie(
    live: SamplingClient, prompt: list[int], expected: list[int], reply: list[int], i: int, tolerance: Tolerance
) -> bool:
    """Whether the live model holds the two tokens at position i for equally likely, within the tolerance."""
    from mint import types

    texts = [[*prompt, *expected[:i], token] for token in (expected[i], reply[i])]
    asked = [live.compute_logprobs(types.ModelInput.from_ints(text), 1) for text in texts]
    ours, theirs = (future.result()[-1] for future in asked)
    assert ours is not None and theirs is not None
    return abs(ours - theirs) <= 2 * tolerance.largest


_ADVICE = "If transformers and peft are the versions in constraints.txt, which are those tested, please report it"


def _check_logprobs(report: ExportReport, tolerance: Tolerance) -> None:
    if report.largest > tolerance.largest or report.mean > tolerance.mean:
        raise ExportMismatch(
            f"the export's logprobs differ from the live model's by {report.largest:.2e} nats at most and "
            f"{report.mean:.2e} in the mean, where {report.dtype} allows {tolerance.largest:g} and {tolerance.mean:g}; "
            "nothing was kept. "
            + ("Export in float32, or allow more with --tolerance" if report.dtype != "float32" else _ADVICE)
        )


def _readme(report: ExportReport, checkpoint: str, more: str) -> str:
    if report.kind == "hf":
        what = f"`{report.base_model}` with the adapter of `{checkpoint}` merged into its weights, in {report.dtype}."
        load = 'model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")'
        imports = "from transformers import AutoModelForCausalLM, AutoTokenizer"
    else:
        what = f"The LoRA adapter of `{checkpoint}`, on `{report.base_model}`."
        load = "model = AutoPeftModelForCausalLM.from_pretrained(folder)"
        imports = "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer"
    return f"""# {report.folder.name}

{what}

Loaded with transformers it was compared with the live model in float32 on {report.num_prompts} prompts: logprobs differ
by {report.largest:.1e} nats at most and {report.mean:.1e} in the mean of {report.num_tokens} tokens;
{report.num_equal_replies} of the greedy replies are the same token for token.

```python
{imports}

folder = "..."  # where this file is
{load}
tokenizer = AutoTokenizer.from_pretrained(folder)
```
{more}"""
