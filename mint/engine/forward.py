"""Datums -> logprobs, losses and gradients, micro-batch by micro-batch.

Axes: _D datums, _T tokens of one datum, _N packed tokens of a micro-batch, _P pairs of a hidden state and a target,
_C pairs of one chunk, _H hidden.

A datum gives its targets already shifted (target_tokens[t] follows model_input[t]); for scoring a plain prompt the
shift happens here, in `prompt_logprobs`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mint.engine.adapters import LoraWeights
from mint.engine.attention import PackedAttention
from mint.engine.batching import MicroBatch, plan_micro_batches
from mint.engine.custom_slopes import check_unread, custom_slopes
from mint.engine.datum_inputs import DatumArrays
from mint.engine.decoder import Decoder
from mint.engine.losses import Config, Loss
from mint.engine.pairs import Pairs
from mint.engine.projection import Projection
from mint.errors import NonFiniteError

_KEPT_BUDGETS = {"cpu": 4.0, "cuda": 1.5}
"""Token budgets' worth of activations that a custom loss may hold; redoing a forward pass adds half to its cost.

On a GPU a budget is half of what was free. On a CPU it is what runs fastest, and there is room for more.
"""


@dataclass(frozen=True)
class ForwardOptions:
    """token_budget: packed tokens of one micro-batch; it bounds the memory of activations."""

    token_budget: int
    share_prefixes: bool = True
    use_checkpointing: bool = False


@dataclass(frozen=True)
class LossResult:
    """Per-datum logprobs of shape (T,), and the summed loss."""

    logprobs: list[np.ndarray]
    loss_sum: float


@dataclass(frozen=True)
class _CustomPass:
    """A micro-batch between the logprobs that a custom loss is given and the slopes that it answers with.

    hidden_NH carries the graph below; None where it was not kept. slopes_PH: see `Projection.logprobs_and_slopes`; None
    where the loss may leave most logprobs alone, or where they are not enough.
    """

    batch: MicroBatch
    pairs: Pairs
    hidden_NH: Tensor | None
    slopes_PH: Tensor | None


class ForwardPass:
    """One adapter on one model, ready to be run over datums. Without an adapter (`lora` None) it is the base model.

    Gradients are added to the `.grad` of the adapter's tensors; the caller owns those buffers.
    """

    def __init__(self, decoder: Decoder, lora: LoraWeights | None, options: ForwardOptions) -> None:
        self._decoder = decoder
        self._lora = lora
        self._options = options

    def _hidden(self, batch: MicroBatch) -> Tensor:
        device = self._decoder.device
        return self._decoder.hidden_states(
            torch.from_numpy(batch.tokens_N).to(device),
            torch.from_numpy(batch.positions_N).to(device),
            PackedAttention(batch, device),
            self._lora,
            use_checkpointing=self._options.use_checkpointing and torch.is_grad_enabled(),
        )

    def _plan(self, sequences: Sequence[np.ndarray]) -> list[MicroBatch]:
        return plan_micro_batches(sequences, self._options.token_budget, self._options.share_prefixes)

    def _projection(self, hidden_NH: Tensor, pairs: Pairs, temperature: float) -> Projection:
        hidden_PH = hidden_NH.detach().index_select(0, pairs.rows_P)
        return Projection(self._decoder, self._lora, hidden_PH, pairs.targets_P, temperature)

    @torch.no_grad()
    def logprobs(
        self, sequences: Sequence[np.ndarray], targets: Sequence[np.ndarray], wanted: Sequence[np.ndarray],
        temperature: float = 1.0,
    ) -> list[np.ndarray]:  # fmt: skip
        """Target logprobs without gradient; NaN at positions that are not wanted."""
        logprobs = [np.full(len(tokens_T), np.nan, dtype=np.float32) for tokens_T in sequences]
        for batch in self._plan(sequences):
            pairs = Pairs.of(batch, targets, wanted, self._decoder.device)
            logprobs_P = self._projection(self._hidden(batch), pairs, temperature).logprobs()
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
        for batch in self._plan([datum.tokens_T for datum in data]):
            pairs = Pairs.of(batch, targets, carrying, self._decoder.device)
            if len(pairs) == 0:
                continue
            inputs = {name: pairs.gather(values) for name, values in inputs_D.items()}

            def chunk_loss(trainer_logprobs_C: Tensor, chunk: slice, inputs: dict[str, Tensor] = inputs) -> Tensor:
                return loss.per_token(trainer_logprobs_C, {name: x[chunk] for name, x in inputs.items()}, config)

            hidden_NH = self._hidden(batch)
            logprobs_P, loss_P, gradient_PH = self._projection(hidden_NH, pairs, temperature).loss_and_gradient(
                chunk_loss
            )
            _check_losses([loss_P], pairs.sequence_P)
            _backward(hidden_NH, pairs.rows_P, gradient_PH)
            pairs.scatter(logprobs_P, logprobs)
            loss_sum += float(loss_P.double().sum())
        return LossResult(logprobs, loss_sum)

    def custom_loss_and_gradient(
        self,
        data: Sequence[DatumArrays],
        loss: Callable[[list[Tensor]], tuple[Tensor, dict[str, float]]],
        reads_weighted_only: bool = False,
    ) -> tuple[LossResult, dict[str, float]]:
        """A loss of all logprobs at once.

        `loss` gets one tensor of shape (T,) per datum, on the CPU, that carries gradient, and returns (scalar loss,
        metrics). With `reads_weighted_only` logprobs are computed where the datums' `weights` are not zero, and are 0.0
        elsewhere.

        Activations are kept until the loss has answered as far as `_KEPT_BUDGETS` goes; micro-batches beyond that run
        forward a second time. InvalidRequest for a loss that reads what it said it would not.
        """
        sequences, targets = [datum.tokens_T for datum in data], [datum.targets_T for datum in data]
        if reads_weighted_only:
            wanted = [np.flatnonzero(datum.inputs["weights"]) for datum in data]
        else:
            wanted = [np.arange(len(tokens_T)) for tokens_T in sequences]
        logprobs = [np.zeros(len(tokens_T), dtype=np.float32) for tokens_T in sequences]
        passes = []
        for batch, is_kept in self._kept_last(self._plan(sequences)):
            pairs = Pairs.of(batch, targets, wanted, self._decoder.device)
            if len(pairs) == 0:
                continue
            with torch.set_grad_enabled(is_kept):
                hidden_NH = self._hidden(batch)
            projection = self._projection(hidden_NH, pairs, 1.0)
            if reads_weighted_only and not projection.trains_unembedding:
                logprobs_P, slopes_PH = projection.logprobs_and_slopes()
            else:
                logprobs_P, slopes_PH = projection.logprobs(), None
            pairs.scatter(logprobs_P, logprobs)
            passes.append(_CustomPass(batch, pairs, hidden_NH if is_kept else None, slopes_PH))
        leaves = [torch.from_numpy(logprobs_T.copy()).requires_grad_() for logprobs_T in logprobs]
        value, metrics = loss(leaves)
        slopes = custom_slopes(value, leaves)
        if reads_weighted_only:
            check_unread(slopes, wanted)
        while passes:  # those kept come first, and each is let go before the next
            self._custom_backward(passes.pop(), targets, slopes)
        return LossResult(logprobs, float(value.detach())), metrics

    def _kept_last(self, plan: Sequence[MicroBatch]) -> list[tuple[MicroBatch, bool]]:
        """Each micro-batch, and whether its activations are kept; those that are not come first."""
        bound = _KEPT_BUDGETS.get(self._decoder.device.type, 1.5) * self._options.token_budget
        ends = np.cumsum([len(batch.tokens_N) for batch in plan])
        num_kept = max(1, int((ends <= bound).sum()))
        return [(batch, False) for batch in plan[num_kept:]] + [(batch, True) for batch in plan[:num_kept]]

    def _custom_backward(
        self, custom_pass: _CustomPass, targets: Sequence[np.ndarray], slopes: Sequence[np.ndarray]
    ) -> None:
        """The gradient of one micro-batch, given the slopes of the loss in all logprobs."""
        batch, pairs, hidden_NH = custom_pass.batch, custom_pass.pairs, custom_pass.hidden_NH
        if custom_pass.slopes_PH is None:
            pairs = Pairs.of(batch, targets, [np.flatnonzero(slope_T) for slope_T in slopes], self._decoder.device)
        slope_P = pairs.gather(slopes)
        if not bool(slope_P.any()):
            return
        if hidden_NH is None:
            hidden_NH = self._hidden(batch)
        if custom_pass.slopes_PH is None:
            gradient_PH = self._projection(hidden_NH, pairs, 1.0).gradient(slope_P)
        else:
            gradient_PH = custom_pass.slopes_PH.mul_(slope_P.unsqueeze(1))
        _backward(hidden_NH, pairs.rows_P, gradient_PH)

    @torch.no_grad()
    def topk_logprobs(self, tokens_T: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k likeliest next tokens after each token but the last, and their logprobs; shapes (T - 1, k)."""
        (batch,) = plan_micro_batches([tokens_T], len(tokens_T), share_prefixes=False)
        hidden_NH = self._hidden(batch)[:-1]
        placeholder = torch.zeros(len(tokens_T) - 1, dtype=torch.long, device=self._decoder.device)
        ids, values = Projection(self._decoder, self._lora, hidden_NH, placeholder).topk(k)
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


def _backward(hidden_NH: Tensor, rows_P: Tensor, gradient_PH: Tensor) -> None:
    """Continue a gradient known at some rows into the graph below."""
    if not hidden_NH.requires_grad:  # only the unembedding carries an adapter
        return
    gradient_NH = torch.zeros_like(hidden_NH).index_add_(0, rows_P, gradient_PH)
    hidden_NH.backward(gradient_NH)


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
