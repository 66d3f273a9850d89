"""The Qwen3 decoder as a function of packed tokens, with LoRA beside the frozen weights.

Axes: _N packed tokens of all sequences (no padding), _H hidden, _Q query heads, _K key/value heads, _D head dimension,
_V vocabulary.

Everything but attention works on packed tokens, so padding costs nothing there. How tokens attend to each other is
the caller's: training, prefill and decoding each pass their own `attend`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mint.engine.adapters import LayerLora, LoraWeights
from mint.engine.decoder_shape import DecoderShape
from mint.errors import InvalidRequest

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


def lora_linear(x: Tensor, weight: Tensor, a: Tensor, bs: tuple[Tensor, ...], scale: float) -> list[Tensor]:
    """x @ weight.T split into len(bs) outputs, each plus scale * (x @ a_i.T) @ b_i.T.

    `a` stacks the down-projections of the fused outputs, shape (len(bs) * rank, in); b_i is (out_i, rank).
    """
    base = F.linear(x, weight)
    low = F.linear(x, a.to(x.dtype))
    bases = base.split([b.shape[0] for b in bs], dim=-1)
    lows = low.split(a.shape[0] // len(bs), dim=-1)
    return [
        torch.addmm(part, part_low, b.to(x.dtype).t(), alpha=scale)
        for part, part_low, b in zip(bases, lows, bs, strict=True)
    ]


class Decoder:
    """Weights of one Qwen3 model on one device, frozen."""

    def __init__(
        self, shape: DecoderShape, layers: list[LayerWeights], embedding: Tensor, unembedding: Tensor,
        final_norm_H: Tensor, rotary: Any, norm_eps: float,
    ) -> None:  # fmt: skip
        self.shape = shape
        self.layers = layers
        self.embedding = embedding
        self.unembedding = unembedding
        self.final_norm_H = final_norm_H
        self._rotary = rotary
        self._norm_eps = norm_eps

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

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

    @classmethod
    def from_transformers(cls, model: Any, device: torch.device) -> Decoder:
        """Take the weights of a `Qwen3ForCausalLM`; the module itself is not kept."""
        config = model.config
        _check_supported(config, model.model.rotary_emb.rope_type)
        model = model.to(device).requires_grad_(False).eval()
        shape = DecoderShape(
            config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.num_key_value_heads,
            config.head_dim, config.intermediate_size, config.vocab_size, config.max_position_embeddings,
        )  # fmt: skip
        layers = []
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            layers.append(
                LayerWeights(
                    input_norm_H=layer.input_layernorm.weight,
                    qkv=torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
                    query_norm_D=attention.q_norm.weight,
                    key_norm_D=attention.k_norm.weight,
                    output=attention.o_proj.weight,
                    mlp_norm_H=layer.post_attention_layernorm.weight,
                    gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
                    down=mlp.down_proj.weight,
                )
            )
        return cls(
            shape, layers, model.model.embed_tokens.weight, model.lm_head.weight, model.model.norm.weight,
            model.model.rotary_emb, config.rms_norm_eps,
        )  # fmt: skip

    def hidden_states(
        self, tokens_N: Tensor, positions_N: Tensor, attend: Attend, lora: LoraWeights | None,
        use_checkpointing: bool = False,
    ) -> Tensor:  # fmt: skip
        """Final normed hidden states, shape (N, H).

        positions_N restart at 0 in each sequence. With `use_checkpointing` a layer's activations are recomputed in the
        backward pass instead of kept.
        """
        hidden_NH = F.embedding(tokens_N, self.embedding)
        cos, sin = self._rotary(hidden_NH.unsqueeze(0), positions_N.unsqueeze(0))
        rotation = (cos.squeeze(0).unsqueeze(1), sin.squeeze(0).unsqueeze(1))  # (N, 1, D)
        for i_layer, weights in enumerate(self.layers):
            layer_lora = lora.layers[i_layer] if lora is not None else None
            scale = lora.scale if lora is not None else 0.0
            args = (i_layer, hidden_NH, rotation, attend, weights, layer_lora, scale)
            layer = partial(checkpoint, self._layer, use_reentrant=False) if use_checkpointing else self._layer
            hidden_NH = layer(*args)
        return self._norm(hidden_NH, self.final_norm_H)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._norm_eps)

    def _layer(
        self, i_layer: int, hidden_NH: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend, weights: LayerWeights,
        lora: LayerLora | None, scale: float,
    ) -> Tensor:  # fmt: skip
        num_tokens, head_dim = hidden_NH.shape[0], self.shape.head_dim
        x = self._norm(hidden_NH, weights.input_norm_H)
        if lora is not None and lora.attention is not None:
            bs = (lora.attention.q_b, lora.attention.k_b, lora.attention.v_b)
            query, key, value = lora_linear(x, weights.qkv, lora.attention.qkv_a, bs, scale)
        else:
            kv_width = self.shape.num_kv_heads * head_dim
            query, key, value = F.linear(x, weights.qkv).split(
                [self.shape.num_query_heads * head_dim, kv_width, kv_width], dim=-1
            )
        query_NQD = rotate(self._norm(query.reshape(num_tokens, -1, head_dim), weights.query_norm_D), rotation)
        key_NKD = rotate(self._norm(key.reshape(num_tokens, -1, head_dim), weights.key_norm_D), rotation)
        attended = attend(i_layer, query_NQD, key_NKD, value.reshape(num_tokens, -1, head_dim)).flatten(1)
        if lora is not None and lora.attention is not None:
            (projected,) = lora_linear(attended, weights.output, lora.attention.o_a, (lora.attention.o_b,), scale)
        else:
            projected = F.linear(attended, weights.output)
        hidden_NH = hidden_NH + projected

        x = self._norm(hidden_NH, weights.mlp_norm_H)
        if lora is not None and lora.mlp is not None:
            gate, up = lora_linear(x, weights.gate_up, lora.mlp.gate_up_a, (lora.mlp.gate_b, lora.mlp.up_b), scale)
            (projected,) = lora_linear(F.silu(gate) * up, weights.down, lora.mlp.down_a, (lora.mlp.down_b,), scale)
        else:
            gate, up = F.linear(x, weights.gate_up).chunk(2, dim=-1)
            projected = F.linear(F.silu(gate) * up, weights.down)
        return hidden_NH + projected

    def logits(self, hidden_NH: Tensor, lora: LoraWeights | None) -> Tensor:
        """Vocabulary logits in float32, shape (N, V). Callers keep N small: V is the large axis."""
        logits_NV = F.linear(hidden_NH, self.unembedding)
        if lora is not None and lora.unembed is not None:
            low = F.linear(hidden_NH, lora.unembed.a.to(hidden_NH.dtype))
            logits_NV = torch.addmm(logits_NV, low, lora.unembed.b.to(hidden_NH.dtype).t(), alpha=lora.scale)
        return logits_NV.float()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding (Su et al., 2021) in the half-split layout that Qwen uses; x is (N, heads, D)."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _check_supported(config: Any, rope_type: str) -> None:
    """InvalidRequest for a Qwen3 variant whose forward pass this one is not."""
    # Where the rotation depends on the longest sequence at hand, a token's logprob would depend on what else is packed
    # with it.
    supported = {
        "attention_bias": (config.attention_bias, (False,)),
        "use_sliding_window": (config.use_sliding_window, (False,)),
        "hidden_act": (config.hidden_act, ("silu",)),
        "rope_type": (rope_type, ("default", "linear", "yarn")),
    }
    for name, (value, known) in supported.items():
        if value not in known:
            raise InvalidRequest(
                f"the model's {name} is {value!r}; the embedded engine computes {' or '.join(map(repr, known))} only"
            )
