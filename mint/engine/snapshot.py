"""A snapshot: one fixed set of weights, what a SamplingClient is pinned to."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from mint import types
from mint.engine.adapters import Adapter, LoraWeights
from mint.engine.base_model import BaseModel
from mint.engine.sampler import Sampler
from mint.seeds import derive_seed


@dataclass
class Snapshot:
    """A base model with an adapter, or bare.

    seed: of the samples drawn without one, None for a random one each. run_id and step: where the adapter comes from.
    path: the checkpoint that holds it, once there is one. sampler: decodes for it, made on first use.
    """

    base: BaseModel
    adapter: Adapter | None
    seed: int | None = None
    run_id: str = ""
    step: int = 0
    path: str | None = None
    sampler: Sampler | None = None
    num_unseeded: int = 0
    lora: LoraWeights | None = field(init=False)

    def __post_init__(self) -> None:
        self.lora = self.adapter.weights() if self.adapter is not None else None

    def seed_for(self, params: types.SamplingParams) -> int:
        """The given seed, or the next of this snapshot's own."""
        if params.seed is not None:
            return params.seed
        if self.seed is None:
            return secrets.randbits(63)
        self.num_unseeded += 1
        return derive_seed(self.seed, self.num_unseeded)
