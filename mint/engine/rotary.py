"""The rotary embedding of a model: how far each position turns its queries and keys (Su et al., 2021).

Axes: _N packed tokens, _F frequencies, half the head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mint.engine.layer_ops import Rotation


class Rotary:
    """Angles of a Qwen3 config, for the kinds whose angles depend on the position alone: default, linear, yarn."""

    def __init__(self, config: Any, device: torch.device) -> None:
        parameters = config.rope_parameters
        if parameters["rope_type"] == "default":
            exponents_F = torch.arange(0, config.head_dim, 2, dtype=torch.float) / config.head_dim
            frequencies_F, self._scale = 1.0 / (parameters["rope_theta"] ** exponents_F), 1.0
        else:
            frequencies_F, self._scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
        self._frequencies_F = frequencies_F.to(device)

    def __call__(self, positions_N: Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation of tokens at these positions, rounded to the precision of the model."""
        angles = positions_N[:, None, None].float() * self._frequencies_F
        angles = torch.cat([angles, angles], dim=-1)
        return Rotation((angles.cos() * self._scale).to(dtype), (angles.sin() * self._scale).to(dtype))
