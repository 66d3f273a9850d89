"""Makes the built-in model: corpus, tokenizer, Qwen3 weights. Run: python -m mint.builtin.make_model

A build script: it imports torch and transformers, and the package never imports it. Same seed and machine, same bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from mint.builtin import model_dir
from mint.builtin.corpus import END_OF_TEXT, IM_END, SPECIAL_TOKENS, documents

VOCAB_SIZE = 4096
TOKENIZER_DOCUMENTS = 60_000
# Words with their leading space, single digits, runs of punctuation, line breaks, spaces.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
SHAPE = (16, 160)  # rows, tokens
LONG_SHAPES = ((3, 1024), (2, 2048))
LONG_SHARE = 0.05
CHAT_TEMPLATE = """\
{%- macro shut() %}{{ '<|im_end|>\\n' }}{% endmacro -%}
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' -%}
{%- if tools -%}
{{ '<|im_start|>system\\n' + (system + '\\n\\n' if system else '') }}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor -%}
{{ '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within ' }}
{{- '<tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n' }}
{{- '</tool_call>' + shut() }}
{%- elif system -%}
{{ '<|im_start|>system\\n' + system + shut() }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ shut() }}{% endif -%}
{%- elif not (message.role == 'system' and loop.first) -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and loop.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif -%}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
{{ '\\n' if message.content or not loop.first else '' }}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor -%}
{{ shut() }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif -%}
{%- endif -%}
"""


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most VOCAB_SIZE tokens, special tokens last as in Qwen3."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    stream = documents(seed)
    texts = (_without_special(next(stream)) for _ in range(TOKENIZER_DOCUMENTS))
    bpe.train_from_iterator(texts, trainer)
    bpe.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _without_special(text: str) -> str:
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "")
    return text


def make_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """The shape of the model, about 3.7 million parameters with tied embeddings."""
    return Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.get_vocab()[IM_END],
        pad_token_id=tokenizer.get_vocab()[END_OF_TEXT],
        bos_token_id=None,
    )


def batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of token ids and positions, both (rows, length): documents packed one after the other, the last one cut.

    Positions restart at each document (see `document_mask`); in LONG_SHARE of the batches they run on, so that long
    contexts work too.
    """
    stream = (tokenizer.backend_tokenizer.encode(text).ids for text in documents(seed))
    rng = random.Random(seed)
    while True:
        long = rng.random() < LONG_SHARE
        rows, length = rng.choice(LONG_SHAPES) if long else SHAPE
        packed = [_row(stream, length, restart=not long) for _ in range(rows)]
        yield torch.tensor([ids for ids, _ in packed]), torch.tensor([positions for _, positions in packed])


def _row(stream: Iterator[list[int]], length: int, restart: bool) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    positions: list[int] = []
    while len(ids) < length:
        document = next(stream)
        start = 0 if restart else len(ids)
        ids += document
        positions += range(start, start + len(document))
    return ids[:length], positions[:length]


def document_mask(positions: torch.Tensor) -> torch.Tensor:
    """Boolean (rows, 1, length, length), True where a token may look: back, within its own document."""
    document = (positions == 0).cumsum(dim=1)
    same = document[:, :, None] == document[:, None, :]
    return torch.tril(same)[:, None]


def learning_rate_factor(elapsed: float) -> float:
    """Warm-up over the first 3 % of the run, constant, then linear to zero over the last 40 %; `elapsed` in [0, 1]."""
    return min(1.0, elapsed / 0.03 + 0.05, (1.0 - elapsed) / 0.4)


def make_optimizers(model: Qwen3ForCausalLM, matrix_lr: float, other_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    layers = [p for p in model.model.layers.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if not any(p is q for q in layers)]
    muon = torch.optim.Muon(layers, lr=matrix_lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(rest, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adam]


def train(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, steps: int, out: Path
) -> list[dict[str, float]]:
    """Next-token training for `steps` steps, saving every 100; returns the log that is also in training_log.jsonl."""
    optimizers = make_optimizers(model, matrix_lr=3e-3, other_lr=3e-3)
    base_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    stream = batches(tokenizer, seed + 1)
    log: list[dict[str, float]] = []
    started = time.monotonic()
    tokens = 0
    for step in range(steps):
        ids, positions = next(stream)
        factor = learning_rate_factor(step / steps)
        for optimizer, rates in zip(optimizers, base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inputs = {"input_ids": ids[:, :-1], "position_ids": positions[:, :-1]}
            logits = model(**inputs, attention_mask=document_mask(positions[:, :-1])).logits
        targets = ids[:, 1:].masked_fill(positions[:, 1:] == 0, -100)  # the first token of a document is not predicted
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not math.isfinite(float(norm)):
            raise ArithmeticError(f"gradient norm {float(norm)} at step {step}; lower the learning rate")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        tokens += ids.numel()
        if step % 10 == 0 or step == steps - 1:
            row = {"step": step, "nll": round(loss.item(), 4), "tokens": tokens}
            log.append(row)
            print(json.dumps({**row, "seconds": round(time.monotonic() - started, 1)}), flush=True)
        if step % 100 == 99:
            save(model, out)
    return log


def save(model: Qwen3ForCausalLM, out: Path) -> None:
    """Writes the weights in bfloat16 beside the tokenizer; the model itself stays float32."""
    config = model.config.to_dict()
    copy = Qwen3ForCausalLM(Qwen3Config.from_dict(config)).bfloat16()
    copy.load_state_dict(model.state_dict())
    copy.save_pretrained(out)


def main() -> None:
    """Make tokenizer and weights and write them where the package looks for them, unless --out says otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=model_dir())
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, default=650)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(args.seed)
    tokenizer.save_pretrained(args.out)
    model = Qwen3ForCausalLM(make_config(tokenizer))
    model.generation_config = GenerationConfig(
        eos_token_id=[model.config.eos_token_id, model.config.pad_token_id], pad_token_id=model.config.pad_token_id
    )
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters} parameters, {len(tokenizer)} tokens")
    log = train(model, tokenizer, args.seed, args.steps, args.out)
    save(model, args.out)
    lines = [{"seed": args.seed, "steps": args.steps, "threads": args.threads, "parameters": parameters}, *log]
    (args.out / "training_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
