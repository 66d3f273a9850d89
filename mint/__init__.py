"""MinT: fine-tune language models through four verbs, on whatever machine is at hand.

`ServiceClient` gives a `TrainingClient` (forward_backward, optim_step, save_state, ...) and a `SamplingClient` (sample,
compute_logprobs). Without a `base_url` everything runs in this process on the embedded engine; with one, the same calls
go to a MinT or Tinker server.

Importing this module loads neither torch nor the tinker SDK and changes nothing in the environment: each public name
is imported the first time it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mint import errors, types
    from mint.errors import MintError
    from mint.futures import APIFuture
    from mint.rest_client import RestClient
    from mint.sampling_client import SamplingClient
    from mint.seeds import derive_seed
    from mint.service_client import ServiceClient
    from mint.training_client import TrainingClient
    from mint.types import (
        AdamParams,
        Datum,
        EncodedTextChunk,
        ForwardBackwardOutput,
        ModelInput,
        SampledSequence,
        SampleResponse,
        SamplingParams,
        TensorData,
    )

_MODULES = ("errors", "types")
_HOME_OF = {
    "APIFuture": "mint.futures",
    "AdamParams": "mint.types",
    "Datum": "mint.types",
    "EncodedTextChunk": "mint.types",
    "ForwardBackwardOutput": "mint.types",
    "MintError": "mint.errors",
    "ModelInput": "mint.types",
    "RestClient": "mint.rest_client",
    "SampleResponse": "mint.types",
    "SampledSequence": "mint.types",
    "SamplingClient": "mint.sampling_client",
    "SamplingParams": "mint.types",
    "ServiceClient": "mint.service_client",
    "TensorData": "mint.types",
    "TrainingClient": "mint.training_client",
    "derive_seed": "mint.seeds",
}

__all__ = [
    "APIFuture",
    "AdamParams",
    "Datum",
    "EncodedTextChunk",
    "ForwardBackwardOutput",
    "MintError",
    "ModelInput",
    "RestClient",
    "SampleResponse",
    "SampledSequence",
    "SamplingClient",
    "SamplingParams",
    "ServiceClient",
    "TensorData",
    "TrainingClient",
    "derive_seed",
    "errors",
    "types",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"mint.{name}")
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'mint' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
