"""Continuous batching: sequences of many requests are decoded together, join at any step and leave when they end.

Axes: _B rows (sequences being decoded), _T cached positions, _Q query heads, _K key/value heads, _D head
dimension, _N packed prompt tokens, _H hidden, _V vocabulary.

A prompt is prefilled once per request, however many samples it asks for, and once for all waiting requests with the
same prompt. What a row draws depends on its own seed, never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mint.engine.adapters import LoraWeights
from mint.engine.attention import PackedAttention
from mint.engine.base_model import BaseModel
from mint.engine.batching import plan_micro_batches
from mint.engine.kv_cache import KVCache
from mint.engine.stops import StopRule
from mint.engine.token_draw import DrawOptions, UniformStream, draw_tokens
from mint.errors import NonFiniteError


@dataclass(eq=False)
class SampleJob:
    """A request: `num_samples` sequences after one prompt. `sequences` fills up as they end, in order of start."""

    prompt_T: np.ndarray
    num_samples: int
    max_tokens: int
    draw: DrawOptions
    stop: StopRule
    seed: int
    sequences: list[Row] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return len(self.sequences) == self.num_samples and all(row.stop_reason for row in self.sequences)


@dataclass(eq=False)
class Row:
    """One sequence being decoded: what was sampled so far."""

    job: SampleJob
    uniforms: UniformStream
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: str | None = None

    @property
    def num_cached(self) -> int:
        """Positions in the cache: the prompt and every sampled token but the newest, which is fed next."""
        return len(self.job.prompt_T) + len(self.tokens) - 1


class Sampler:
    """Decodes for one fixed set of weights.

    add() queues jobs; each step() prefills what was added, decodes one token for every row, and returns the jobs that
    are complete.
    """

    def __init__(self, model: BaseModel, lora: LoraWeights | None, prefill_budget: int, max_rows: int) -> None:
        self._model = model
        self._lora = lora
        self._prefill_budget = prefill_budget
        self._max_rows = max_rows
        self._waiting: list[SampleJob] = []
        self._rows: list[Row] = []
        self._cache = KVCache(model.decoder.shape, model.decoder.device, model.decoder.dtype)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._rows

    def add(self, job: SampleJob) -> None:
        """Queue a job; it starts with the next step that has room."""
        self._waiting.append(job)

    @torch.no_grad()
    def step(self) -> list[SampleJob]:
        """Advance every row by one token. Returns the jobs whose last sequence ended."""
        starting = self._take_waiting()
        finished = self._prefill(starting) if starting else self._decode()
        jobs = list(dict.fromkeys(row.job for row in finished if row.job.is_done))
        if self.is_idle:
            self._cache.clear()
        return jobs

    def _take_waiting(self) -> list[SampleJob]:
        """Whole jobs, in order, as long as rows are free; a job larger than that starts when it is alone."""
        starting, num_rows = [], len(self._rows)
        while self._waiting and (num_rows == 0 or num_rows + self._waiting[0].num_samples <= self._max_rows):
            job = self._waiting.pop(0)
            starting.append(job)
            num_rows += job.num_samples
        return starting

    def _prefill(self, jobs: list[SampleJob]) -> list[Row]:
        """Compute the prompts' keys and values and draw each sequence's first token."""
        unique: dict[bytes, int] = {}
        prompt_of = [unique.setdefault(job.prompt_T.tobytes(), len(unique)) for job in jobs]
        prompts = [np.frombuffer(key, dtype=np.int64) for key in unique]
        keys, values, last_hidden = self._prompt_states(prompts)

        total_rows = len(self._rows) + sum(job.num_samples for job in jobs)
        self._cache.reserve(total_rows, max(len(prompt) for prompt in prompts) + 1)
        new_rows, hidden_of = [], []
        for job, i_prompt in zip(jobs, prompt_of, strict=True):
            self._cache.append_rows(keys[i_prompt], values[i_prompt], job.num_samples)
            rows = [Row(job, UniformStream(job.seed, i)) for i in range(job.num_samples)]
            job.sequences.extend(rows)
            new_rows += rows
            hidden_of += [i_prompt] * job.num_samples
        first_row = len(self._rows)
        self._rows += new_rows
        logits = self._model.decoder.logits(torch.stack(last_hidden), self._lora)
        return self._draw(logits[torch.tensor(hidden_of, device=logits.device)], first_row)

    def _prompt_states(
        self, prompts: Sequence[np.ndarray]
    ) -> tuple[list[list[Tensor]], list[list[Tensor]], list[Tensor]]:
        """Per prompt: keys and values of each layer, (T, K, D), and the hidden state of its last token."""
        decoder = self._model.decoder
        device = decoder.device
        keys: list[list[Tensor]] = [[] for _ in prompts]
        values: list[list[Tensor]] = [[] for _ in prompts]
        last_hidden: list[Tensor] = [torch.empty(0)] * len(prompts)
        for batch in plan_micro_batches(prompts, self._prefill_budget):
            index = [torch.from_numpy(index).to(device) for index in batch.token_index]

            def keep(
                i_layer: int, key_NKD: Tensor, value_NKD: Tensor,
                ids: list[int] = batch.sequence_ids, index: list[Tensor] = index,
            ) -> None:  # fmt: skip
                for i, own in zip(ids, index, strict=True):
                    keys[i].append(key_NKD.index_select(0, own))
                    values[i].append(value_NKD.index_select(0, own))

            hidden_NH = decoder.hidden_states(
                torch.from_numpy(batch.tokens_N).to(device), torch.from_numpy(batch.positions_N).to(device),
                PackedAttention(batch, device, on_key_value=keep), self._lora,
            )  # fmt: skip
            for i, own in zip(batch.sequence_ids, index, strict=True):
                last_hidden[i] = hidden_NH[own[-1]]
        return keys, values, last_hidden

    def _decode(self) -> list[Row]:
        """Feed each row's newest token and draw the next."""
        decoder = self._model.decoder
        lengths = np.asarray([row.num_cached for row in self._rows])
        width = int(lengths.max()) + 1
        self._cache.reserve(len(self._rows), width)
        device = decoder.device
        lengths_B = torch.from_numpy(lengths).to(device)
        tokens_B = torch.tensor([row.tokens[-1] for row in self._rows], device=device)
        is_cached_BT = torch.arange(width, device=device)[None, :] <= lengths_B[:, None]
        attend = _DecodeAttention(self._cache, lengths_B, is_cached_BT)
        hidden_BH = decoder.hidden_states(tokens_B, lengths_B, attend, self._lora)
        return self._draw(decoder.logits(hidden_BH, self._lora), first_row=0)

    def _draw(self, logits_BV: Tensor, first_row: int) -> list[Row]:
        """Draw for the rows from `first_row` on; rows that end leave the batch. Returns those that ended."""
        rows = self._rows[first_row:]
        uniforms = [row.uniforms.next() for row in rows]
        tokens_B, logprobs_B = draw_tokens(logits_BV, [row.job.draw for row in rows], uniforms)
        if not bool(torch.isfinite(logprobs_B).all()):
            raise NonFiniteError("the model's logits are not finite: its weights are damaged or have diverged")
        ended = []
        for row, token, logprob in zip(rows, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            if row.job.stop.is_met(row.tokens, self._model.tokenizer):
                row.stop_reason = "stop"
            elif len(row.tokens) == row.job.max_tokens:
                row.stop_reason = "length"
            if row.stop_reason:
                ended.append(row)
        for i in range(len(self._rows) - 1, -1, -1):
            if self._rows[i].stop_reason:
                last = self._rows[-1]
                self._cache.drop_row(i, last.num_cached)
                self._rows[i] = last
                self._rows.pop()
        return ended


class _DecodeAttention:
    """`attend` for one new token per row: store its key and value, look at everything cached for the row."""

    def __init__(self, cache: KVCache, lengths_B: Tensor, is_cached_BT: Tensor) -> None:
        self._cache = cache
        self._lengths_B = lengths_B
        self._rows_B = torch.arange(len(lengths_B), device=lengths_B.device)
        self._is_visible = is_cached_BT[:, None, None, :]
        self._width = is_cached_BT.shape[1]

    def __call__(self, i_layer: int, query_BQD: Tensor, key_BKD: Tensor, value_BKD: Tensor) -> Tensor:
        keys, values = self._cache.keys[i_layer], self._cache.values[i_layer]
        keys[self._rows_B, :, self._lengths_B] = key_BKD
        values[self._rows_B, :, self._lengths_B] = value_BKD
        num_rows, num_kv_heads, head_dim = key_BKD.shape
        # Query heads that share a key/value head become its query positions, so nothing is repeated.
        query = query_BQD.view(num_rows, num_kv_heads, -1, head_dim)
        attended = F.scaled_dot_product_attention(
            query, keys[:num_rows, :, : self._width], values[:num_rows, :, : self._width], attn_mask=self._is_visible
        )
        return attended.reshape(num_rows, -1, head_dim)
