"""Sampling and scoring requests on their way through the engine: checked, batched by weights, answered.

Axes: _T tokens of one prompt.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tinker.types.topk_logprobs import TopkLogprobs

from mint import types
from mint.backend import SampleOptions
from mint.engine.base_model import BaseModel
from mint.engine.datum_inputs import token_ids
from mint.engine.forward import ForwardOptions, ForwardPass
from mint.engine.sampler import SampleJob, Sampler
from mint.engine.snapshot import Snapshot
from mint.engine.stops import StopRule
from mint.engine.token_draw import DrawOptions
from mint.errors import InvalidRequest

_MAX_SCORING_DELAY = 32
"""Decode steps that scoring waits for, so that replies that end one after another are scored together."""


@dataclass(eq=False)
class SampleRequest:
    """Waiting or running; `job` once it has started."""

    sampler_id: str
    prompt: types.ModelInput
    options: SampleOptions
    future: concurrent.futures.Future
    job: SampleJob | None = None


@dataclass(eq=False)
class ScoreRequest:
    """Waiting to be scored."""

    sampler_id: str
    prompt: types.ModelInput
    last_n: int | None
    future: concurrent.futures.Future


@dataclass
class SamplingDesk:
    """All open sampling work. Used by the engine's worker thread alone.

    `answer(future, compute)` completes a future with what `compute` returns or raises.
    """

    answer: Callable[[concurrent.futures.Future, Callable[[], object]], None]
    options_of: Callable[[BaseModel], ForwardOptions]
    max_rows: int
    samples: list[SampleRequest] = field(default_factory=list)
    scores: list[ScoreRequest] = field(default_factory=list)
    scoring_delay: int = 0

    def take(self, requests: Sequence[SampleRequest | ScoreRequest]) -> None:
        """Add requests; they are worked on from the next turn on."""
        self.samples += [request for request in requests if isinstance(request, SampleRequest)]
        self.scores += [request for request in requests if isinstance(request, ScoreRequest)]

    def has_work(self) -> bool:
        return bool(self.samples or self.scores)

    def uses(self, sampler_id: str) -> bool:
        """Whether any open request needs this snapshot."""
        return any(request.sampler_id == sampler_id for request in (*self.samples, *self.scores))

    def turn(self, snapshots: dict[str, Snapshot]) -> None:
        """Advance: start what waits, decode one token everywhere, score once replies no longer trickle in.

        Requests for a snapshot that is not made yet stay where they are.
        """
        for request in [r for r in self.samples if r.job is None and r.sampler_id in snapshots]:
            self._start(request, snapshots[request.sampler_id])
        is_decoding = False
        for sampler_id in dict.fromkeys(request.sampler_id for request in self.samples if request.job is not None):
            is_decoding = True
            self._decode_step(sampler_id, snapshots[sampler_id])
        ready = [r for r in self.scores if r.sampler_id in snapshots]
        self.scoring_delay = self.scoring_delay + 1 if ready else 0
        if ready and (not is_decoding or self.scoring_delay > _MAX_SCORING_DELAY):
            self.scoring_delay = 0
            self.scores = [r for r in self.scores if r.sampler_id not in snapshots]
            for sampler_id in dict.fromkeys(request.sampler_id for request in ready):
                self._score([r for r in ready if r.sampler_id == sampler_id], snapshots[sampler_id])

    def _refuse(self, future: concurrent.futures.Future, error: BaseException) -> None:
        def fail() -> object:
            raise error

        self.answer(future, fail)

    def _start(self, request: SampleRequest, snapshot: Snapshot) -> None:
        try:
            request.job = _sample_job(request, snapshot)
            if snapshot.sampler is None:
                options = self.options_of(snapshot.base)
                snapshot.sampler = Sampler(
                    snapshot.base, snapshot.lora, options.token_budget, self.max_rows, options.share_prefixes
                )
            snapshot.sampler.add(request.job)
        except Exception as error:
            self.samples.remove(request)
            self._refuse(request.future, error)

    def _decode_step(self, sampler_id: str, snapshot: Snapshot) -> None:
        assert snapshot.sampler is not None
        own = [r for r in self.samples if r.sampler_id == sampler_id and r.job is not None]
        try:
            done = set(snapshot.sampler.step())
        except Exception as error:
            # The batch is lost as a whole: its cache is in an unknown state.
            snapshot.sampler = None
            self.samples = [r for r in self.samples if r not in own]
            for request in own:
                self._refuse(request.future, error)
            return
        finished = [r for r in own if r.job in done]
        self.samples = [r for r in self.samples if r.job not in done]
        for request in finished:
            self.answer(request.future, lambda request=request: self._sample_response(request, snapshot))

    def _sample_response(self, request: SampleRequest, snapshot: Snapshot) -> types.SampleResponse:
        job, options = request.job, request.options
        assert job is not None
        sequences = [
            types.SampledSequence(
                stop_reason=row.stop_reason,  # type: ignore[arg-type]
                sequence_id=f"{job.seed:x}-{i}",
                tokens_np=np.asarray(row.tokens, dtype=np.int32),
                logprobs_np=np.asarray(row.logprobs, dtype=np.float32),
            )
            for i, row in enumerate(job.sequences)
        ]
        prompt_logprobs, topk = None, None
        if options.include_prompt_logprobs:
            (prompt_logprobs,) = self._forward_pass(snapshot).prompt_logprobs([job.prompt_T], [len(job.prompt_T)])
        if options.topk_prompt_logprobs:
            topk = _topk_response(self._forward_pass(snapshot), job.prompt_T, options.topk_prompt_logprobs)
        return types.SampleResponse(
            sequences=sequences, prompt_logprobs_np=prompt_logprobs, topk_prompt_logprobs_np=topk
        )

    def _forward_pass(self, snapshot: Snapshot) -> ForwardPass:
        return ForwardPass(snapshot.base.decoder, snapshot.lora, self.options_of(snapshot.base))

    def _score(self, requests: Sequence[ScoreRequest], snapshot: Snapshot) -> None:
        prompts, last_n, accepted = [], [], []
        for request in requests:
            try:
                prompt_T = token_ids(request.prompt, snapshot.base.decoder.shape, "prompt")
                last_n.append(_checked_last_n(request.last_n, len(prompt_T)))
            except InvalidRequest as error:
                self._refuse(request.future, error)
                continue
            prompts.append(prompt_T)
            accepted.append(request)
        if not accepted:
            return
        try:
            scored = self._forward_pass(snapshot).prompt_logprobs(prompts, last_n)
        except Exception as error:
            for request in accepted:
                self._refuse(request.future, error)
            return
        for request, logprobs_T in zip(accepted, scored, strict=True):
            values = [None if np.isnan(value) else value for value in logprobs_T.tolist()]
            self.answer(request.future, lambda values=values: values)


def _checked_last_n(last_n: int | None, num_tokens: int) -> int:
    if last_n is None:
        return num_tokens
    if not 1 <= last_n <= max(num_tokens - 1, 1):
        raise InvalidRequest(
            f"prompt_logprobs_last_n={last_n}: must be between 1 and {num_tokens - 1} (the first token has none)"
        )
    return last_n


def _sample_job(request: SampleRequest, snapshot: Snapshot) -> SampleJob:
    """Check a request against the model and turn it into what the sampler runs."""
    shape, options, params = snapshot.base.decoder.shape, request.options, request.options.params
    prompt_T = token_ids(request.prompt, shape, "prompt")
    if options.num_samples < 1:
        raise InvalidRequest(f"num_samples={options.num_samples}: must be at least 1")
    if not 0 <= options.topk_prompt_logprobs <= shape.vocab_size:
        raise InvalidRequest(f"topk_prompt_logprobs={options.topk_prompt_logprobs}: must be 0 to {shape.vocab_size}")
    room = shape.context_length - len(prompt_T)
    max_tokens = room if params.max_tokens is None else params.max_tokens
    if max_tokens < 1 or max_tokens > room:
        raise InvalidRequest(
            f"the prompt has {len(prompt_T)} tokens and max_tokens={params.max_tokens}, but the context holds "
            f"{shape.context_length}; shorten the prompt or ask for at most {max(room, 0)} tokens"
        )
    top_k = -1 if params.top_k >= shape.vocab_size else params.top_k
    return SampleJob(
        prompt_T=prompt_T,
        num_samples=options.num_samples,
        max_tokens=max_tokens,
        draw=DrawOptions(params.temperature, top_k, params.top_p),
        stop=StopRule.of(params, snapshot.base.eos_token_ids),
        seed=snapshot.seed_for(params),
    )


def _topk_response(forward_pass: ForwardPass, prompt_T: np.ndarray, k: int) -> TopkLogprobs:
    """Dense (T, k) matrices; the first token has no distribution before it and holds the SDK's sentinel."""
    token_ids_k = np.zeros((len(prompt_T), k), dtype=np.int32)
    logprobs_k = np.full((len(prompt_T), k), -99999.0, dtype=np.float32)
    if len(prompt_T) > 1:
        token_ids_k[1:], logprobs_k[1:] = forward_pass.topk_logprobs(prompt_T, k)
    return TopkLogprobs(token_ids=token_ids_k, logprobs=logprobs_k)
