"""The data types of the API: those of the `tinker` SDK, and `SamplingParams` with stop token ids.

Everything in `tinker.types` is here under the same name, so a Datum or a ModelInput built for one works for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pydantic
import tinker.types as _tinker_types
from tinker.types import *  # noqa: F403  # pyright: ignore  # all of them, also those added later; ours below wins
from tinker.types import SamplingParams as _TinkerSamplingParams


class SamplingParams(_TinkerSamplingParams):
    """How to draw tokens. Unknown fields are an error, as are values outside the stated ranges.

    max_tokens: at most this many new tokens (>= 1); None means as many as the context has room for.
    temperature: 0 is argmax; otherwise logits are divided by it.
    top_k, top_p: keep the k likeliest tokens (-1: all), then the smallest set holding top_p of the mass.
    stop: strings or token ids that end a sequence. None stops at the model's end of text; [] never stops;
        anything else replaces the end of text.
    stop_token_ids: token ids that end a sequence, beside `stop`. Given alone, they also fill `stop`, which is the
        only field that remote servers know.
    seed: makes the result reproducible, whatever else is sampled at the same time.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    stop_token_ids: Sequence[int] | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill_stop(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("stop") is None and values.get("stop_token_ids") is not None:
            return {**values, "stop": list(values["stop_token_ids"])}
        return values

    @pydantic.model_validator(mode="after")
    def _check_ranges(self) -> SamplingParams:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens}: must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature}: must be finite and not negative")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: must be in (0, 1]")
        if self.top_k != -1 and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: must be at least 1, or -1 for no limit")
        return self


def __getattr__(name: str) -> Any:
    return getattr(_tinker_types, name)
