"""Continuous batching: sequences of many requests are decoded together, join at any step and leave when they end.

Axes: _B rows (sequences being decoded), _S slots, _U tiles, _T positions, _N packed prompt tokens, _H hidden,
_V vocabulary.

A prompt is prefilled once, and its keys and values are stored once, for all rows that continue it; what all prompts
begin with is stored once for all. What a row draws depends on its own seed, never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mint.engine.adapters import LoraWeights
from mint.engine.attention import PackedAttention
from mint.engine.base_model import BaseModel
from mint.engine.batching import plan_micro_batches
from mint.engine.row_cache import Prompt, RowCache
from mint.engine.stops import StopRule
from mint.engine.token_draw import DrawOptions, UniformStream, draw_tokens
from mint.errors import NonFiniteError

_REARRANGE_BELOW = 0.75
"""Rows that are left, as a fraction of those that were last arranged, at which they move together."""


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
    """One sequence being decoded: what was sampled so far, and the slot of its own keys and values."""

    job: SampleJob
    prompt: Prompt
    uniforms: UniformStream
    slot: int = -1
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: str | None = None

    @property
    def num_own(self) -> int:
        """Sampled tokens whose keys and values are cached: all but the newest, which is fed next."""
        return max(len(self.tokens) - 1, 0)


class Sampler:
    """Decodes for one fixed set of weights.

    add() queues jobs; each step() prefills what was added, or decodes one token for every row, and returns the jobs
    that are complete. Without `share_prefixes` every row has its own copy of its prompt's keys and values.
    """

    def __init__(
        self, model: BaseModel, lora: LoraWeights | None, prefill_budget: int, max_rows: int,
        share_prefixes: bool = True,
    ) -> None:  # fmt: skip
        self._model = model
        self._lora = model.decoder.adapter_for_sampling(lora) if lora is not None else None
        self._prefill_budget = prefill_budget
        self._max_rows = max_rows
        self._share_prefixes = share_prefixes
        self._waiting: list[SampleJob] = []
        self._rows: list[Row] = []
        self._num_arranged = 0
        self._cache = self._new_cache()

    def _new_cache(self) -> RowCache:
        decoder = self._model.decoder
        return RowCache(decoder.shape, decoder.device, decoder.dtype, self._share_prefixes)

    def add(self, job: SampleJob) -> None:
        """Queue a job; it starts with the next step that has room."""
        self._waiting.append(job)

    @torch.inference_mode()  # Views and writes cost less in it than without gradient: a tenth of a small model's step.
    def step(self) -> list[SampleJob]:
        """Advance every row by one token. Returns the jobs whose last sequence ended."""
        starting = self._take_waiting()
        finished = self._prefill(starting) if starting else self._decode()
        if not self._rows:
            self._cache = self._new_cache()
        return list(dict.fromkeys(row.job for row in finished if row.job.is_done))

    def _take_waiting(self) -> list[SampleJob]:
        """Whole jobs, in order, as long as rows are free; a job larger than that starts when it is alone."""
        starting, num_rows = [], len(self._rows)
        while self._waiting and (num_rows == 0 or num_rows + self._waiting[0].num_samples <= self._max_rows):
            job = self._waiting.pop(0)
            starting.append(job)
            num_rows += job.num_samples
        return starting

    def _prefill(self, jobs: list[SampleJob]) -> list[Row]:
        """Compute the keys and values of prompts that are not cached yet and draw each sequence's first token."""
        prompts = {row.prompt.tokens_T.tobytes(): row.prompt for row in self._rows}
        num_known = len(prompts)
        new_rows = []
        for job in jobs:
            prompt = prompts.setdefault(job.prompt_T.tobytes(), Prompt(job.prompt_T))
            rows = [Row(job, prompt, UniformStream(job.seed, i)) for i in range(job.num_samples)]
            job.sequences.extend(rows)
            new_rows += rows
        new_prompts = list(prompts.values())[num_known:]
        self._rows += new_rows
        self._cache.add_prompts(new_prompts)
        self._arrange()
        if new_prompts:
            self._compute_prompts(new_prompts)
        # Rows are in the order of their slots, so new ones may be anywhere among the others.
        drawing = [row for row in self._rows if not row.tokens]
        hidden_of = {prompt: i for i, prompt in enumerate(dict.fromkeys(row.prompt for row in drawing))}
        logits = self._model.decoder.logits(torch.stack([prompt.hidden_H for prompt in hidden_of]), self._lora)
        index = torch.tensor([hidden_of[row.prompt] for row in drawing], device=logits.device)
        return self._draw(logits.index_select(0, index), drawing)

    def _arrange(self) -> None:
        """Give every row a slot; rows with the same prompt share its tiles."""
        self._rows = self._cache.arrange(self._rows)
        self._num_arranged = len(self._rows)

    def _compute_prompts(self, prompts: Sequence[Prompt]) -> None:
        decoder = self._model.decoder
        device = decoder.device
        plan = plan_micro_batches([prompt.tokens_T for prompt in prompts], self._prefill_budget, self._share_prefixes)
        for batch in plan:
            own = [prompts[i] for i in batch.sequence_ids]
            last_U = torch.tensor([int(index[-1]) for index in batch.token_index], device=device)
            hidden_UH = decoder.hidden_states(
                torch.from_numpy(batch.tokens_N).to(device), torch.from_numpy(batch.positions_N).to(device),
                PackedAttention(batch, device, on_key_value=self._cache.prompt_writer(own, batch.token_index)),
                self._lora, last_U,
            )  # fmt: skip
            for prompt, hidden_H in zip(own, hidden_UH, strict=True):
                prompt.hidden_H = hidden_H

    def _decode(self) -> list[Row]:
        """Feed each row's newest token and draw the next."""
        decoder = self._model.decoder
        num_sampled = np.asarray([len(row.tokens) for row in self._rows])
        prompt_lengths = np.asarray([len(row.prompt.tokens_T) for row in self._rows])
        positions_B = torch.from_numpy(prompt_lengths + num_sampled - 1).to(decoder.device)
        tokens_B = torch.tensor([row.tokens[-1] for row in self._rows], device=decoder.device)
        attend = self._cache.attention(np.asarray([row.slot for row in self._rows]), num_sampled)
        hidden_BH = decoder.hidden_states(tokens_B, positions_B, attend, self._lora)
        return self._draw(decoder.logits(hidden_BH, self._lora), self._rows)

    def _draw(self, logits_BV: Tensor, rows: list[Row]) -> list[Row]:
        """Draw one token for each of `rows`; rows that end leave the batch. Returns those that ended."""
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
        if ended:
            self._rows = [row for row in self._rows if not row.stop_reason]
            # The slots of ended rows are computed in vain until the rest moves together.
            if self._rows and len(self._rows) <= _REARRANGE_BELOW * self._num_arranged:
                self._arrange()
        return ended
