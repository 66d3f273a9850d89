"""The weights of a Qwen3 model, read from its safetensors files tensor by tensor.

transformers reads the same files into a module of its own, of which only the tensors would be used here: importing that
module takes two seconds and 85 MiB, and the weights exist twice while they are copied out of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from mint.engine.decoder import Decoder, LayerWeights
from mint.engine.decoder_shape import DecoderShape
from mint.engine.layer_ops import LayerOps
from mint.engine.rotary import Rotary
from mint.errors import InvalidRequest


class ModelFiles:
    """One file, or several with an index, in a folder or in the hub's cache; OSError where there are none.

    Tensors arrive on `device` in `dtype`.
    """

    def __init__(self, location: str, device: torch.device, dtype: torch.dtype) -> None:
        self._location, self._device, self._dtype = location, device, dtype
        try:
            file = _found(location, SAFE_WEIGHTS_NAME)
        except OSError as no_single_file:
            try:
                index = _found(location, SAFE_WEIGHTS_INDEX_NAME)
            except OSError:
                raise no_single_file from None
            name_of = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
            # Each file once: finding one may ask the hub.
            found = {name: _found(location, name) for name in sorted(set(name_of.values()))}
            self._file_of: dict[str, str] = {tensor: found[name] for tensor, name in name_of.items()}
        else:
            with _opened(file) as tensors:
                self._file_of = dict.fromkeys(tensors.keys(), file)

    def read(self, name: str, *shape: int) -> Tensor:
        """One tensor, in memory of its own. InvalidRequest where it is missing or of another shape."""
        return self.stacked(shape[1:], (name, shape[0]))

    def stacked(self, width: Sequence[int], *parts: tuple[str, int]) -> Tensor:
        """Tensors of the given first sizes, which are alike in all others (`width`), one below the other."""
        lengths = [length for _, length in parts]
        # Each is copied to its place: blocks for single tensors would be freed, and lie between those that stay.
        whole = torch.empty(sum(lengths), *width, device=self._device, dtype=self._dtype)
        for (name, _), part in zip(parts, whole.split(lengths), strict=True):
            self._read_into(name, part)
        return whole

    def _read_into(self, name: str, part: Tensor) -> None:
        if name not in self._file_of:
            raise InvalidRequest(f"the model in {self._location!r} has no tensor {name!r}: its files are not complete")
        # Opened anew for each: an open file stays mapped, and what was read of it counts as memory.
        with _opened(self._file_of[name]) as tensors:
            tensor = tensors.get_tensor(name)
            if tensor.shape != part.shape:
                raise InvalidRequest(
                    f"the model in {self._location!r}: tensor {name!r} has shape {tuple(tensor.shape)}, but its config "
                    f"says {tuple(part.shape)}"
                )
            part.copy_(tensor)


def _found(location: str, name: str) -> str:
    """The path of a file of a model; OSError where there is none."""
    path = cached_file(location, name)
    assert path is not None, "cached_file raises where a file is missing"
    return path


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise OSError(f"{path} is damaged ({error}).") from error


def load_decoder(config: Any, files: ModelFiles, device: torch.device, ops: LayerOps) -> Decoder:
    """The frozen model of a Qwen3 config and its files. InvalidRequest for a variant that is not computed here."""
    _check_supported(config)
    shape = DecoderShape(
        config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.num_key_value_heads,
        config.head_dim, config.intermediate_size, config.vocab_size, config.max_position_embeddings,
    )  # fmt: skip
    embedding = files.read("model.embed_tokens.weight", shape.vocab_size, shape.hidden)
    return Decoder(
        shape,
        [_layer(files, shape, f"model.layers.{i}") for i in range(shape.num_layers)],
        embedding,
        embedding if config.tie_word_embeddings else files.read("lm_head.weight", shape.vocab_size, shape.hidden),
        files.read("model.norm.weight", shape.hidden),
        Rotary(config, device),
        config.rms_norm_eps,
        ops,
    )


def _layer(files: ModelFiles, shape: DecoderShape, prefix: str) -> LayerWeights:
    hidden, head_dim, mlp = shape.hidden, shape.head_dim, shape.mlp_hidden
    query, key_value = shape.num_query_heads * head_dim, shape.num_kv_heads * head_dim

    def read(name: str, *sizes: int) -> Tensor:
        return files.read(f"{prefix}.{name}.weight", *sizes)

    def stacked(block: str, **lengths: int) -> Tensor:
        parts = [(f"{prefix}.{block}.{name}.weight", length) for name, length in lengths.items()]
        return files.stacked([hidden], *parts)

    return LayerWeights(
        input_norm_H=read("input_layernorm", hidden),
        qkv=stacked("self_attn", q_proj=query, k_proj=key_value, v_proj=key_value),
        query_norm_D=read("self_attn.q_norm", head_dim),
        key_norm_D=read("self_attn.k_norm", head_dim),
        output=read("self_attn.o_proj", hidden, query),
        mlp_norm_H=read("post_attention_layernorm", hidden),
        gate_up=stacked("mlp", gate_proj=mlp, up_proj=mlp),
        down=read("mlp.down_proj", hidden, mlp),
    )


def _check_supported(config: Any) -> None:
    """InvalidRequest for a Qwen3 variant whose forward pass this one is not."""
    # Where the rotation depends on the longest sequence at hand, a token's logprob would depend on what else is packed
    # with it.
    quantization = getattr(config, "quantization_config", None)
    supported = {
        "attention_bias": (config.attention_bias, (False,)),
        "use_sliding_window": (config.use_sliding_window, (False,)),
        "hidden_act": (config.hidden_act, ("silu",)),
        "rope_type": (config.rope_parameters["rope_type"], ("default", "linear", "yarn")),
        "quantization": (quantization["quant_method"] if quantization else None, (None,)),
    }
    for name, (value, known) in supported.items():
        if value not in known:
            raise InvalidRequest(
                f"the model's {name} is {value!r}; the embedded engine computes {' or '.join(map(repr, known))} only"
            )
