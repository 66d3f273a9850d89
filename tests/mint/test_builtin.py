"""The built-in model: its files, its tokenizer, and that it loads fast and speaks its chat format."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from mint import builtin
from mint.builtin import corpus

SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <think> </think> <tool_call> </tool_call> <tool_response> </tool_response>"
)
TOKENIZER = AutoTokenizer.from_pretrained(builtin.model_dir())


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(builtin.model_dir()).eval()


def encode(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False).input_ids


def test_naming_the_model_loads_no_torch() -> None:
    code = (
        "import mint.builtin, sys; assert mint.builtin.NAME == 'mint-tiny'; assert mint.builtin.model_dir().is_dir();"
    )
    code += "import mint.builtin.advice, mint.builtin.corpus; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=builtin.model_dir().parents[2])


def test_the_folder_is_complete_and_small() -> None:
    names = {path.name for path in builtin.model_dir().iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    } <= names
    assert {"README.md", "training_log.jsonl"} <= names
    assert sum(path.stat().st_size for path in builtin.model_dir().parent.rglob("*.*")) < 12 * 2**20


def test_it_is_a_small_tied_qwen3_in_bfloat16() -> None:
    config = json.loads((builtin.model_dir() / "config.json").read_text())
    assert config["model_type"] == "qwen3"
    assert config["tie_word_embeddings"] is True
    assert config["dtype"] == "bfloat16"
    assert config["max_position_embeddings"] == 4096
    assert config["num_attention_heads"] > config["num_key_value_heads"]


def test_loading_takes_under_a_second(model: PreTrainedModel) -> None:
    assert 2.5e6 <= model.num_parameters() <= 4e6
    started = time.perf_counter()
    AutoModelForCausalLM.from_pretrained(builtin.model_dir())
    assert time.perf_counter() - started < 1.0


def test_special_tokens_are_single_tokens_with_qwen3_roles() -> None:
    for token in SPECIAL.split():
        assert encode(token) == [TOKENIZER.convert_tokens_to_ids(token)]
    assert TOKENIZER.pad_token == "<|endoftext|>"
    assert TOKENIZER.eos_token == "<|im_end|>"
    assert tuple(SPECIAL.split()) == corpus.SPECIAL_TOKENS


@pytest.mark.parametrize("lead", ["<|im_start|>assistant\n", "<think>\n\n</think>\n\n", "Assistant:"])
def test_yes_and_no_are_one_token_at_the_start_of_a_turn(lead: str) -> None:
    space = " " if lead.endswith(":") else ""
    for word in ("Yes", "No"):
        assert len(encode(space + word)) == 1
        assert encode(lead + space + word) == encode(lead) + encode(space + word)


def test_digits_stand_alone() -> None:
    assert len(encode("12345")) == 5


@given(st.text(max_size=200))
@settings(max_examples=100)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert TOKENIZER.decode(encode(text)) == text


def test_everyday_english_needs_few_tokens() -> None:
    text = "Janet sells the remainder at the market every day for two dollars, and she keeps three eggs for breakfast."
    assert len(encode(text)) / len(text.split()) < 1.6


def test_the_chat_template_writes_qwen3_turns() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    start = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    block = "<think>\n\n</think>\n\n"
    # As officially: the last reply has a reasoning block, earlier ones have none.
    text = TOKENIZER.apply_chat_template(messages, tokenize=False)
    assert text == f"{start}{block}b<|im_end|>\n"
    longer = TOKENIZER.apply_chat_template([*messages, messages[1], messages[2]], tokenize=False)
    assert longer.startswith(f"{start}b<|im_end|>\n") and longer.endswith(
        f"<|im_start|>assistant\n{block}b<|im_end|>\n"
    )
    open_turn = TOKENIZER.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert open_turn.endswith("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n")
    quiet = TOKENIZER.apply_chat_template(
        messages[:2], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert quiet == open_turn + "<think>\n\n</think>\n\n"


def test_the_chat_template_writes_tools_calls_and_responses() -> None:
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "1 + 2"}}}
    messages = [
        {"role": "user", "content": "What is 1 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
    ]
    text = TOKENIZER.apply_chat_template(messages, tools=[{"type": "function"}], tokenize=False)
    assert '<tools>\n{"type": "function"}\n</tools>' in text
    assert '<|im_start|>assistant\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 2"}}\n' in text
    assert text.endswith("<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n")


def test_the_corpus_repeats_for_a_seed_and_differs_between_seeds() -> None:
    def first(seed: int) -> list[str]:
        stream = corpus.documents(seed)
        return [next(stream) for _ in range(50)]

    assert first(1) == first(1) != first(2)
    assert sum("Plan:" in text for text in first(1)) == 0
