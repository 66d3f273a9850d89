"""LoRA adapters (Hu et al., 2021, arXiv:2106.09685), each in one flat float32 buffer, many on one frozen base.

Axes: _F all parameters of one adapter, flat.

One buffer makes the optimizer a handful of vector operations and a snapshot free: an optimizer step writes a new
buffer, so whoever holds the old one keeps exactly the weights it was made with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mint.checkpoint_manifest import LoraShape
from mint.engine.decoder_shape import DecoderShape
from mint.engine.layer_ops import LowRank
from mint.errors import CheckpointError, InvalidRequest
from mint.types import LoraConfig

LORA_ALPHA = 32
"""The update is scaled by LORA_ALPHA / rank, so one learning rate suits every rank."""

_ATTENTION_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP_MODULES = ("gate_proj", "up_proj", "down_proj")


def lora_shape(config: LoraConfig) -> LoraShape:
    """The shape of a new adapter; InvalidRequest where there is nothing to train."""
    if config.rank < 1:
        raise InvalidRequest(f"rank={config.rank}: a LoRA adapter needs rank >= 1")
    if not (config.train_attn or config.train_mlp or config.train_unembed):
        raise InvalidRequest("train_attn, train_mlp and train_unembed are all False: switch at least one on")
    return LoraShape(config.rank, LORA_ALPHA, config.train_attn, config.train_mlp, config.train_unembed)


def target_modules(lora: LoraShape) -> list[str]:
    """Names of the adapted modules in PEFT's terms."""
    attention = _ATTENTION_MODULES if lora.train_attn else ()
    mlp = _MLP_MODULES if lora.train_mlp else ()
    return [*attention, *mlp, *(("lm_head",) if lora.train_unembed else ())]


@dataclass(frozen=True)
class UnembedLora:
    """Adapter of the output projection; the input embedding stays frozen also where the two are tied."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class LayerLora:
    """Adapters of one layer's four linear maps, those that read the same input fused; None where switched off."""

    qkv: LowRank | None
    output: LowRank | None
    gate_up: LowRank | None
    down: LowRank | None


@dataclass(frozen=True)
class LoraWeights:
    """One adapter as the decoder reads it: views into one flat buffer."""

    scale: float
    layers: list[LayerLora]
    unembed: UnembedLora | None

    def mapped(self, change: Callable[[LowRank], LowRank]) -> LoraWeights:
        """The adapter whose layers' maps are what `change` makes of these."""

        def changed(low_rank: LowRank | None) -> LowRank | None:
            return None if low_rank is None else change(low_rank)

        layers = [
            LayerLora(changed(layer.qkv), changed(layer.output), changed(layer.gate_up), changed(layer.down))
            for layer in self.layers
        ]
        return LoraWeights(self.scale, layers, self.unembed)


@dataclass(frozen=True)
class _Piece:
    """A tensor of the flat buffer: where it belongs, its shape, and the PEFT tensors it stacks along axis 0."""

    layer: int | None
    field: str
    shape: tuple[int, int]
    peft_modules: tuple[str, ...]

    @property
    def is_down_projection(self) -> bool:
        return self.field.endswith("a")

    def peft_names(self) -> list[str]:
        matrix = "lora_A" if self.is_down_projection else "lora_B"
        return [f"base_model.model.{module}.{matrix}.weight" for module in self.peft_modules]


