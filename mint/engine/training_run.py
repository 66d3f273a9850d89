"""One adapter being trained: its parameters, accumulated gradient and optimizer, and the operations on them.

Axes: _F all parameters of one adapter, flat, _T tokens of one datum.

Parameters, gradient and optimizer state are replaced, never written in place, so an operation that fails half-way has
changed nothing and a snapshot is a reference.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from mint import types
from mint.checkpoint_manifest import LoraShape
from mint.custom_losses import declared_groups, has_declared_weighted_tokens
from mint.engine.adapters import Adapter, AdapterLayout, LoraWeights
from mint.engine.base_model import BaseModel
from mint.engine.custom_forward import CustomRun, Declared
from mint.engine.datum_inputs import custom_datum_arrays, datum_arrays
from mint.engine.forward import ForwardOptions, ForwardPass, LossResult
from mint.engine.losses import get_loss
from mint.engine.optimizer import AdamState, adam_step, check_adam_params
from mint.engine.snapshot import Snapshot
from mint.errors import CheckpointError, InvalidRequest, NonFiniteError
from mint.seeds import derive_seed

if TYPE_CHECKING:
    from mint.backend import CustomLoss


T = TypeVar("T")


class TrainingRun:
    """Used by the engine's worker thread alone."""

    def __init__(
        self, run_id: str, base: BaseModel, lora: LoraShape, seed: int | None, options: ForwardOptions
    ) -> None:
        self.run_id = run_id
        self.base = base
        self.layout = AdapterLayout(base.decoder.shape, lora)
        self.parent: str | None = None
        self._options = options
        self._seed = secrets.randbits(63) if seed is None else seed
        self._num_snapshots = 0
        self._params_F = self.layout.initial(derive_seed(self._seed, "lora")).to(base.decoder.device)
        self._grads_F: Tensor | None = None
        self._adam = AdamState.fresh(self._params_F)

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken."""
        return self._adam.num_steps

    def info(self) -> types.GetInfoResponse:
        """What `get_info` tells."""
        model = types.ModelData(arch="qwen3", model_name=self.base.name, tokenizer_id=self.base.name)
        return types.GetInfoResponse(
            type="get_info", model_data=model, model_id=self.run_id, is_lora=True, lora_rank=self.layout.lora.rank,
            model_name=self.base.name,
        )  # fmt: skip

    def forward(
        self, data: Sequence[types.Datum], loss_fn: str, config: Mapping[str, float | str] | None, with_gradient: bool
    ) -> types.ForwardBackwardOutput:
        """Logprobs and loss of a built-in loss; its gradient is accumulated where asked for."""
        loss = get_loss(loss_fn)
        own_config, temperature = loss.resolve_config(loss_fn, config)
        arrays = datum_arrays(data, loss_fn, loss, self.base.decoder.shape)
        if not with_gradient:
            return _output(self._forward_pass(self.weights()).loss_only(arrays, loss, own_config, temperature), {})

        def run(forward_pass: ForwardPass, i_datums: slice) -> LossResult:
            return forward_pass.loss_and_gradient(arrays[i_datums], loss, own_config, temperature)

        result, gradient_F = self._gradient(lambda forward_pass: run(forward_pass, slice(None)))
        if not _is_finite(gradient_F):
            # One more pass for each datum: only a failed request pays for it.
            alone = [self._gradient(lambda p, i=i: run(p, slice(i, i + 1)))[1] for i in range(len(data))]
            _refuse_gradient([i for i, datum_gradient_F in enumerate(alone) if not _is_finite(datum_gradient_F)])
        self._accumulate(gradient_F)
        return _output(result, {})

    def forward_backward_custom(self, data: Sequence[types.Datum], loss_fn: CustomLoss) -> types.ForwardBackwardOutput:
        """Accumulate the gradient of any function of the logprobs."""
        declared = Declared(has_declared_weighted_tokens(loss_fn), declared_groups(loss_fn, len(data)))
        arrays = custom_datum_arrays(data, self.base.decoder.shape, needs_weights=declared.reads_weighted_only)
        data_list = list(data)

        def loss(logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
            answer = loss_fn(data_list, logprobs)
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise InvalidRequest(
                    f"the custom loss returned {type(answer).__name__}; it must return (scalar, metrics)"
                )
            return answer

        (result, metrics), gradient_F = self._gradient(
            lambda forward_pass: CustomRun(forward_pass, arrays, declared).loss_and_gradient(loss)
        )
        if not _is_finite(gradient_F):
            _refuse_gradient([])
        self._accumulate(gradient_F)
        return _output(result, metrics)

    def _forward_pass(self, weights: LoraWeights) -> ForwardPass:
        return ForwardPass(self.base.decoder, weights, self._options)

    def _gradient(self, run: Callable[[ForwardPass], T]) -> tuple[T, Tensor]:
        """What `run` returns, and the gradient it leaves, in a buffer of its own."""
        gradient_F = torch.zeros_like(self._params_F)
        leaves = [view.detach().requires_grad_() for view in self.layout.views(self._params_F)]
        for leaf, gradient in zip(leaves, self.layout.views(gradient_F), strict=True):
            leaf.grad = gradient
        return run(self._forward_pass(self.layout.weights(leaves))), gradient_F

    def _accumulate(self, gradient_F: Tensor) -> None:
        self._grads_F = gradient_F if self._grads_F is None else self._grads_F + gradient_F

    def optim_step(self, params: types.AdamParams) -> types.OptimStepResponse:
        """Apply the accumulated gradient and clear it.

        A gradient or step that is not finite is refused: weights and optimizer stay as they are. The gradient is
        cleared then too, since no later step could use a sum that holds it.
        """
        if not isinstance(params, types.AdamParams):
            raise InvalidRequest(
                f"optim_step takes AdamParams, not {type(params).__name__}: the optimizer here is AdamW"
            )
        check_adam_params(params)
        if self._grads_F is None:
            raise InvalidRequest("optim_step: no gradient has accumulated; call forward_backward first")
        gradient_F, self._grads_F = self._grads_F, None
        self._params_F, self._adam, metrics = adam_step(self._params_F, gradient_F, self._adam, params)
        return types.OptimStepResponse(metrics=metrics)

    def weights(self) -> LoraWeights:
        """The current weights, without gradient; they stay as they are when training goes on."""
        return Adapter(self.layout, self._params_F).weights()

    def peft_tensors(self) -> dict[str, Tensor]:
        """The current weights as PEFT stores them."""
        return self.layout.to_peft(self._params_F)

    def snapshot(self) -> Snapshot:
        """The current weights for sampling; nothing is copied, since a step replaces the buffer."""
        self._num_snapshots += 1
        seed = derive_seed(self._seed, "snapshot", self._num_snapshots)
        return Snapshot(self.base, Adapter(self.layout, self._params_F), seed, self.run_id, self.num_steps)

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """What `restore` needs to continue the optimizer."""
        return self._adam.to_tensors()

    def rng_state(self) -> dict[str, int]:
        """What `restore` needs to continue the random streams."""
        return {"seed": self._seed, "num_snapshots": self._num_snapshots}

    def restore(
        self,
        adapter: dict[str, Tensor],
        optimizer: dict[str, Tensor] | None,
        rng: Mapping[str, Any] | None,
        parent: str,
    ) -> None:
        """Take saved weights; without saved optimizer and RNG those start afresh. CheckpointError where they do not
        fit; nothing has changed then."""
        params_F = self.layout.from_peft(adapter).to(self.base.decoder.device)
        seed, num_snapshots = self._seed, self._num_snapshots
        try:
            adam = AdamState.from_tensors(optimizer, params_F.device) if optimizer else AdamState.fresh(params_F)
            if rng is not None:
                seed, num_snapshots = int(rng["seed"]), int(rng["num_snapshots"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"checkpoint {parent}: its optimizer or random state is not this engine's ({error!r})"
            ) from error
        if not adam.fits(params_F):
            raise CheckpointError(f"checkpoint {parent}: the optimizer state has another shape than the weights")
        self._params_F, self._adam, self._grads_F, self.parent = params_F, adam, None, parent
        self._seed, self._num_snapshots = seed, num_snapshots


def _is_finite(gradient_F: Tensor) -> bool:
    # One pass over memory; the extremes of anything with a NaN are NaN.
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(gradient_F))


def _refuse_gradient(bad: Sequence[int]) -> NoReturn:
    """bad: the datums whose own gradient is not finite; none where only the sum is not, or where it is unknown."""
    whose = f"the gradient of datum {', '.join(map(str, bad))}" if bad else "the gradient of these datums together"
    raise NonFiniteError(f"{whose} is not finite: nothing was updated")


def _output(result: LossResult, metrics: Mapping[str, float]) -> types.ForwardBackwardOutput:
    return types.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord",
        loss_fn_outputs=[
            {"logprobs": types.TensorData.from_numpy(np.asarray(logprobs_T))} for logprobs_T in result.logprobs
        ],
        metrics={**metrics, "loss:sum": result.loss_sum},
    )
