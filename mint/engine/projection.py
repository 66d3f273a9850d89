"""Hidden states -> logprobs of target tokens, in chunks that never keep a (tokens x vocabulary) tensor.

Axes: _P pairs of a hidden state and a target token, _C pairs of one chunk, _H hidden, _V vocabulary,
_R LoRA rank.

A chunk's logits live only while the chunk is worked on. For a built-in loss the gradient is taken on the spot; for a
custom loss, whose gradient is known only after all logprobs are, the chunks that need one are projected again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mint.engine.adapters import LoraWeights
from mint.engine.decoder import Decoder

_CHUNK_FLOATS = 2**25
"""Logits of one chunk: 128 MiB in float32."""

ElementwiseLoss = Callable[[Tensor, slice], Tensor]
"""(trainer_logprobs_C, the pairs they belong to) -> loss_C."""


class Projection:
    """The pairs of one micro-batch. Gradients of the unembedding's adapter are added to its tensors' `.grad`."""

    def __init__(
        self, decoder: Decoder, lora: LoraWeights | None, hidden_PH: Tensor, targets_P: Tensor, temperature: float = 1.0
    ) -> None:
        self._decoder = decoder
        self._lora = lora
        self._hidden_PH = hidden_PH.detach()
        self._targets_P = targets_P
        self._temperature = temperature

    def _chunks(self) -> Iterator[slice]:
        num_pairs = len(self._targets_P)
        size = max(1, _CHUNK_FLOATS // self._decoder.shape.vocab_size)
        for start in range(0, num_pairs, size):
            yield slice(start, min(start + size, num_pairs))

    def _logits(self, chunk: slice) -> tuple[Tensor, Tensor, Tensor]:
        """(logits_CV after temperature, logsumexp_C, target logprobs_C)."""
        logits_CV = self._decoder.logits(self._hidden_PH[chunk], self._lora)
        if self._temperature != 1.0:
            logits_CV /= self._temperature
        logsumexp_C = torch.logsumexp(logits_CV, dim=-1)
        target_C = logits_CV.gather(1, self._targets_P[chunk].unsqueeze(1)).squeeze(1)
        return logits_CV, logsumexp_C, target_C - logsumexp_C

    @torch.no_grad()
    def logprobs(self) -> Tensor:
        """Target logprobs, shape (P,), without gradient."""
        chunks = [self._logits(chunk)[2] for chunk in self._chunks()]
        return torch.cat(chunks) if chunks else self._hidden_PH.new_zeros(0, dtype=torch.float32)

    @torch.no_grad()
    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The k likeliest tokens and their logprobs, shapes (P, k)."""
        ids, values = [], []
        for chunk in self._chunks():
            logits_CV, logsumexp_C, _ = self._logits(chunk)
            top = logits_CV.topk(k, dim=-1)
            ids.append(top.indices)
            values.append(top.values - logsumexp_C.unsqueeze(1))
        return torch.cat(ids), torch.cat(values)

    @torch.no_grad()
    def loss_and_gradient(self, loss: ElementwiseLoss) -> tuple[Tensor, Tensor, Tensor]:
        """(logprobs_P, loss_P, gradient_PH of the summed loss with respect to the hidden states)."""
        gradient_PH = torch.empty_like(self._hidden_PH)
        logprobs, losses = [], []
        for chunk in self._chunks():
            logits_CV, logsumexp_C, logprobs_C = self._logits(chunk)
            with torch.enable_grad():
                leaf_C = logprobs_C.detach().requires_grad_()
                loss_C = loss(leaf_C, chunk)
                (slope_C,) = torch.autograd.grad(loss_C.sum(), leaf_C)
            gradient_PH[chunk] = self._backward_chunk(chunk, logits_CV, logsumexp_C, slope_C)
            logprobs.append(logprobs_C)
            losses.append(loss_C.detach())
        return torch.cat(logprobs), torch.cat(losses), gradient_PH

    @torch.no_grad()
    def gradient(self, slope_P: Tensor) -> Tensor:
        """gradient_PH of the hidden states for a given gradient of the logprobs; chunks are projected again."""
        gradient_PH = torch.empty_like(self._hidden_PH)
        for chunk in self._chunks():
            logits_CV, logsumexp_C, _ = self._logits(chunk)
            gradient_PH[chunk] = self._backward_chunk(chunk, logits_CV, logsumexp_C, slope_P[chunk])
        return gradient_PH

    def _backward_chunk(self, chunk: slice, logits_CV: Tensor, logsumexp_C: Tensor, slope_C: Tensor) -> Tensor:
        """d logprob / d logits = onehot(target) - softmax; the logits' memory is reused for their gradient."""
        scaled_C = slope_C / self._temperature
        gradient_CV = logits_CV.sub_(logsumexp_C.unsqueeze(1)).exp_().mul_(-scaled_C.unsqueeze(1))
        gradient_CV.scatter_add_(1, self._targets_P[chunk].unsqueeze(1), scaled_C.unsqueeze(1))
        hidden_CH = self._hidden_PH[chunk]
        gradient_CV = gradient_CV.to(hidden_CH.dtype)
        gradient_CH = gradient_CV @ self._decoder.unembedding
        if self._lora is not None and self._lora.unembed is not None:
            a, b, scale = self._lora.unembed.a, self._lora.unembed.b, self._lora.scale
            low_CR = hidden_CH @ a.to(hidden_CH.dtype).t()
            low_gradient_CR = (gradient_CV @ b.to(hidden_CH.dtype)) * scale
            if a.grad is not None and b.grad is not None:
                b.grad.add_((gradient_CV.t() @ low_CR).to(b.dtype), alpha=scale)
                a.grad.add_((low_gradient_CR.t() @ hidden_CH).to(a.dtype))
            gradient_CH = gradient_CH + low_gradient_CR @ a.to(hidden_CH.dtype)
        return gradient_CH
