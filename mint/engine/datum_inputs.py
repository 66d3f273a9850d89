"""Datums as arrays, checked before anything is computed.

Axes: _T tokens of one datum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mint.engine.decoder_shape import DecoderShape
from mint.engine.losses import Loss
from mint.errors import InvalidRequest, nearest_name
from mint.types import Datum, EncodedTextChunk, ModelInput, TensorData


@dataclass(frozen=True)
class DatumArrays:
    """One datum: input tokens, the target after each, and the loss's inputs, all of shape (T,)."""

    tokens_T: np.ndarray
    targets_T: np.ndarray
    inputs: dict[str, np.ndarray]


def token_ids(model_input: ModelInput, shape: DecoderShape, where: str) -> np.ndarray:
    """The tokens of a ModelInput as int64, checked against vocabulary and context. `where` starts the error message."""
    for chunk in model_input.chunks:
        if not isinstance(chunk, EncodedTextChunk):
            raise InvalidRequest(f"{where}: a {type(chunk).__name__}; the embedded engine takes text tokens only")
    tokens_T = np.asarray(model_input.to_ints(), dtype=np.int64)
    if len(tokens_T) == 0:
        raise InvalidRequest(f"{where}: no tokens; give at least one")
    if len(tokens_T) > shape.context_length:
        raise InvalidRequest(
            f"{where}: {len(tokens_T)} tokens, but the model's context holds {shape.context_length}; shorten it"
        )
    check_vocabulary(tokens_T, shape.vocab_size, where)
    return tokens_T


def check_vocabulary(tokens_T: np.ndarray, vocab_size: int, where: str) -> None:
    """Raise InvalidRequest naming the first token id that the model does not have."""
    outside = np.flatnonzero((tokens_T < 0) | (tokens_T >= vocab_size))
    if len(outside):
        i = int(outside[0])
        raise InvalidRequest(
            f"{where}: token id {int(tokens_T[i])} at position {i} is outside the vocabulary (0 to {vocab_size - 1}); "
            "encode with this model's tokenizer"
        )


def datum_arrays(data: Sequence[Datum], loss_name: str, loss: Loss, shape: DecoderShape) -> list[DatumArrays]:
    """Check every datum for a built-in loss. Errors name the datum, the field, the value and the rule."""
    if not data:
        raise InvalidRequest("data is empty: give at least one Datum")
    known = {"target_tokens", *loss.required, *loss.optional}
    arrays = []
    for i, datum in enumerate(data):
        for name in ("target_tokens", *loss.required):
            if name not in datum.loss_fn_inputs:
                raise InvalidRequest(
                    f"datum {i}: loss_fn_inputs has no {name!r}, which loss_fn={loss_name!r} needs "
                    f"(needed: target_tokens, {', '.join(loss.required)})"
                )
        for name in datum.loss_fn_inputs:
            # Packages share datums between losses (RL datums carry all four), so only misspellings are refused.
            if name not in known | _INPUTS_OF_ANY_LOSS:
                raise InvalidRequest(
                    f"datum {i}: loss_fn_inputs has {name!r}, which no loss knows.{nearest_name(name, known)}"
                )
        tokens_T, targets_T = _tokens_and_targets(datum, i, shape)
        inputs = {
            name: _float_array(datum.loss_fn_inputs[name], f"datum {i}: {name}", len(tokens_T))
            for name in (*loss.required, *loss.optional)
            if name in datum.loss_fn_inputs
        }
        arrays.append(DatumArrays(tokens_T, targets_T, inputs))
    return arrays


def custom_datum_arrays(data: Sequence[Datum], shape: DecoderShape, needs_weights: bool = False) -> list[DatumArrays]:
    """Check every datum for a custom loss, which needs target_tokens and may carry anything else.

    needs_weights: for a loss declared to read weighted tokens only; `weights` are then among the inputs.
    """
    if not data:
        raise InvalidRequest("data is empty: give at least one Datum")
    arrays = []
    for i, datum in enumerate(data):
        if "target_tokens" not in datum.loss_fn_inputs:
            raise InvalidRequest(f"datum {i}: loss_fn_inputs has no 'target_tokens', which a custom loss needs")
        if needs_weights and "weights" not in datum.loss_fn_inputs:
            raise InvalidRequest(
                f"datum {i}: loss_fn_inputs has no 'weights', but the custom loss is declared with "
                "reads_weighted_tokens: give weights that are non-zero where it reads, or leave the declaration out"
            )
        tokens_T, targets_T = _tokens_and_targets(datum, i, shape)
        names = ("weights",) if needs_weights else ()
        inputs = {name: _float_array(datum.loss_fn_inputs[name], f"datum {i}: {name}", len(tokens_T)) for name in names}
        arrays.append(DatumArrays(tokens_T, targets_T, inputs))
    return arrays


_INPUTS_OF_ANY_LOSS = frozenset({"target_tokens", "weights", "logprobs", "advantages"})


def _tokens_and_targets(datum: Datum, i: int, shape: DecoderShape) -> tuple[np.ndarray, np.ndarray]:
    tokens_T = token_ids(datum.model_input, shape, f"datum {i}: model_input")
    targets_T = datum.loss_fn_inputs["target_tokens"].to_numpy()
    if not np.issubdtype(targets_T.dtype, np.integer):
        raise InvalidRequest(f"datum {i}: target_tokens has dtype {targets_T.dtype}; token ids are integers")
    _check_length(targets_T, f"datum {i}: target_tokens", len(tokens_T))
    check_vocabulary(targets_T, shape.vocab_size, f"datum {i}: target_tokens")
    return tokens_T, targets_T.astype(np.int64)


def _check_length(values: np.ndarray, where: str, num_tokens: int) -> None:
    if values.shape != (num_tokens,):
        raise InvalidRequest(
            f"{where} has shape {values.shape}, but model_input has {num_tokens} tokens; "
            f"every field of loss_fn_inputs needs shape ({num_tokens},)"
        )


def _float_array(values: TensorData, where: str, num_tokens: int) -> np.ndarray:
    array_T = values.to_numpy().astype(np.float32)
    _check_length(array_T, where, num_tokens)
    bad = np.flatnonzero(~np.isfinite(array_T))
    if len(bad):
        raise InvalidRequest(f"{where} is {array_T[bad[0]]} at position {int(bad[0])}; every value must be finite")
    return array_T