class AdapterLayout:
    """How an adapter of one shape on one model lies in its flat buffer."""

    def __init__(self, model: DecoderShape, lora: LoraShape) -> None:
        self.lora = lora
        self._num_layers = model.num_layers
        self._pieces = list(_pieces(model, lora))
        self._sizes = [piece.shape[0] * piece.shape[1] for piece in self._pieces]
        self.size = sum(self._sizes)

    def initial(self, seed: int) -> Tensor:
        """Fresh parameters, shape (F,): uniform down-projections as PEFT draws them, zero up-projections."""
        generator = np.random.Generator(np.random.Philox(seed))
        flat_F = torch.zeros(self.size)
        for piece, view in zip(self._pieces, self.views(flat_F), strict=True):
            if piece.is_down_projection:
                bound = 1 / math.sqrt(piece.shape[1])
                view.copy_(torch.from_numpy(generator.uniform(-bound, bound, piece.shape).astype(np.float32)))
        return flat_F

    def views(self, flat_F: Tensor) -> list[Tensor]:
        """The pieces of a flat buffer, sharing its storage."""
        parts = flat_F.split(self._sizes)
        return [part.view(piece.shape) for piece, part in zip(self._pieces, parts, strict=True)]

    def weights(self, views: list[Tensor]) -> LoraWeights:
        """The same pieces under the names that the decoder uses."""
        scale = self.lora.alpha / self.lora.rank
        layers: list[dict[str, Tensor]] = [{} for _ in range(self._num_layers)]
        unembed: dict[str, Tensor] = {}
        for piece, view in zip(self._pieces, views, strict=True):
            target = unembed if piece.layer is None else layers[piece.layer]
            target[piece.field] = view

        def low_rank(layer: dict[str, Tensor], a: str, *bs: str) -> LowRank | None:
            return LowRank(layer[a], tuple(layer[b] for b in bs), scale) if a in layer else None

        return LoraWeights(
            scale=scale,
            layers=[
                LayerLora(
                    qkv=low_rank(layer, "qkv_a", "q_b", "k_b", "v_b"),
                    output=low_rank(layer, "o_a", "o_b"),
                    gate_up=low_rank(layer, "gate_up_a", "gate_b", "up_b"),
                    down=low_rank(layer, "down_a", "down_b"),
                )
                for layer in layers
            ],
            unembed=UnembedLora(**unembed) if unembed else None,
        )

    def to_peft(self, flat_F: Tensor) -> dict[str, Tensor]:
        """The adapter as PEFT names and splits it, on the CPU."""
        tensors: dict[str, Tensor] = {}
        for piece, view in zip(self._pieces, self.views(flat_F.detach().cpu()), strict=True):
            parts = view.chunk(len(piece.peft_modules), dim=0)
            tensors |= {name: part.contiguous() for name, part in zip(piece.peft_names(), parts, strict=True)}
        return tensors

    def from_peft(self, tensors: dict[str, Tensor]) -> Tensor:
        """The flat buffer of an adapter in PEFT's form; CheckpointError where a tensor is missing or misshapen."""
        wanted = {name for piece in self._pieces for name in piece.peft_names()}
        if wanted != set(tensors):
            missing, extra = sorted(wanted - set(tensors)), sorted(set(tensors) - wanted)
            raise CheckpointError(
                f"the adapter does not fit this model and LoRA shape: {len(missing)} tensors missing "
                f"{missing[:2]}, {len(extra)} unexpected {extra[:2]}"
            )
        flat_F = torch.empty(self.size)
        for piece, view in zip(self._pieces, self.views(flat_F), strict=True):
            stacked = torch.cat([tensors[name] for name in piece.peft_names()])
            if stacked.shape != view.shape:
                raise CheckpointError(
                    f"{piece.peft_names()[0]}: shape {tuple(stacked.shape)} in the checkpoint, "
                    f"{piece.shape} in this model"
                )
            view.copy_(stacked)
        return flat_F

    def peft_config(self, base_model: str) -> dict[str, Any]:
        """What PEFT reads from adapter_config.json."""
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_model,
            "r": self.lora.rank,
            "lora_alpha": self.lora.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": target_modules(self.lora),
            "inference_mode": True,
        }


@dataclass(frozen=True)
class Adapter:
    """A flat buffer and how to read it. The buffer is never written to."""

    layout: AdapterLayout
    flat_F: Tensor

    def weights(self) -> LoraWeights:
        """The adapter as the decoder reads it, without gradient."""
        return self.layout.weights(self.layout.views(self.flat_F))


def _pieces(model: DecoderShape, lora: LoraShape) -> Iterator[_Piece]:
    rank, hidden = lora.rank, model.hidden
    query_width, kv_width = model.num_query_heads * model.head_dim, model.num_kv_heads * model.head_dim
    for i in range(model.num_layers):
        if lora.train_attn:
            q, k, v, o = (f"model.layers.{i}.self_attn.{name}" for name in _ATTENTION_MODULES)
            yield _Piece(i, "qkv_a", (3 * rank, hidden), (q, k, v))
            yield _Piece(i, "q_b", (query_width, rank), (q,))
            yield _Piece(i, "k_b", (kv_width, rank), (k,))
            yield _Piece(i, "v_b", (kv_width, rank), (v,))
            yield _Piece(i, "o_a", (rank, query_width), (o,))
            yield _Piece(i, "o_b", (hidden, rank), (o,))
        if lora.train_mlp:
            gate, up, down = (f"model.layers.{i}.mlp.{name}" for name in _MLP_MODULES)
            yield _Piece(i, "gate_up_a", (2 * rank, hidden), (gate, up))
            yield _Piece(i, "gate_b", (model.mlp_hidden, rank), (gate,))
            yield _Piece(i, "up_b", (model.mlp_hidden, rank), (up,))
            yield _Piece(i, "down_a", (rank, model.mlp_hidden), (down,))
            yield _Piece(i, "down_b", (hidden, rank), (down,))
    if lora.train_unembed:
        yield _Piece(None, "a", (rank, hidden), ("lm_head",))
        yield _Piece(None, "b", (model.vocab_size, rank), ("lm_head",))
