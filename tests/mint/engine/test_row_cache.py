"""Attention to shared prompts, against attention of one row at a time to its own keys and values.

Axes: _B rows, _N packed tokens, _T positions, _Q query heads, _K key/value heads, _D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mint.engine.decoder_shape import DecoderShape
from mint.engine.row_cache import Prompt, RowCache

SHAPE = DecoderShape(
    num_layers=2,
    hidden=8,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_hidden=8,
    vocab_size=50,
    context_length=99,
)  # fmt: skip
COMMON = list(range(20))


@dataclass(eq=False)
class SlowRow:
    """A row that keeps everything it sees: per layer a list of (K, D) keys and values."""

    prompt: Prompt
    num_tokens: int
    slot: int = -1
    num_own: int = 0
    keys: list[list[Tensor]] = field(default_factory=lambda: [[], []])
    values: list[list[Tensor]] = field(default_factory=lambda: [[], []])

    def attended(self, i_layer: int, query_QD: Tensor) -> Tensor:
        key_TKD, value_TKD = torch.stack(self.keys[i_layer]), torch.stack(self.values[i_layer])
        group = SHAPE.num_query_heads // SHAPE.num_kv_heads
        key_TQD, value_TQD = (x.repeat_interleave(group, dim=1) for x in (key_TKD, value_TKD))
        scores_QT = torch.einsum("qd,tqd->qt", query_QD, key_TQD) / SHAPE.head_dim**0.5
        return torch.einsum("qt,tqd->qd", scores_QT.softmax(dim=-1), value_TQD)


def token_state(tokens: np.ndarray, layer: int, which: int) -> Tensor:
    """A key or value that depends on the token and its position alone, as rows with one beginning need it."""
    rows = [
        torch.randn(2, 8, generator=torch.Generator().manual_seed(hash((int(token), t, layer, which)) % 2**31))
        for t, token in enumerate(tokens)
    ]
    return torch.stack(rows)


def add(cache: RowCache, rows: list[SlowRow], prompts: list[list[int]], counts: list[int], lengths: list[int]) -> list:
    """Prefill prompts, as the sampler does, and arrange their rows beside those that are there."""
    added = [Prompt(np.asarray(tokens, dtype=np.int64)) for tokens in prompts]
    cache.add_prompts(added)
    new = [
        SlowRow(prompt, length) for prompt, count, length in zip(added, counts, lengths, strict=True)
        for _ in range(count)
    ]  # fmt: skip
    arranged = cache.arrange([*rows, *new])
    ends = np.cumsum([len(tokens) for tokens in prompts])
    index = [np.arange(end - len(tokens), end) for tokens, end in zip(prompts, ends, strict=True)]
    write = cache.prompt_writer(added, index)
    for layer in range(2):
        states = [torch.cat([token_state(prompt.tokens_T, layer, which) for prompt in added]) for which in (0, 1)]
        write(layer, *states)
        for row in new:
            row.keys[layer] = list(token_state(row.prompt.tokens_T, layer, 0))
            row.values[layer] = list(token_state(row.prompt.tokens_T, layer, 1))
    return arranged


def decode(cache: RowCache, rows: list[SlowRow], generator: torch.Generator) -> float:
    """One step; the largest difference from attention row by row."""
    for row in rows:
        row.num_own += 1
    attend = cache.attention(np.asarray([row.slot for row in rows]), np.asarray([row.num_own for row in rows]))
    worst = 0.0
    for layer in range(2):
        query, key, value = (torch.randn(len(rows), heads, 8, generator=generator) for heads in (4, 2, 2))
        for row, own_key, own_value in zip(rows, key, value, strict=True):
            row.keys[layer].append(own_key)
            row.values[layer].append(own_value)
        expected = torch.stack([row.attended(layer, own) for row, own in zip(rows, query, strict=True)])
        worst = max(worst, float((attend(layer, query, key, value) - expected).abs().max()))
    return worst


prompt = st.tuples(st.booleans(), st.integers(1, 12)).map(lambda p: COMMON * p[0] + list(range(30, 30 + p[1])))
joining = st.lists(st.tuples(prompt, st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=5)


@settings(max_examples=25)
@given(arrivals=st.lists(joining, min_size=1, max_size=3), share=st.booleans(), seed=st.integers(0, 999))
def test_rows_that_join_and_leave_see_what_they_would_see_alone(arrivals, share, seed) -> None:
    cache = RowCache(SHAPE, torch.device("cpu"), torch.float32, share)
    generator = torch.Generator().manual_seed(seed)
    rows: list[SlowRow] = []
    for groups in arrivals:
        rows = add(cache, rows, *(list(column) for column in zip(*groups, strict=True)))
        for step in range(4):
            assert decode(cache, rows, generator) < 2e-6
            rows = [row for row in rows if row.num_own < row.num_tokens]
            if not rows:
                return
            if step % 2:
                rows = cache.arrange(rows)


def test_own_positions_grow_past_their_first_room() -> None:
    cache = RowCache(SHAPE, torch.device("cpu"), torch.float32, share=True)
    generator = torch.Generator().manual_seed(0)
    rows = add(cache, [], [[*COMMON, 30], [*COMMON, 31, 32]], [3, 2], [200, 200])
    assert max(decode(cache, rows, generator) for _ in range(70)) < 2e-6


@pytest.mark.parametrize(("share", "most_positions"), [(True, 20 + 8 * 10 + 64 * 16), (False, 64 * 30 + 64 * 16)])
def test_a_shared_prompt_is_stored_once(share: bool, most_positions: int) -> None:
    """8 prompts of 30 tokens, 20 of them common, with 8 rows each, which have room for 16 tokens of their own."""
    cache = RowCache(SHAPE, torch.device("cpu"), torch.float32, share)
    rows = add(cache, [], [[*COMMON, *[30 + i] * 10] for i in range(8)], [8] * 8, [5] * 8)
    decode(cache, rows, torch.Generator().manual_seed(0))
    position_bytes = 2 * SHAPE.num_layers * SHAPE.num_kv_heads * SHAPE.head_dim * 4
    assert cache.num_bytes == most_positions * position_bytes


def test_the_longest_row_leaves_no_room_behind() -> None:
    """Else one long prompt would slow all that comes after it down, for as long as the sampler is busy."""
    cache = RowCache(SHAPE, torch.device("cpu"), torch.float32, share=True)
    generator = torch.Generator().manual_seed(0)
    rows = add(cache, [], [[30] * 90, [31] * 5], [1, 1], [200, 200])
    for _ in range(20):
        decode(cache, rows, generator)
    before = cache.num_bytes
    rows = add(cache, rows[1:], [[32] * 5], [1], [200])
    assert cache.num_bytes < before / 3
    assert decode(cache, rows, generator) < 2e-6
