"""Hidden states -> logprobs of target tokens, in chunks that never keep a (tokens x vocabulary) tensor.

Axes: _P pairs of a hidden state and a target token, _C pairs of one chunk, _B pairs of one block, _H hidden,
_V vocabulary, _R LoRA rank, _1 an axis of length one.

A chunk is as many pairs as one matrix product takes. Its logits live only while it is worked on, and turn into their
own gradient in place. A block is as many pairs as fit the processor's cache: what is done number by number is done
there, since a chunk would pass through memory once for every operation.

With p the softmax of a pair's logits, d logprob(target) / d logits = onehot(target) - p. The slope of a loss in that
logprob scales the whole row, so it is applied after the products with the weights, where a row is short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mint.engine.adapters import LoraWeights
from mint.engine.decoder import Decoder
from mint.engine.products import ROW_MULTIPLE

# The logits of a chunk have this many bytes, and with a large vocabulary a chunk has at least so many pairs: each chunk
# reads the whole unembedding.
_CHUNK_BYTES = 2**25
_SMALLEST_CHUNK = 192
# A GPU needs larger products to be busy.
_GPU_CHUNK_BYTES = 2**28
# Logits of one block, 1 MiB in float32. A GPU hides its memory by itself: there a chunk is one block.
_BLOCK_FLOATS = 2**18

ElementwiseLoss = Callable[[Tensor, slice], Tensor]
"""(trainer_logprobs_C, the pairs they belong to) -> loss_C."""


class Projection:
    """The pairs of one micro-batch. Gradients of the unembedding's adapter are added to its tensors' `.grad`."""

    def __init__(
        self, decoder: Decoder, lora: LoraWeights | None, hidden_PH: Tensor, targets_P: Tensor, temperature: float = 1.0
    ) -> None:
        self._unembedding_VH = decoder.unembedding
        self._adapter = lora.unembed if lora is not None else None
        self._scale = lora.scale if lora is not None else 0.0
        self._hidden_PH = hidden_PH.detach()
        self._targets_P = targets_P
        self._temperature = temperature

    @property
    def trains_unembedding(self) -> bool:
        """Whether a gradient has more to reach than the hidden states."""
        return self._adapter is not None

    @torch.no_grad()
    def logprobs(self) -> Tensor:
        """Target logprobs, shape (P,), without gradient."""
        logprobs = [torch.empty(0, device=self._hidden_PH.device)]
        for chunk, logits_CV in self._chunks():
            for block, x_BV in self._blocks(logits_CV):
                logsumexp_B1 = _normalised(x_BV)[2]
                logprobs.append((x_BV.gather(1, self._targets(chunk)[block]) - logsumexp_B1).squeeze(1))
        return torch.cat(logprobs)

    @torch.no_grad()
    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The k likeliest tokens and their logprobs, shapes (P, k)."""
        ids, values = [], []
        for _, logits_CV in self._chunks():
            for _, x_BV in self._blocks(logits_CV):
                top = x_BV.topk(k, dim=-1)
                ids.append(top.indices)
                values.append(top.values - _normalised(x_BV)[2])
        return torch.cat(ids), torch.cat(values)

    @torch.no_grad()
    def loss_and_gradient(self, loss: ElementwiseLoss) -> tuple[Tensor, Tensor, Tensor]:
        """(logprobs_P, loss_P, gradient_PH of the summed loss with respect to the hidden states)."""
        gradient_PH = torch.empty_like(self._hidden_PH)
        logprobs, losses = [], []
        for chunk, logits_CV in self._chunks():
            logprobs_C, factor_C1 = self._into_gradient(chunk, logits_CV)
            with torch.enable_grad():
                leaf_C = logprobs_C.detach().requires_grad_()
                loss_C = loss(leaf_C, chunk)
                (slope_C,) = torch.autograd.grad(loss_C.sum(), leaf_C)
            self._backward(chunk, logits_CV, factor_C1 * slope_C.unsqueeze(1), gradient_PH)
            logprobs.append(logprobs_C)
            losses.append(loss_C.detach())
        return torch.cat(logprobs), torch.cat(losses), gradient_PH

    @torch.no_grad()
    def logprobs_and_slopes(self) -> tuple[Tensor, Tensor]:
        """(logprobs_P, slopes_PH of each logprob in its own hidden state): all that a loss of any kind needs later.

        Only for an unembedding without adapter, whose gradient is not made of these.
        """
        assert not self.trains_unembedding, "the gradient of the unembedding's adapter needs the slopes of the loss"
        slopes_PH = torch.empty_like(self._hidden_PH)
        logprobs = [torch.empty(0, device=self._hidden_PH.device)]
        for chunk, logits_CV in self._chunks():
            logprobs_C, factor_C1 = self._into_gradient(chunk, logits_CV)
            self._backward(chunk, logits_CV, factor_C1, slopes_PH)
            logprobs.append(logprobs_C)
        return torch.cat(logprobs), slopes_PH

    @torch.no_grad()
    def gradient(self, slope_P: Tensor) -> Tensor:
        """gradient_PH of the hidden states for a given gradient of the logprobs; chunks are projected again."""
        gradient_PH = torch.empty_like(self._hidden_PH)
        for chunk, logits_CV in self._chunks():
            _, factor_C1 = self._into_gradient(chunk, logits_CV)
            self._backward(chunk, logits_CV, factor_C1 * slope_P[chunk].unsqueeze(1), gradient_PH)
        return gradient_PH

    def _targets(self, chunk: slice) -> Tensor:
        """Shape (C, 1), as `gather` wants it."""
        return self._targets_P[chunk].unsqueeze(1)

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Each chunk and its logits before temperature, in a buffer that the next chunk overwrites."""
        num_pairs, vocab_size = len(self._targets_P), len(self._unembedding_VH)
        num_bytes = _CHUNK_BYTES if self._hidden_PH.device.type == "cpu" else _GPU_CHUNK_BYTES
        largest = max(_SMALLEST_CHUNK, num_bytes // (vocab_size * self._hidden_PH.itemsize))
        num_chunks = -(-num_pairs // largest)
        if num_chunks == 0:
            return
        size = -(-num_pairs // num_chunks)  # all alike: a small last one would cost nearly as much as a full one
        size += -size % ROW_MULTIPLE
        buffer_CV = self._hidden_PH.new_empty(min(size, num_pairs), vocab_size)
        for start in range(0, num_pairs, size):
            chunk = slice(start, min(start + size, num_pairs))
            hidden_CH = self._hidden_PH[chunk]
            logits_CV = torch.mm(hidden_CH, self._unembedding_VH.t(), out=buffer_CV[: len(hidden_CH)])
            if self._adapter is not None:
                low_CR = hidden_CH @ self._adapter.a.to(hidden_CH.dtype).t()
                logits_CV.addmm_(low_CR, self._adapter.b.to(hidden_CH.dtype).t(), alpha=self._scale)
            yield chunk, logits_CV

    def _blocks(self, logits_CV: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Each block of a chunk and its logits after temperature, in float32."""
        num_pairs, vocab_size = logits_CV.shape
        size = num_pairs
        if logits_CV.device.type == "cpu":  # where a row is the work of one thread
            size = max(torch.get_num_threads(), _BLOCK_FLOATS // vocab_size)
        for start in range(0, num_pairs, size):
            block = slice(start, min(start + size, num_pairs))
            logits_BV = logits_CV[block].float()
            yield block, logits_BV / self._temperature if self._temperature != 1.0 else logits_BV

    def _into_gradient(self, chunk: slice, logits_CV: Tensor) -> tuple[Tensor, Tensor]:
        """(logprobs_C, factor_C1); the chunk's logits become d logprob / d logits, up to that factor of the row."""
        logprobs, factors = [], []
        for block, x_BV in self._blocks(logits_CV):
            targets_B1 = self._targets(chunk)[block]
            softmax_BV, total_B1, logsumexp_B1 = _normalised(x_BV)
            logprobs.append(x_BV.gather(1, targets_B1) - logsumexp_B1)
            # In float32, before the weights' own precision: there a likely target's 1 - p would be lost.
            logits_CV[block] = softmax_BV.scatter_add_(1, targets_B1, -total_B1)
            factors.append(-1.0 / (total_B1 * self._temperature))
        return torch.cat(logprobs).squeeze(1), torch.cat(factors)

    def _backward(self, chunk: slice, gradient_CV: Tensor, factor_C1: Tensor, into_PH: Tensor) -> None:
        """Write the chunk's gradient; factor_C1 scales the rows of gradient_CV."""
        hidden_CH = self._hidden_PH[chunk]
        gradient_CH = torch.mm(gradient_CV, self._unembedding_VH, out=into_PH[chunk])
        if self._adapter is not None:
            a, b, scale = self._adapter.a, self._adapter.b, self._scale
            low_gradient_CR = gradient_CV @ b.to(hidden_CH.dtype)
            if a.grad is not None and b.grad is not None:
                low_CR = hidden_CH @ a.to(hidden_CH.dtype).t() * factor_C1
                b.grad.add_((gradient_CV.t() @ low_CR.to(hidden_CH.dtype)).to(b.dtype), alpha=scale)
                scaled_CR = (low_gradient_CR * factor_C1).to(hidden_CH.dtype)
                a.grad.add_((scaled_CR.t() @ hidden_CH).to(a.dtype), alpha=scale)
            gradient_CH.addmm_(low_gradient_CR, a.to(hidden_CH.dtype), alpha=scale)
        gradient_CH.mul_(factor_C1)


def _normalised(x_BV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(softmax_BV, its sums_B1, logsumexp_B1) of float32 logits.

    torch.softmax is one fast pass, but over 150,000 entries the sum inside it is off by 5e-6, always to one side.
    torch.sum adds pairwise: with the softmax's own sum all is exact again. Its largest entry is 1 / (the sum inside).
    """
    softmax_BV = torch.softmax(x_BV, dim=-1)
    total_B1 = softmax_BV.sum(dim=-1, keepdim=True)
    largest_B1 = softmax_BV.amax(dim=-1, keepdim=True)
    return softmax_BV, total_B1, x_BV.amax(dim=-1, keepdim=True) + (total_B1 / largest_B1).log()
