"""How a batch is handed to the trainer, seen by a recording trainer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from mint import types
from mint.errors import InvalidRequest
from recipe.optimizer_config import AdamConfig
from recipe.rl.datums import TrainingSequence
from recipe.rl.policy_update import KLTerm, PolicyLoss, PolicyUpdate, split_evenly, update_policy


def sequence(token: int) -> TrainingSequence:
    return TrainingSequence(
        tokens=[1, token, token],
        is_sampled_T=np.asarray([False, True]),
        sampler_logprobs_T=np.asarray([0.0, -1.0], dtype=np.float32),
        advantages_T=np.asarray([0.0, 2.0], dtype=np.float32),
    )


@dataclass
class Backward:
    metrics: dict[str, float]
    loss_fn_outputs: list[dict[str, types.TensorData]]


@dataclass
class Stepped:
    metrics: dict[str, float] | None


@dataclass
class RecordingTrainer:
    """Writes down what it is asked; the trainer's logprob of every target is minus its token."""

    calls: list[Any] = field(default_factory=list)

    def forward_backward(
        self, data: list[types.Datum], loss_fn: str, loss_fn_config: dict[str, float] | None = None
    ) -> asyncio.Future[Backward]:
        self.calls.append(
            (loss_fn, loss_fn_config, [datum.loss_fn_inputs["target_tokens"].tolist()[-1] for datum in data])
        )
        outputs = [
            {
                "logprobs": types.TensorData.from_numpy(
                    -datum.loss_fn_inputs["target_tokens"].to_numpy().astype(np.float32)
                )
            }
            for datum in data
        ]
        return self._done(Backward({"loss:sum": float(len(data))}, outputs))

    def optim_step(self, adam_params: types.AdamParams) -> asyncio.Future[Stepped]:
        self.calls.append(adam_params)
        return self._done(Stepped({"grad_norm:mean": 0.5}))

    @staticmethod
    def _done(value: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(value)
        return future


async def update(trainer: RecordingTrainer, tokens: list[int], num_substeps: int) -> PolicyUpdate:
    return await update_policy(
        trainer,  # pyright: ignore[reportArgumentType]
        [sequence(token) for token in tokens],
        PolicyLoss("ppo", {"clip_low_threshold": 0.9}),
        AdamConfig(beta2=0.99, grad_clip_norm=3.0).adam_params(1e-3),
        num_substeps,
    )


async def test_each_substep_is_one_backward_and_one_optimizer_step_in_order() -> None:
    trainer = RecordingTrainer()
    await update(trainer, [4, 5, 6], num_substeps=2)
    adam = types.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.0, grad_clip_norm=3.0)
    config = {"clip_low_threshold": 0.9}
    assert trainer.calls == [("ppo", config, [4, 5]), adam, ("ppo", config, [6]), adam]


async def test_trainer_logprobs_stay_with_their_sequence() -> None:
    result = await update(RecordingTrainer(), [4, 5, 6], num_substeps=3)
    assert [row.sequence.tokens[-1] for row in result.trained_D] == [4, 5, 6]
    assert [row.trainer_logprobs_T.tolist() for row in result.trained_D] == [[-4, -4], [-5, -5], [-6, -6]]


async def test_loss_is_reported_per_sampled_token_and_the_optimizers_metrics_are_passed_on() -> None:
    result = await update(RecordingTrainer(), [4, 5, 6], num_substeps=1)
    assert result.metrics == {"loss": 1.0, "optim/grad_norm": 0.5}


@dataclass
class CustomTrainer(RecordingTrainer):
    """Evaluates a custom loss at the trainer's logprobs, as the embedded engine does."""

    def forward_backward_custom(self, data: list[types.Datum], loss_fn: Any) -> asyncio.Future[Backward]:
        logprobs = [-datum.loss_fn_inputs["target_tokens"].to_torch().float() for datum in data]
        _, metrics = loss_fn(data, [values.requires_grad_() for values in logprobs])
        self.calls.append(("custom", [datum.loss_fn_inputs["target_tokens"].tolist()[-1] for datum in data]))
        outputs = [{"logprobs": types.TensorData.from_numpy(values.detach().numpy())} for values in logprobs]
        # What a server reports under this name is the loss of a surrogate.
        return self._done(Backward({**metrics, "loss:sum": 123.0}, outputs))


def on_policy_sequence(token: int) -> TrainingSequence:
    """The sampler's logprob is the trainer's; the reference's is 2 lower."""
    sampler_logprobs_T = np.asarray([0.0, -token], dtype=np.float32)
    return replace(
        sequence(token), sampler_logprobs_T=sampler_logprobs_T, reference_logprobs_T=sampler_logprobs_T - np.float32(2)
    )


async def custom_update(loss: PolicyLoss, kl: KLTerm | None) -> tuple[CustomTrainer, PolicyUpdate]:
    trainer = CustomTrainer()
    client: Any = trainer
    rows = [on_policy_sequence(token) for token in (4, 5, 6)]
    return trainer, await update_policy(client, rows, loss, AdamConfig().adam_params(1e-3), 2, kl=kl)


async def test_gspo_goes_through_a_custom_loss_with_its_own_value() -> None:
    trainer, result = await custom_update(PolicyLoss("gspo"), None)
    assert [call for call in trainer.calls if isinstance(call, tuple)] == [("custom", [4, 5]), ("custom", [6])]
    # Three replies of one token, ratio 1 and advantage 2.
    assert result.metrics == {"loss": -2.0, "optim/grad_norm": 0.5}
    assert [row.trainer_logprobs_T.tolist() for row in result.trained_D] == [[-4, -4], [-5, -5], [-6, -6]]


async def test_kl_in_the_loss_is_in_the_same_request_and_reported_apart() -> None:
    trainer, result = await custom_update(PolicyLoss("ppo"), KLTerm("k2", coef=0.1))
    assert [call for call in trainer.calls if isinstance(call, tuple)] == [("custom", [4, 5]), ("custom", [6])]
    # 0.1 * 2^2 / 2 for each token.
    assert result.metrics["loss_kl"] == pytest.approx(0.2)
    assert result.metrics["loss"] == pytest.approx(-2.0 + 0.2)


@pytest.mark.parametrize(("number", "parts", "sizes"), [(7, 3, [3, 2, 2]), (2, 4, [1, 1]), (6, 2, [3, 3]), (5, 1, [5])])
def test_parts_differ_by_one_at_most_and_keep_the_order(number: int, parts: int, sizes: list[int]) -> None:
    split = split_evenly(list(range(number)), parts)
    assert [len(part) for part in split] == sizes
    assert [item for part in split for item in part] == list(range(number))


def test_an_unknown_loss_names_the_nearest_one() -> None:
    with pytest.raises(
        InvalidRequest, match=r"loss_fn='importance_smpling' is not a policy loss.*'importance_sampling'\?"
    ):
        PolicyLoss("importance_smpling")
