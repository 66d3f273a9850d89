"""The Qwen3 decoder as a function of packed tokens, with LoRA beside the frozen weights.

Axes: _N packed tokens of all sequences (no padding), _H hidden, _Q query heads, _K key/value heads, _D head dimension,
_V vocabulary, _U tokens whose hidden states are wanted.

Everything but attention works on packed tokens, so padding costs nothing there. How tokens attend to each other is
the caller's: training, prefill and decoding each pass their own `attend`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mint.engine.adapters import LayerLora, LoraWeights
from mint.engine.decoder_shape import DecoderShape
from mint.engine.layer_ops import LayerOps, LowRank, Rotation
from mint.engine.rotary import Rotary

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer index, query_NQD, key_NKD, value_NKD) -> attended_NQD."""


@dataclass(frozen=True)
class LayerWeights:
    """Frozen weights of one layer; projections that read the same input are fused."""

    input_norm_H: Tensor
    qkv: Tensor  # ((Q + 2K) * D, H)
    query_norm_D: Tensor
    key_norm_D: Tensor
    output: Tensor  # (H, Q * D)
    mlp_norm_H: Tensor
    gate_up: Tensor  # (2 * M, H)
    down: Tensor  # (H, M)


_NO_LORA = LayerLora(None, None, None, None)


class Decoder:
    """Weights of one Qwen3 model on one device, frozen."""

    def __init__(
        self, shape: DecoderShape, layers: list[LayerWeights], embedding: Tensor, unembedding: Tensor,
        final_norm_H: Tensor, rotary: Rotary, norm_eps: float, ops: LayerOps,
    ) -> None:  # fmt: skip
        self.shape = shape
        self.layers = layers
        self.embedding = embedding
        self.unembedding = unembedding
        self.final_norm_H = final_norm_H
        self._rotary = rotary
        self._norm_eps = norm_eps
        self._ops = ops

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def remakes(self) -> bool:
        """Whether the backward pass computes some activations again instead of keeping them."""
        return self._ops.remakes

    @property
    def is_tied(self) -> bool:
        """Whether input and output embedding are one matrix."""
        return self.unembedding.data_ptr() == self.embedding.data_ptr()

    @property
    def num_parameters(self) -> int:
        """Frozen weights, a tied embedding counted once."""
        tensors = [self.embedding, self.final_norm_H, *([] if self.is_tied else [self.unembedding])]
        tensors += [getattr(layer, field.name) for layer in self.layers for field in fields(layer)]
        return sum(tensor.numel() for tensor in tensors)

    def adapter_for_sampling(self, lora: LoraWeights) -> LoraWeights:
        """The same adapter, faster in many small passes without gradient and of no use in others."""
        return lora.mapped(lambda low_rank: self._ops.for_sampling(low_rank, self.dtype))

    def hidden_states(
        self, tokens_N: Tensor, positions_N: Tensor, attend: Attend, lora: LoraWeights | None,
        rows_U: Tensor | None = None, use_checkpointing: bool = False,
    ) -> Tensor:  # fmt: skip
        """Final normed hidden states, shape (N, H); with rows_U of those tokens alone, shape (U, H).

        What follows the last layer's attention is computed for no other token. positions_N restart at 0 in each
        sequence. With `use_checkpointing` a layer's activations are recomputed in the backward pass instead of kept.
        """
        hidden_NH = F.embedding(tokens_N, self.embedding)
        rotation = self._rotary(positions_N, hidden_NH.dtype)
        ops = self._ops.for_rows(len(tokens_N), use_checkpointing)
        for i_layer, weights in enumerate(self.layers):
            layer_lora = lora.layers[i_layer] if lora is not None else None
            wanted_U = rows_U if i_layer == len(self.layers) - 1 else None
            args = (ops, i_layer, hidden_NH, rotation, attend, weights, layer_lora, wanted_U)
            layer = partial(checkpoint, self._layer, use_reentrant=False) if use_checkpointing else self._layer
            hidden_NH = layer(*args)
        return ops.norm(hidden_NH, self.final_norm_H, self._norm_eps)

    def _layer(
        self, ops: LayerOps, i_layer: int, hidden_NH: Tensor, rotation: Rotation, attend: Attend,
        weights: LayerWeights, lora: LayerLora | None, rows_U: Tensor | None,
    ) -> Tensor:  # fmt: skip
        eps = self._norm_eps
        own = lora or _NO_LORA
        qkv = ops.norm_linear(hidden_NH, weights.input_norm_H, eps, weights.qkv, own.qkv)
        attended = ops.attended(
            qkv, weights.query_norm_D, weights.key_norm_D, self.shape.num_query_heads, rotation, eps,
            partial(attend, i_layer),
        ).flatten(1)  # fmt: skip
        if rows_U is not None:
            hidden_NH, attended = hidden_NH.index_select(0, rows_U), attended.index_select(0, rows_U)
        hidden_NH = hidden_NH + ops.linear(attended, weights.output, own.output)
        gate_up = ops.norm_linear(hidden_NH, weights.mlp_norm_H, eps, weights.gate_up, own.gate_up)
        return hidden_NH + ops.gated_linear(gate_up, weights.down, own.down)

    def logits(self, hidden_NH: Tensor, lora: LoraWeights | None) -> Tensor:
        """Vocabulary logits in float32, shape (N, V). Callers keep N small: V is the large axis."""
        own = lora.unembed if lora is not None else None
        low_rank = LowRank(own.a, (own.b,), lora.scale) if own is not None and lora is not None else None
        return self._ops.for_rows(len(hidden_NH)).linear(hidden_NH, self.unembedding, low_rank).float()
