"""The data of the speed rows: the same token ids for both sides, in the same order.

Axes: _T tokens of one sequence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

LORA_RANK = 16
LORA_ALPHA = 32
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Sizes:
    """How much one optimizer step holds."""

    conversations: int
    pairs: int
    problems: int
    group_size: int
    new_tokens: int


SIZES: dict[str, Sizes] = {
    "tiny": Sizes(conversations=32, pairs=16, problems=8, group_size=8, new_tokens=64),
    "small": Sizes(conversations=32, pairs=16, problems=8, group_size=8, new_tokens=64),
    "qwen3-0.6b": Sizes(conversations=8, pairs=2, problems=2, group_size=4, new_tokens=32),
}


@dataclass(frozen=True)
class Conversation:
    """One SFT example: weights_T is 1 on the tokens of the reply, its end included."""

    tokens_T: list[int]
    weights_T: list[int]


@dataclass(frozen=True)
class Pair:
    """A prompt and two replies, each reply ending with the end of its turn."""

    prompt_T: list[int]
    chosen_T: list[int]
    rejected_T: list[int]


def load_tokenizer(model_folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model that `models` made."""
    return AutoTokenizer.from_pretrained(model_folder)


def conversations(path: Path, tokenizer: PreTrainedTokenizerBase, count: int) -> list[Conversation]:
    """The first `count` of gsm8k_train.jsonl as user and assistant turns."""
    examples = []
    for row in _rows(path, count):
        prompt_T = _prompt(tokenizer, row["question"])
        reply_T = _reply(tokenizer, row["answer"])
        examples.append(Conversation(prompt_T + reply_T, [0] * len(prompt_T) + [1] * len(reply_T)))
    return examples


def pairs(path: Path, tokenizer: PreTrainedTokenizerBase, count: int, max_length: int = 512) -> list[Pair]:
    """The first `count` of preference_pairs.jsonl whose two conversations have at most `max_length` tokens."""
    found: list[Pair] = []
    for row in _rows(path, None):
        if len(found) == count:
            break
        sides = (
            _prompt(tokenizer, row["prompt"]),
            _reply(tokenizer, row["chosen"]),
            _reply(tokenizer, row["rejected"]),
        )
        if len(sides[0]) + max(len(sides[1]), len(sides[2])) <= max_length:
            found.append(Pair(*sides))
    return found


def prompts(path: Path, tokenizer: PreTrainedTokenizerBase, count: int, shared_prefix: int) -> list[str]:
    """`count` questions of gsm8k_train.jsonl as the text of a user turn and the start of a reply.

    shared_prefix: tokens of worked examples that come before every question; 0 for the questions as they are.
    """
    questions = [row["question"] for row in _rows(path, 100 + count)]
    shots = [f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in _rows(path, 40)]
    few_shot = str(tokenizer.decode(tokenizer("".join(shots)).input_ids[:shared_prefix]))
    return [_prompt_text(few_shot + question) for question in questions[100 : 100 + count]]


def even_token_share(tokens_T: list[int]) -> float:
    """The reward of the GRPO rows: cheap, and different for most replies of random weights."""
    return sum(token % 2 == 0 for token in tokens_T) / max(len(tokens_T), 1)


def _rows(path: Path, count: int | None) -> Iterator[dict[str, str]]:
    """The first `count` rows of a JSONL file, from the start again where it has fewer."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return (json.loads(line) for line in (lines if count is None else islice(cycle(lines), count)))


def _prompt_text(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def _prompt(tokenizer: PreTrainedTokenizerBase, question: str) -> list[int]:
    return tokenizer(_prompt_text(question)).input_ids


def _reply(tokenizer: PreTrainedTokenizerBase, answer: str) -> list[int]:
    return tokenizer(f"{answer}<|im_end|>").input_ids
