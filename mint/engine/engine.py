"""The embedded Backend: clients put requests on a queue, one worker thread takes everything that is waiting.

Operations on training runs are done one at a time, in the order they were submitted. Sampling and scoring go through
the `SamplingDesk`, which batches them; before it forms a batch, the worker waits until every caller rests (see `gate`),
so that what is asked for at the same time is computed together and the same program gives the same bits.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import ctypes
import itertools
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import PreTrainedTokenizerBase

from mint import types
from mint.backend import Backend, ModelFacts, SampleOptions
from mint.checkpoint_manifest import LoraShape
from mint.checkpoint_path import CheckpointPath
from mint.checkpoint_store import CheckpointStore
from mint.engine.adapters import Adapter, AdapterLayout, lora_shape
from mint.engine.base_model import BaseModel, ComputeOptions, load_base_model, load_tokenizer
from mint.engine.checkpoints import ADAPTER_NAME, LoadedCheckpoint, load_checkpoint, save_checkpoint
from mint.engine.forward import ForwardOptions
from mint.engine.gate import CallerGate
from mint.engine.sampling_desk import SampleRequest, SamplingDesk, ScoreRequest
from mint.engine.snapshot import Snapshot
from mint.engine.token_budget import default_token_budget
from mint.engine.training_run import TrainingRun
from mint.errors import InvalidRequest, MintError, NotFound
from mint.futures import APIFuture
from mint.installed_models import installed_models
from mint.seeds import derive_seed

if TYPE_CHECKING:
    from mint.backend import CustomLoss
    from mint.service_client import EngineOptions

T = TypeVar("T")
_FINISHING_SECONDS = 2.0
"""At exit, how long the operation under way may take to finish."""
_LEAVING_SECONDS = 8.0
"""How long it may then take to return from torch, to be abandoned."""
Operation = tuple[concurrent.futures.Future, Callable[[], object]]


class Engine(Backend):
    """One worker, any number of base models, training runs and samplers."""

    supports_temperature = True

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._compute = ComputeOptions(options.device, options.dtype, options.fused_ops)
        self._compute.resolve_device()  # a wrong device or dtype is an error now, not in the first request
        self._store = CheckpointStore(options.home)
        self._models: dict[str, BaseModel] = {}
        self._tokenizers: dict[str, PreTrainedTokenizerBase] = {}
        self._runs: dict[str, TrainingRun] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._sampler_ids = itertools.count()
        self._gate = CallerGate()
        self._wake = threading.Condition()
        self._operations: deque[Operation] = deque()
        self._incoming: list[SampleRequest | ScoreRequest] = []
        self._closed_samplers: set[str] = set()
        self._failure: MintError | None = None
        self._desk = SamplingDesk(self._answer, self._forward_options, options.max_rows)
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="mint-engine", daemon=True)
        self._thread.start()
        atexit.register(self._close)

    # ---- the worker ----

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._is_closing or self._operations or self._incoming or self._desk.has_work()
                )
                if self._is_closing:
                    return
            try:
                self._turn()
            except BaseException as error:
                if self._is_closing:
                    return
                self._stop(error)
                raise

    def _close(self) -> None:
        """End the worker before the interpreter does: a thread cut off inside torch aborts the process.

        A short operation, such as saving a checkpoint, is finished. A batch may take minutes, and nobody can ask for
        its result any more: it is abandoned as soon as torch returns to Python.
        """
        with self._wake:
            self._is_closing = True
            self._wake.notify_all()
        self._thread.join(_FINISHING_SECONDS)
        if self._thread.ident is not None and self._thread.is_alive():
            raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
            raise_in_thread(ctypes.c_ulong(self._thread.ident), ctypes.py_object(SystemExit))
            self._thread.join(_LEAVING_SECONDS)

    def _stop(self, error: BaseException) -> None:
        """The worker cannot go on (a defect of ours): whoever waits is told, and so is whoever comes later."""
        with self._wake:
            self._failure = MintError(f"the engine has stopped: {error!r}; start the program again from a checkpoint")
            requests = (*self._incoming, *self._desk.samples, *self._desk.scores)
            futures = [future for future, _ in self._operations] + [request.future for request in requests]
            self._operations.clear()
        for future in futures:
            if not future.done():
                future.set_exception(self._failure)

    def _check_running(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _turn(self) -> None:
        """At most one operation, then one step of sampling. Their order does not depend on timing: see `gate`."""
        self._let_callers_rest()
        with self._wake:
            operation = self._operations.popleft() if self._operations else None
        if operation is not None:
            self._answer(*operation)
        have_rested = self._let_callers_rest()
        incoming: list[SampleRequest | ScoreRequest] = []
        closed: set[str] = set()
        with self._wake:
            # What arrived after a look that found nothing belongs to a batch that may still be growing.
            if have_rested:
                incoming, self._incoming = self._incoming, []
            if not self._incoming:
                closed, self._closed_samplers = self._closed_samplers, set()
        if have_rested:
            self._desk.take(incoming)
            self._desk.turn(self._snapshots)
        for sampler_id in closed:
            if self._desk.uses(sampler_id) or sampler_id not in self._snapshots:
                self._closed_samplers.add(sampler_id)
            else:
                del self._snapshots[sampler_id]

    def _let_callers_rest(self) -> bool:
        """Only sampling is batched across requests, so only sampling waits. False where there is none."""
        if not (self._incoming or self._desk.has_work()):
            return False
        self._gate.wait_until_all_rest()
        return True

    def _answer(self, future: concurrent.futures.Future, compute: Callable[[], object]) -> None:
        """Complete `future`. Errors belong to the caller, never to the worker."""
        try:
            future.set_result(compute())
        except Exception as error:
            future.set_exception(error)
        self._gate.completed(future)

    def _submit(self, operation: Callable[[], T]) -> APIFuture[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        with self._wake:
            self._check_running()
            self._gate.submitted(future)
            self._operations.append((future, operation))
            self._wake.notify()
        return APIFuture(future, self._gate.waiting)

    def _submit_sampling(
        self, make: Callable[[concurrent.futures.Future], SampleRequest | ScoreRequest]
    ) -> APIFuture[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        with self._wake:
            self._check_running()
            self._gate.submitted(future)
            self._incoming.append(make(future))
            self._wake.notify()
        return APIFuture(future, self._gate.waiting)

    # ---- models ----

    @property
    def store(self) -> CheckpointStore:
        return self._store

    def reopen_key(self) -> EngineOptions:
        return self._options

    def capabilities(self) -> types.GetServerCapabilitiesResponse:
        models = [
            types.SupportedModel(model_name=name, max_context_length=length, trainable=True, sampleable=True)
            for name, length in installed_models()
        ]
        return types.GetServerCapabilitiesResponse(supported_models=models)

    def describe_model(self, base_model: str) -> APIFuture[ModelFacts]:
        return self._submit(lambda: self._model(base_model).facts())

    def tokenizer(self, base_model: str) -> PreTrainedTokenizerBase:
        if base_model not in self._tokenizers:
            self._tokenizers[base_model] = load_tokenizer(base_model)
        return self._tokenizers[base_model]

    def _model(self, name: str) -> BaseModel:
        if name not in self._models:
            self._models[name] = load_base_model(name, self._compute)
        return self._models[name]

    def _forward_options(self, model: BaseModel) -> ForwardOptions:
        budget = self._options.token_budget or default_token_budget(model.decoder)
        return ForwardOptions(budget, self._options.share_prefixes, self._options.gradient_checkpointing)

    # ---- training runs ----

    def _run(self, run_id: str) -> TrainingRun:
        if run_id not in self._runs:
            raise NotFound(f"training run {run_id!r} does not exist in this engine")
        return self._runs[run_id]

    def create_run(
        self, base_model: str, lora: types.LoraConfig, user_metadata: dict[str, str] | None
    ) -> APIFuture[types.GetInfoResponse]:
        def create() -> types.GetInfoResponse:
            self._store.check_writable()  # a run that cannot be stored is refused before its model is loaded
            shape = lora_shape(lora)
            model = self._model(base_model)
            run = TrainingRun(_new_run_id(), model, shape, lora.seed, self._forward_options(model))
            return self._register(run, user_metadata)

        return self._submit(create)

    def create_run_from(
        self, path: str, with_optimizer: bool, user_metadata: dict[str, str] | None
    ) -> APIFuture[types.GetInfoResponse]:
        def create() -> types.GetInfoResponse:
            self._store.check_writable()
            loaded = load_checkpoint(self._store, path, with_optimizer)
            model = self._model(loaded.manifest.base_model)
            # What is drawn without a seed follows from the weights, so that two runs from one checkpoint are the same.
            seed = derive_seed("from", loaded.manifest.files[ADAPTER_NAME].sha256)
            run = TrainingRun(_new_run_id(), model, loaded.manifest.lora, seed, self._forward_options(model))
            _restore(run, loaded, path)
            return self._register(run, user_metadata)

        return self._submit(create)

    def _register(self, run: TrainingRun, user_metadata: dict[str, str] | None) -> types.GetInfoResponse:
        lora = run.layout.lora
        self._store.register_run(run.run_id, base_model=run.base.name, lora=lora, user_metadata=user_metadata)
        self._runs[run.run_id] = run
        return run.info()

    def forward(
        self, run_id: str, data: Sequence[types.Datum], loss_fn: str, config: Mapping[str, float | str] | None,
        with_gradient: bool,
    ) -> APIFuture[types.ForwardBackwardOutput]:  # fmt: skip
        data = list(data)
        return self._submit(lambda: self._run(run_id).forward(data, loss_fn, config, with_gradient))

    def forward_backward_custom(
        self, run_id: str, data: Sequence[types.Datum], loss_fn: CustomLoss
    ) -> APIFuture[types.ForwardBackwardOutput]:
        data = list(data)
        return self._submit(lambda: self._run(run_id).forward_backward_custom(data, loss_fn))

    def optim_step(self, run_id: str, params: types.AdamParams) -> APIFuture[types.OptimStepResponse]:
        return self._submit(lambda: self._run(run_id).optim_step(params))

    def save(
        self, run_id: str, kind: str, name: str, ttl_seconds: int | None, overwrite: bool,
        user_metadata: dict[str, str] | None,
    ) -> APIFuture[str]:  # fmt: skip
        def save() -> str:
            run = self._run(run_id)
            path = CheckpointPath(run_id, kind, name)  # type: ignore[arg-type]
            is_resumable = kind == "weights"
            save_checkpoint(
                self._store,
                path,
                run.peft_tensors(),
                run.layout.peft_config(run.base.name),
                run.optimizer_tensors() if is_resumable else None,
                run.rng_state() if is_resumable else None,
                _manifest_fields(run.base.name, run.layout.lora, run.num_steps, run.parent, user_metadata),
                ttl_seconds=ttl_seconds,
                overwrite=overwrite,
            )
            return str(path)

        return self._submit(save)

    def load(self, run_id: str, path: str, with_optimizer: bool) -> APIFuture[types.LoadWeightsResponse]:
        def load() -> types.LoadWeightsResponse:
            run = self._run(run_id)
            loaded = load_checkpoint(self._store, path, with_optimizer)
            if loaded.manifest.base_model != run.base.name or loaded.manifest.lora != run.layout.lora:
                raise InvalidRequest(
                    f"{path} is {loaded.manifest.lora} on {loaded.manifest.base_model!r}, but this run is "
                    f"{run.layout.lora} on {run.base.name!r}; use create_training_client_from_state"
                )
            _restore(run, loaded, path)
            return types.LoadWeightsResponse(path=path, model_id=run_id, type="load_weights")

        return self._submit(load)

    # ---- sampling ----

    def _new_sampler_id(self) -> str:
        return f"sampler-{next(self._sampler_ids)}"

    def snapshot(self, run_id: str) -> str:
        run = self._run(run_id)
        sampler_id = self._new_sampler_id()

        def take() -> None:
            self._snapshots[sampler_id] = run.snapshot()

        self._submit(take)
        return sampler_id

    def open_sampler(self, model_path: str | None, base_model: str | None) -> APIFuture[str]:
        sampler_id = self._new_sampler_id()

        def open_() -> str:
            if (model_path is None) == (base_model is None):
                raise InvalidRequest("a sampling client needs exactly one of model_path and base_model")
            if base_model is not None:
                self._snapshots[sampler_id] = Snapshot(self._model(base_model), adapter=None)
                return sampler_id
            assert model_path is not None
            loaded = load_checkpoint(self._store, model_path, with_optimizer=False)
            model = self._model(loaded.manifest.base_model)
            layout = AdapterLayout(model.decoder.shape, loaded.manifest.lora)
            adapter = Adapter(layout, layout.from_peft(loaded.adapter_tensors).to(model.decoder.device))
            self._snapshots[sampler_id] = Snapshot(model, adapter, path=model_path)
            return sampler_id

        return self._submit(open_)

    def sampler_base_model(self, sampler_id: str) -> APIFuture[str]:
        return self._submit(lambda: self._snapshots[sampler_id].base.name)

    def sampler_path(self, sampler_id: str) -> APIFuture[str | None]:
        def path() -> str | None:
            snapshot = self._snapshots[sampler_id]
            if snapshot.path is None and snapshot.adapter is not None:
                # A name of its own: sampler ids start anew in every process.
                name = f"snapshot-{uuid.uuid4().hex[:16]}"
                target = CheckpointPath(snapshot.run_id, "sampler_weights", name)
                layout = snapshot.adapter.layout
                fields = _manifest_fields(snapshot.base.name, layout.lora, snapshot.step, None, None)
                tensors, config = layout.to_peft(snapshot.adapter.flat_F), layout.peft_config(snapshot.base.name)
                save_checkpoint(self._store, target, tensors, config, None, None, fields)
                snapshot.path = str(target)
            return snapshot.path

        return self._submit(path)

    def close_sampler(self, sampler_id: str) -> None:
        with self._wake:
            self._closed_samplers.add(sampler_id)

    def sample(
        self, sampler_id: str, prompt: types.ModelInput, options: SampleOptions
    ) -> APIFuture[types.SampleResponse]:
        return self._submit_sampling(lambda future: SampleRequest(sampler_id, prompt, options, future))

    def compute_logprobs(
        self, sampler_id: str, prompt: types.ModelInput, last_n: int | None
    ) -> APIFuture[list[float | None]]:
        return self._submit_sampling(lambda future: ScoreRequest(sampler_id, prompt, last_n, future))


def _new_run_id() -> str:
    return uuid.uuid4().hex[:16]


def _restore(run: TrainingRun, loaded: LoadedCheckpoint, path: str) -> None:
    """Weights always; the optimizer and the random streams together, or neither."""
    rng_state = loaded.rng_state if loaded.optimizer_tensors is not None else None
    run.restore(loaded.adapter_tensors, loaded.optimizer_tensors, rng_state, parent=path)


def _manifest_fields(
    base_model: str, lora: LoraShape, step: int, parent: str | None, user_metadata: dict[str, str] | None
) -> dict[str, Any]:
    fields = {"base_model": base_model, "lora": asdict(lora), "step": step, "parent": parent}
    return {**fields, "user_metadata": user_metadata} if user_metadata else fields
