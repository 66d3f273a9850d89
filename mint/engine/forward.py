"""Datums -> logprobs, losses and gradients, micro-batch by micro-batch.

Axes: _D datums, _T tokens of one datum, _N packed tokens of a micro-batch, _P pairs of a hidden state and a target,
_C pairs of one chunk, _U packed tokens that have pairs, _H hidden.

A datum gives its targets already shifted (target_tokens[t] follows model_input[t]); for scoring a plain prompt the
shift happens here, in `prompt_logprobs`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mint.engine.adapters import LoraWeights
from mint.engine.attention import PackedAttention
from mint.engine.batching import MicroBatch, plan_micro_batches
from mint.engine.datum_inputs import DatumArrays
from mint.engine.decoder import Decoder
from mint.engine.losses import Config, Loss
from mint.engine.pairs import Pairs
from mint.engine.projection import Projection
from mint.errors import NonFiniteError


@dataclass(frozen=True)
class ForwardOptions:
    """token_budget: packed tokens of one micro-batch; it bounds the memory of activations (see `batching`)."""

    token_budget: int
    share_prefixes: bool = True
    use_checkpointing: bool = False


@dataclass(frozen=True)
class LossResult:
    """Per-datum logprobs of shape (T,), and the summed loss."""

    logprobs: list[np.ndarray]
    loss_sum: float


@dataclass(frozen=True)
class HiddenRows:
    """Final hidden states of those packed tokens of a micro-batch that are projected. rows_U: which, ascending."""

    hidden_UH: Tensor
    rows_U: Tensor

    def at(self, rows_P: Tensor) -> Tensor:
        """Where in `hidden_UH` packed tokens are that are among them."""
        return torch.searchsorted(self.rows_U, rows_P)

    def backward(self, rows_P: Tensor, gradient_PH: Tensor) -> None:
        """Continue a gradient known at packed tokens, some of them perhaps twice, into the graph below."""
        if not self.hidden_UH.requires_grad:  # only the unembedding carries an adapter
            return
        gradient_UH = torch.zeros_like(self.hidden_UH).index_add_(0, self.at(rows_P), gradient_PH)
        self.hidden_UH.backward(gradient_UH)


class ForwardPass:
    """One adapter on one model, ready to be run over datums. Without an adapter (`lora` None) it is the base model.

    Gradients are added to the `.grad` of the adapter's tensors; the caller owns those buffers.
    """

    def __init__(self, decoder: Decoder, lora: LoraWeights | None, options: ForwardOptions) -> None:
        self.options = options
        self._decoder = decoder
        self._lora = lora

    @property
    def device(self) -> torch.device:
        return self._decoder.device

    def plan(self, sequences: Sequence[np.ndarray], groups: Sequence[int] | None = None) -> list[MicroBatch]:
        """The micro-batches of sequences; those of a group stay together where they fit."""
        return plan_micro_batches(sequences, self.options.token_budget, self.options.share_prefixes, groups)

    def hidden(self, batch: MicroBatch, rows_P: Tensor) -> HiddenRows:
        """Run a micro-batch through the layers, up to the packed tokens in `rows_P`."""
        rows_U = torch.unique(rows_P)
        hidden_UH = self._decoder.hidden_states(
            torch.from_numpy(batch.tokens_N).to(self.device),
            torch.from_numpy(batch.positions_N).to(self.device),
            PackedAttention(batch, self.device),
            self._lora,
            rows_U,
            use_checkpointing=self.options.use_checkpointing and torch.is_grad_enabled(),
        )
        return HiddenRows(hidden_UH, rows_U)

    def projection(self, hidden: HiddenRows, pairs: Pairs, temperature: float = 1.0) -> Projection:
        """The pairs' hidden states and targets, ready to be projected."""
        hidden_PH = hidden.hidden_UH.detach().index_select(0, hidden.at(pairs.rows_P))
        return Projection(self._decoder, self._lora, hidden_PH, pairs.targets_P, temperature)

    @torch.no_grad()
    def logprobs(
        self, sequences: Sequence[np.ndarray], targets: Sequence[np.ndarray], wanted: Sequence[np.ndarray],
        temperature: float = 1.0,
    ) -> list[np.ndarray]:  # fmt: skip
        """Target logprobs without gradient; NaN at positions that are not wanted."""
        logprobs = [np.full(len(tokens_T), np.nan, dtype=np.float32) for tokens_T in sequences]
        for batch in self.plan(sequences):
            pairs = Pairs.of(batch, targets, wanted, self.device)
            logprobs_P = self.projection(self.hidden(batch, pairs.rows_P), pairs, temperature).logprobs()
            if not bool(torch.isfinite(logprobs_P).all()):
                raise NonFiniteError("a logprob is not finite: the weights are damaged or have diverged")
            pairs.scatter(logprobs_P, logprobs)
        return logprobs

    def loss_only(self, data: Sequence[DatumArrays], loss: Loss, config: Config, temperature: float) -> LossResult:
        """Every token's logprob and the loss, without gradient."""
        sequences = [datum.tokens_T for datum in data]
        everywhere = [np.arange(len(tokens_T)) for tokens_T in sequences]
        logprobs = self.logprobs(sequences, [datum.targets_T for datum in data], everywhere, temperature)
        losses = []
        for datum, logprobs_T in zip(data, logprobs, strict=True):
            inputs = {name: torch.from_numpy(values) for name, values in datum.inputs.items()}
            wanted = loss.carrying(inputs)
            inputs.setdefault("weights", torch.ones(len(logprobs_T)))
            per_token_T = loss.per_token(torch.from_numpy(logprobs_T), inputs, config)
            losses.append(per_token_T[wanted])
        _check_losses(losses, range(len(data)))
        return LossResult(logprobs, float(sum(values.double().sum() for values in losses)))

    def loss_and_gradient(
        self, data: Sequence[DatumArrays], loss: Loss, config: Config, temperature: float
    ) -> LossResult:
        """The loss and its gradient. Logprobs are 0.0 where a token carries no loss: it is not projected there.

        Raises NonFiniteError naming the datums whose loss is not finite.
        """
        carrying = [
            np.flatnonzero(
                loss.carrying({name: torch.from_numpy(values) for name, values in datum.inputs.items()}).numpy()
            )
            for datum in data
        ]
        targets = [datum.targets_T for datum in data]
        inputs_D = {name: [datum.inputs[name] for datum in data] for name in data[0].inputs if name != "weights"}
        inputs_D["weights"] = [
            datum.inputs.get("weights", np.ones(len(datum.tokens_T), dtype=np.float32)) for datum in data
        ]
        logprobs = [np.zeros(len(datum.tokens_T), dtype=np.float32) for datum in data]
        loss_sum = 0.0
        for batch in self.plan([datum.tokens_T for datum in data]):
            pairs = Pairs.of(batch, targets, carrying, self.device)
            if len(pairs) == 0:
                continue
            inputs = {name: pairs.gather(values) for name, values in inputs_D.items()}

            def chunk_loss(trainer_logprobs_C: Tensor, chunk: slice, inputs: dict[str, Tensor] = inputs) -> Tensor:
                return loss.per_token(trainer_logprobs_C, {name: x[chunk] for name, x in inputs.items()}, config)

            hidden = self.hidden(batch, pairs.rows_P)
            logprobs_P, loss_P, gradient_PH = self.projection(hidden, pairs, temperature).loss_and_gradient(chunk_loss)
            _check_losses([loss_P], pairs.sequence_P)
            hidden.backward(pairs.rows_P, gradient_PH)
            pairs.scatter(logprobs_P, logprobs)
            loss_sum += float(loss_P.double().sum())
        return LossResult(logprobs, loss_sum)

    @torch.no_grad()
    def topk_logprobs(self, tokens_T: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k likeliest next tokens after each token but the last, and their logprobs; shapes (T - 1, k)."""
        (batch,) = plan_micro_batches([tokens_T], len(tokens_T), share_prefixes=False)
        rows_P = torch.arange(len(tokens_T) - 1, device=self.device)
        hidden_PH = self.hidden(batch, rows_P).hidden_UH
        ids, values = Projection(self._decoder, self._lora, hidden_PH, torch.zeros_like(rows_P)).topk(k)
        return ids.cpu().numpy().astype(np.int32), values.cpu().numpy()

    def prompt_logprobs(self, prompts: Sequence[np.ndarray], last_n: Sequence[int]) -> list[np.ndarray]:
        """Logprob of each of the last n tokens of each prompt given what precedes it; NaN elsewhere, shape (T,)."""
        wanted = [
            np.arange(max(0, len(tokens_T) - 1 - n), len(tokens_T) - 1)
            for tokens_T, n in zip(prompts, last_n, strict=True)
        ]
        targets = [np.append(tokens_T[1:], 0) for tokens_T in prompts]
        shifted = self.logprobs(prompts, targets, wanted)
        return [np.concatenate([[np.nan], logprobs_T[:-1]]).astype(np.float32) for logprobs_T in shifted]


def _check_losses(losses: Sequence[Tensor], datum_ids: Sequence[int] | np.ndarray) -> None:
    """Raise NonFiniteError naming datums. One id per tensor, or per element of a single tensor."""
    if len(losses) == 1 and len(datum_ids) == len(losses[0]):
        is_bad = ~torch.isfinite(losses[0]).cpu().numpy()
        bad = sorted({int(i) for i in np.asarray(datum_ids)[is_bad]})
    else:
        bad = [int(i) for i, values in zip(datum_ids, losses, strict=True) if not bool(torch.isfinite(values).all())]
    if bad:
        shown = ", ".join(map(str, bad[:8])) + (", ..." if len(bad) > 8 else "")
        raise NonFiniteError(f"the loss of datum {shown} is not finite: nothing was updated")
