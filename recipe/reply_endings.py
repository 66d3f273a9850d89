"""Whether a policy comes to an end: how many of its replies to held-out prompts of supervised fine-tuning do.

Axes: _T token.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mint import types
from mint.atomic_files import write_atomically
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.completers import MintTokenCompleter
from recipe.supervised.types import SupervisedDataset

if TYPE_CHECKING:
    import mint
    from renderers import StopCondition

ENDINGS_FILE = "reply_endings.json"
_LEAST_TOKENS = 16


@dataclass(frozen=True)
class ReplyEndings:
    """reply_endings.json: of `num_replies` replies of at most `max_tokens` tokens, `num_ended` end with a stop.

    asked_replies, asked_max_tokens: the settings that led to it. sampler_path: whose replies.
    """

    sampler_path: str
    num_replies: int
    num_ended: int
    max_tokens: int
    asked_replies: int
    asked_max_tokens: int | None

    def is_for(self, sampler_path: str, num_replies: int, max_tokens: int | None) -> bool:
        """Whether a measurement with these settings would find the same."""
        return (self.sampler_path, self.asked_replies, self.asked_max_tokens) == (sampler_path, num_replies, max_tokens)


@dataclass(frozen=True)
class HeldOutPrompt:
    """What comes before the last reply that an example teaches, and that reply's length in tokens."""

    tokens: list[int]
    num_reply_tokens: int


def held_out_prompts(dataset: SupervisedDataset, num_prompts: int) -> list[HeldOutPrompt]:
    """The prompts of the first examples of a held-out set: all before the last row of tokens that carry loss."""
    prompts: list[HeldOutPrompt] = []
    for i_batch in range(len(dataset)):
        for datum in dataset.get_batch(i_batch):
            if len(prompts) == num_prompts:
                return prompts
            # Position i reads token i and predicts token i + 1.
            is_taught_T = datum.loss_fn_inputs["weights"].to_numpy() > 0
            if not is_taught_T.any():
                continue
            last = int(np.flatnonzero(is_taught_T)[-1])
            not_taught = np.flatnonzero(~is_taught_T[:last])
            first = int(not_taught[-1]) + 1 if len(not_taught) else 0
            prompts.append(HeldOutPrompt(datum.model_input.to_ints()[: first + 1], last - first + 1))
    return prompts


async def measure_reply_endings(
    client: mint.SamplingClient,
    sampler_path: str,
    dataset: SupervisedDataset,
    stop: StopCondition,
    *,
    num_replies: int,
    max_tokens: int | None,
    context_length: int | None,
) -> ReplyEndings:
    """Draw one reply to each prompt, at temperature 1 and with seeds of their own.

    max_tokens: None is twice the longest held-out reply of these prompts. No reply goes beyond the context.
    """
    prompts = held_out_prompts(dataset, num_replies)
    limit = max_tokens or max(2 * max(prompt.num_reply_tokens for prompt in prompts), _LEAST_TOKENS)
    if context_length is not None:
        limit = max(1, min(limit, context_length - max(len(prompt.tokens) for prompt in prompts)))
    complete = MintTokenCompleter(client, limit)
    replies = await asyncio.gather(
        *(
            complete(types.ModelInput.from_ints(prompt.tokens), stop, seed=derive_seed(0, "reply endings", i))
            for i, prompt in enumerate(prompts)
        )
    )
    num_ended = sum(reply.stop_reason == "stop" for reply in replies)
    return ReplyEndings(sampler_path, len(replies), num_ended, limit, num_replies, max_tokens)


def read_endings(log_path: str | Path) -> ReplyEndings | None:
    """The file in a stage's folder; None where there is none. InvalidRequest for a file that is none of these."""
    file = Path(log_path).expanduser() / ENDINGS_FILE
    if not file.is_file():
        return None
    try:
        return ReplyEndings(**json.loads(file.read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"{file}: damaged ({error}); remove it, and it is made again") from error


def write_endings(log_path: str | Path, endings: ReplyEndings) -> None:
    """Write the file to a stage's folder."""
    document = json.dumps(asdict(endings), indent=2) + "\n"
    write_atomically(Path(log_path).expanduser() / ENDINGS_FILE, document.encode())
