"""Custom losses: what they declare and what is kept for them changes the cost, never the answer.

Axes: _T target token of one datum.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mint
from mint import errors, types
from mint.custom_losses import couples_only_within, has_declared_weighted_tokens, reads_weighted_tokens
from mint.engine import custom_forward
from mint.engine.forward import ForwardPass, HiddenRows
from mint.engine.projection import Projection

VOCAB = 60
PREFIX = list(range(20, 45))


def datum(tokens: list[int], weights: list[float] | None) -> types.Datum:
    inputs: dict[str, Any] = {"target_tokens": [*tokens[1:], 7]}
    if weights is not None:
        inputs["weights"] = weights
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def last_only(length: int) -> list[float]:
    return [0.0] * (length - 1) + [1.0]


def make_data() -> list[types.Datum]:
    """Unlike lengths, three that begin alike, weights on one token, on some, on none."""
    rng = np.random.default_rng(3)
    data = []
    for length in (30, 4, 17, 1):
        tokens = rng.integers(0, VOCAB, length).tolist()
        data.append(datum(tokens, rng.choice([0.0, 0.0, 1.0, -0.5], length).tolist()))
    for length in (6, 9, 2):
        tokens = [*PREFIX, *rng.integers(0, VOCAB, length).tolist()]
        data.append(datum(tokens, last_only(len(tokens))))
    data.append(datum([3, 4, 5], [0.0, 0.0, 0.0]))
    return data


def coupled(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    """Couples all datums, not linear, reads weighted tokens only, and has a slope of zero at some of them."""
    sums = [
        (torch.tensor(datum.loss_fn_inputs["weights"].tolist()) * own).sum()
        for datum, own in zip(data, logprobs, strict=True)
    ]
    loss = torch.sigmoid(sums[0] - sums[4] + 3) + (sums[2] - sums[5]) ** 2 * 0.01 + sums[6] + sums[1] * 0
    return loss, {"first": float(sums[0].detach())}


def unread(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    return coupled(data, logprobs)[0] + 0.1 * logprobs[4][2], {}


class Answer:
    """What a request gives: logprobs, metrics and the gradient it leaves."""

    def __init__(self, loss: Any, home: Path, model: Path, budget: int, train_unembed: bool, dtype: str) -> None:
        service = mint.ServiceClient(home=str(home), token_budget=budget, dtype=dtype)
        client = service.create_lora_training_client(str(model), rank=4, seed=3, train_unembed=train_unembed)
        adam = types.AdamParams(learning_rate=3e-2, eps=1e-8)
        data = make_data()
        client.forward_backward_custom(data, coupled).result()
        client.optim_step(adam).result()  # from here on no up-projection is zero
        output = client.forward_backward_custom(data, loss).result()
        self.logprobs = [outputs["logprobs"].to_numpy() for outputs in output.loss_fn_outputs]
        self.metrics = output.metrics
        backend: Any = client._backend
        self.gradient_F = backend._runs[client.model_id]._grads_F.double()


# In bfloat16 another packing is another rounding of everything.
@pytest.mark.parametrize(
    ("budget", "dtype"), [(1, "float32"), (40, "float32"), (10_000, "float32"), (10_000, "bfloat16")]
)
@pytest.mark.parametrize("train_unembed", [True, False])
def test_a_declared_loss_has_the_answer_of_the_plain_one(budget, train_unembed, dtype, mint_home, tiny_model_dir):
    """The oracle is the same loss without the declaration, all activations kept."""
    declared = reads_weighted_tokens(lambda data, logprobs: coupled(data, logprobs))
    plain = Answer(coupled, mint_home, tiny_model_dir, 10_000, train_unembed, dtype)
    tolerance = 1e-5 if dtype == "float32" else 0.1
    for loss in (declared, coupled):
        found = Answer(loss, mint_home, tiny_model_dir, budget, train_unembed, dtype)
        for own, expected, datum in zip(found.logprobs, plain.logprobs, make_data(), strict=True):
            weights_T = datum.loss_fn_inputs["weights"].to_numpy()
            if loss is declared:
                assert np.array_equal(own != 0, weights_T != 0)
                expected = np.where(weights_T != 0, expected, 0)
            np.testing.assert_allclose(own, expected, atol=tolerance)
        assert found.metrics == pytest.approx(plain.metrics, abs=tolerance)
        error = float((found.gradient_F - plain.gradient_F).norm() / plain.gradient_F.norm())
        assert error < (1e-5 if dtype == "float32" else 0.05)


class Watch:
    """Tokens of each forward pass, whether its graph was kept, and pairs of each projection, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forwards: list[tuple[int, bool]] = []
        self.projected: list[int] = []
        hidden, chunks = ForwardPass.hidden, Projection._chunks

        def watched_hidden(own: ForwardPass, batch: Any, rows_P: torch.Tensor) -> HiddenRows:
            self.forwards.append((len(batch.tokens_N), torch.is_grad_enabled()))
            return hidden(own, batch, rows_P)

        def watched_chunks(own: Projection) -> Any:
            self.projected.append(len(own._targets_P))
            return chunks(own)

        monkeypatch.setattr(ForwardPass, "hidden", watched_hidden)
        monkeypatch.setattr(Projection, "_chunks", watched_chunks)


