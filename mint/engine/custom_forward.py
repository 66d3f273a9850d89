"""A loss of many logprobs at once: forward passes, the loss's answer, backward passes.

Axes: _T tokens of one datum, _P pairs of a hidden state and a target, _H hidden.

The loss can say that it reads some tokens only, and that it couples some datums only (`mint.custom_losses`). Without
the second its answer waits for all logprobs, and what the backward pass needs is kept or computed twice. With it,
micro-batches whose datums are coupled with no others are done one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mint.engine.batching import MicroBatch
from mint.engine.coupling import connected
from mint.engine.custom_slopes import check_uncoupled, check_unread, custom_slopes
from mint.engine.datum_inputs import DatumArrays
from mint.engine.forward import ForwardPass, HiddenRows, LossResult
from mint.engine.pairs import Pairs

_KEPT_BUDGETS = {"cpu": 4.0, "cuda": 1.5}
"""Token budgets' worth of activations that may be kept; redoing a forward pass adds half to its cost.

On a GPU a budget is half of what was free. On a CPU it is what runs fastest, and there is room for more.
"""

CustomLoss = Callable[[list[Tensor]], tuple[Tensor, dict[str, float]]]
"""One tensor of shape (T,) per datum, on the CPU -> (scalar loss, metrics)."""


@dataclass(frozen=True)
class Declared:
    """What a custom loss says of itself.

    reads_weighted_only: logprobs are computed where the datums' `weights` are not zero, and are 0.0 elsewhere.
    groups: the group of each datum, with whose others alone it is coupled; None where all may be.
    """

    reads_weighted_only: bool = False
    groups: Sequence[int] | None = None


@dataclass(frozen=True)
class _Pass:
    """A micro-batch between the logprobs that the loss is given and the slopes that it answers with.

    hidden carries the graph below; None where it was not kept. slopes_PH: see `Projection.logprobs_and_slopes`; None
    where the loss may leave most logprobs alone, or where they are not enough.
    """

    batch: MicroBatch
    pairs: Pairs
    hidden: HiddenRows | None
    slopes_PH: Tensor | None


class CustomRun:
    """One request: the logprobs it computes, and the slopes that the loss answers with."""

    def __init__(self, forward: ForwardPass, data: Sequence[DatumArrays], declared: Declared) -> None:
        self._forward = forward
        self._declared = declared
        self._tokens = [datum.tokens_T for datum in data]
        self._targets = [datum.targets_T for datum in data]
        if declared.reads_weighted_only:
            self._wanted = [np.flatnonzero(datum.inputs["weights"]) for datum in data]
        else:
            self._wanted = [np.arange(len(tokens_T)) for tokens_T in self._tokens]
        self._logprobs = [np.zeros(len(tokens_T), dtype=np.float32) for tokens_T in self._tokens]
        self._slopes = [np.zeros(len(tokens_T), dtype=np.float32) for tokens_T in self._tokens]

    def loss_and_gradient(self, loss: CustomLoss) -> tuple[LossResult, dict[str, float]]:
        """The loss and its metrics; its gradient is added to the adapter's.

        `loss` is called once for each run of coupled micro-batches, where logprobs that are not known yet are 0.0. The
        last call has them all: its value and metrics count. InvalidRequest for a loss that breaks what it declared.
        """
        groups = self._declared.groups
        plan = self._forward.plan(self._tokens, groups)
        *earlier, last = connected(plan, lambda batch: [groups[i] if groups else 0 for i in batch.sequence_ids])
        for batches in earlier:
            self._do(batches, loss, _datums_of(batches))
        value, metrics = self._do(last, loss, range(len(self._tokens)))
        return LossResult(self._logprobs, float(value.detach())), metrics

    def _do(
        self, batches: Sequence[MicroBatch], loss: CustomLoss, asked: Sequence[int]
    ) -> tuple[Tensor, dict[str, float]]:
        """Forward, loss and backward for some micro-batches; `asked` are the datums whose slopes are looked at."""
        passes = [kept for batch, is_kept in self._kept_last(batches) if (kept := self._logprobs_of(batch, is_kept))]
        leaves = [torch.from_numpy(logprobs_T.copy()) for logprobs_T in self._logprobs]
        for i in asked:
            leaves[i].requires_grad_()
        value, metrics = loss(leaves)
        slopes = custom_slopes(value, {i: leaves[i] for i in asked}, is_partial=len(asked) < len(leaves))
        own = _datums_of(batches)
        check_uncoupled({i: self._slopes[i] for i in set(asked) - set(own)}, slopes)
        for i in own:
            self._slopes[i] = slopes[i]
            if self._declared.reads_weighted_only:
                check_unread(i, slopes[i], self._wanted[i])
        while passes:  # those kept come first, and each is let go before the next
            self._backward(passes.pop())
        return value, metrics

    def _kept_last(self, batches: Sequence[MicroBatch]) -> list[tuple[MicroBatch, bool]]:
        """Each micro-batch, and whether its activations are kept; those that are not come first."""
        bound = _KEPT_BUDGETS.get(self._forward.device.type, 1.5) * self._forward.options.token_budget
        ends = np.cumsum([len(batch.tokens_N) for batch in batches])
        num_kept = max(1, int((ends <= bound).sum()))
        return [(batch, False) for batch in batches[num_kept:]] + [(batch, True) for batch in batches[:num_kept]]

    def _logprobs_of(self, batch: MicroBatch, is_kept: bool) -> _Pass | None:
        """Fill in the logprobs of a micro-batch; None where nothing of it is wanted."""
        pairs = Pairs.of(batch, self._targets, self._wanted, self._forward.device)
        if len(pairs) == 0:
            return None
        with torch.set_grad_enabled(is_kept):
            hidden = self._forward.hidden(batch, pairs.rows_P)
        projection = self._forward.projection(hidden, pairs)
        if self._declared.reads_weighted_only and not projection.trains_unembedding:
            logprobs_P, slopes_PH = projection.logprobs_and_slopes()
        else:
            logprobs_P, slopes_PH = projection.logprobs(), None
        pairs.scatter(logprobs_P, self._logprobs)
        return _Pass(batch, pairs, hidden if is_kept else None, slopes_PH)

    def _backward(self, kept: _Pass) -> None:
        """The gradient of one micro-batch, given the slopes of the loss in its logprobs."""
        pairs, hidden = kept.pairs, kept.hidden
        if kept.slopes_PH is None:
            asked = [np.flatnonzero(slope_T) for slope_T in self._slopes]
            pairs = Pairs.of(kept.batch, self._targets, asked, self._forward.device)
        slope_P = pairs.gather(self._slopes)
        if not bool(slope_P.any()):
            return
        if hidden is None:
            hidden = self._forward.hidden(kept.batch, pairs.rows_P)
        if kept.slopes_PH is None:
            gradient_PH = self._forward.projection(hidden, pairs).gradient(slope_P)
        else:
            gradient_PH = kept.slopes_PH.mul_(slope_P.unsqueeze(1))
        hidden.backward(pairs.rows_P, gradient_PH)


def _datums_of(batches: Sequence[MicroBatch]) -> list[int]:
    return [i for batch in batches for i in batch.sequence_ids]
