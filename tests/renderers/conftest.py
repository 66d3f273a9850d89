"""A small tokenizer of the same kind as Qwen3's: byte-level BPE, the same splitting of text, the same added tokens."""

from __future__ import annotations

from typing import Any

import pytest

# Text for the merges: chat words, line breaks of several lengths, code and JSON.
CORPUS = [
    "system user assistant tool think What is the answer? The answer is 408.\n\nTest a restore every month.",
    "user\n\n\nassistant\n\n  answer \n\n\n\t\treturn a + b\r\n\r\n",
    '{"name": "calc", "arguments": {"expr": "12*34"}} {"type": "function", "function": {"name": "lookup"}}',
    "def add(a, b):\n    return a + b\n\n\n# Tools\n\nYou may call one or more functions to assist the user.",
    "User: hello\n\nAssistant: hi there\n\nUser: thanks\n\nSystem: be brief.\n\n",
    "<|im_start|> <|im_end|> <|endoftext|> |> <| im_start im_end",
] * 4

# The split pattern, the order and the `special` flags of the published Qwen3 tokenizers.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL_TOKENS = (
    ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    + [f"<|{name}_{side}|>" for name in ("object_ref", "box", "quad", "vision") for side in ("start", "end")]
    + ["<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
)
PLAIN_ADDED_TOKENS = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[]
        ),
    )
    backend.add_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN_ADDED_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