def run_on_six(monkeypatch, home, model, loss: Any, **options: Any) -> Watch:
    """Six sequences of 20 tokens, a weight on the last of each, 40 tokens a micro-batch."""
    service = mint.ServiceClient(home=str(home), token_budget=40, share_prefixes=False)
    client = service.create_lora_training_client(str(model), rank=4, seed=3, **options)
    data = [datum([i, *range(i, i + 19)], last_only(20)) for i in range(6)]
    watch = Watch(monkeypatch)
    client.forward_backward_custom(data, loss).result()
    return watch


def total(data: Any, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    del data
    return torch.stack([own[-1] for own in logprobs]).sum(), {}


def test_only_so_many_activations_are_kept(monkeypatch, mint_home, tiny_model_dir):
    """Three micro-batches of 40; 1.5 budgets hold one, which comes last and is not run again."""
    monkeypatch.setattr(custom_forward, "_KEPT_BUDGETS", {"cpu": 1.5})
    watch = run_on_six(monkeypatch, mint_home, tiny_model_dir, total)
    assert watch.forwards == [(40, False), (40, False), (40, True), (40, True), (40, True)]
    monkeypatch.setattr(custom_forward, "_KEPT_BUDGETS", {"cpu": 3})
    assert run_on_six(monkeypatch, mint_home, tiny_model_dir, total).forwards[:3] == [(40, True)] * 3


def of_pairs(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    """A mean over pairs of neighbours, not linear, that reads weighted tokens only."""
    sums = [
        (torch.tensor(datum.loss_fn_inputs["weights"].tolist()) * own).sum()
        for datum, own in zip(data, logprobs, strict=True)
    ]
    margins = torch.stack([first - second for first, second in zip(sums[::2], sums[1::2], strict=True)])
    return -torch.nn.functional.logsigmoid(margins + 3).mean(), {"first": float(sums[0].detach())}


@pytest.mark.parametrize("budget", [1, 40, 100, 10_000])
@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("reads_weighted", [True, False])
def test_a_loss_of_groups_has_the_answer_of_the_plain_one(
    budget, share_prefixes, reads_weighted, mint_home, tiny_model_dir
):
    def run(loss: Any, **options: Any) -> tuple[types.ForwardBackwardOutput, torch.Tensor]:
        service = mint.ServiceClient(home=str(mint_home), dtype="float32", **options)
        client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
        client.forward_backward_custom(make_data(), of_pairs).result()
        client.optim_step(types.AdamParams(learning_rate=3e-2)).result()
        output = client.forward_backward_custom(make_data(), loss).result()
        backend: Any = client._backend
        return output, backend._runs[client.model_id]._grads_F.double()

    grouped = couples_only_within([0, 0, 1, 1, 2, 2, 3, 3])(lambda data, logprobs: of_pairs(data, logprobs))
    if reads_weighted:
        grouped = reads_weighted_tokens(grouped)
    expected, expected_F = run(of_pairs, token_budget=10_000)
    found, found_F = run(grouped, token_budget=budget, share_prefixes=share_prefixes)
    assert found.metrics == pytest.approx(expected.metrics, abs=1e-5)
    assert float((found_F - expected_F).norm() / expected_F.norm()) < 1e-5
    for own, plain, datum in zip(found.loss_fn_outputs, expected.loss_fn_outputs, make_data(), strict=True):
        is_read_T = datum.loss_fn_inputs["weights"].to_numpy() != 0 if reads_weighted else slice(None)
        np.testing.assert_allclose(
            own["logprobs"].to_numpy()[is_read_T], plain["logprobs"].to_numpy()[is_read_T], atol=1e-5
        )


def test_groups_are_done_one_after_another(monkeypatch, mint_home, tiny_model_dir):
    """Three micro-batches of two: each is kept and left behind before the next, however little may be kept."""
    calls = []

    def watched(data: Any, logprobs: list[torch.Tensor]) -> Any:
        calls.append(sum(bool(own.any()) for own in logprobs))
        return total(data, logprobs)

    monkeypatch.setattr(custom_forward, "_KEPT_BUDGETS", {"cpu": 1.0})
    alone = couples_only_within(range(6))(watched)
    assert run_on_six(monkeypatch, mint_home, tiny_model_dir, alone).forwards == [(40, True)] * 3
    assert calls == [2, 4, 6]
    # Groups that fit no micro-batch wait for all that hold a part; what cannot be kept meanwhile is run again.
    large = couples_only_within([0, 0, 0, 1, 1, 1])(lambda data, logprobs: total(data, logprobs))
    watch = run_on_six(monkeypatch, mint_home, tiny_model_dir, large)
    assert watch.forwards == [(40, False), (40, False), (40, True), (40, True), (40, True)]


def test_a_loss_that_couples_other_groups_is_refused(mint_home, tiny_model_dir):
    def squared(data: Any, logprobs: list[torch.Tensor]) -> Any:
        return total(data, logprobs)[0] ** 2, {}

    service = mint.ServiceClient(home=str(mint_home), token_budget=40)
    client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    data = [datum([i, *range(i, i + 19)], last_only(20)) for i in range(6)]
    with pytest.raises(
        errors.InvalidRequest, match="gradient of the custom loss in datum . depends on datums of other"
    ):
        client.forward_backward_custom(data, couples_only_within(range(6))(squared)).result()
    with pytest.raises(errors.InvalidRequest, match="no gradient has accumulated"):
        client.optim_step(types.AdamParams()).result()
    with pytest.raises(errors.InvalidRequest, match=r"couples_only_within\(5 groups\), and the request has 6 datums"):
        client.forward_backward_custom(data, couples_only_within(range(5))(lambda d, x: total(d, x))).result()


def test_each_logprob_that_is_read_is_projected_once(monkeypatch, mint_home, tiny_model_dir):
    declared = reads_weighted_tokens(lambda data, logprobs: total(data, logprobs))
    plain = run_on_six(monkeypatch, mint_home, tiny_model_dir, total, train_unembed=False)
    assert plain.projected == [40, 40, 40, 2, 2, 2]
    assert run_on_six(monkeypatch, mint_home, tiny_model_dir, declared, train_unembed=False).projected == [2, 2, 2]
    # The gradient of the unembedding's adapter needs the logits again.
    assert run_on_six(monkeypatch, mint_home, tiny_model_dir, declared).projected == [2, 2, 2, 2, 2, 2]


def test_a_declared_loss_that_reads_more_is_refused(service, tiny_model_dir):
    client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    declared = reads_weighted_tokens(lambda data, logprobs: unread(data, logprobs))
    with pytest.raises(
        errors.InvalidRequest, match=r"logprob of datum 4 at position 2, whose weight is zero.*give that"
    ):
        client.forward_backward_custom(make_data(), declared).result()
    with pytest.raises(errors.InvalidRequest, match="no gradient has accumulated"):
        client.optim_step(types.AdamParams()).result()
    client.forward_backward_custom(make_data(), unread).result()


def test_a_declared_loss_needs_weights_that_fit(service, tiny_model_dir):
    client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    declared = reads_weighted_tokens(lambda data, logprobs: (logprobs[0].sum(), {}))
    good = datum([3, 4], [1.0, 1.0])
    for bad, message in (
        (datum([3, 4], None), "datum 1: loss_fn_inputs has no 'weights'.*reads_weighted_tokens"),
        (datum([3, 4], [1.0]), r"datum 1: weights has shape \(1,\)"),
        (datum([3, 4], [1.0, float("nan")]), "datum 1: weights is nan at position 1"),
    ):
        with pytest.raises(errors.InvalidRequest, match=message):
            client.forward_backward_custom([good, bad], declared).result()
    client.forward_backward_custom([good, datum([3, 4], None)], lambda data, logprobs: (logprobs[0].sum(), {})).result()


def test_the_declaration_is_of_the_function_itself():
    @reads_weighted_tokens
    def own(data: Any, logprobs: Any) -> Any:
        return logprobs, data

    class Loss:
        def __call__(self, data: Any, logprobs: Any) -> Any:
            return logprobs, data

        def method(self, data: Any, logprobs: Any) -> Any:
            return logprobs, data

    assert own(1, 2) == (2, 1)
    assert has_declared_weighted_tokens(own)
    assert has_declared_weighted_tokens(reads_weighted_tokens(Loss()))
    assert has_declared_weighted_tokens(reads_weighted_tokens(partial(coupled)))
    # Another function that calls a declared one may read more.
    assert not has_declared_weighted_tokens(partial(own))
    assert not has_declared_weighted_tokens(coupled)
    with pytest.raises(errors.InvalidRequest, match="a method takes no attribute"):
        reads_weighted_tokens(Loss().method)
