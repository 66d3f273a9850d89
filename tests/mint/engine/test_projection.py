"""Logprobs of target tokens and their gradients against autograd over the whole (pairs x vocabulary) tensor.

Axes: _P pairs, _H hidden, _V vocabulary, _R LoRA rank.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mint.engine import projection
from mint.engine.adapters import LoraWeights, UnembedLora
from mint.engine.projection import Projection

NUM_PAIRS, HIDDEN, VOCAB, RANK = 23, 16, 97, 4
# Bytes of a chunk, least pairs of a chunk, logits of a block: one of each, many, uneven ones.
CUTS = [(2**26, 128, 2**18), (1, 1, 1), (32 * VOCAB, 1, 3 * VOCAB), (1, 10, 2**18)]


class Case:
    """Random weights and pairs. With `has_adapter` the unembedding carries one."""

    def __init__(self, has_adapter: bool = False, dtype: torch.dtype = torch.float32, sharpness: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(7)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.decoder: Any = SimpleNamespace(unembedding=(draw(VOCAB, HIDDEN) * 0.5).to(dtype))
        self.hidden_PH = (draw(NUM_PAIRS, HIDDEN) * sharpness).to(dtype)
        self.targets_P = torch.randint(0, VOCAB, (NUM_PAIRS,), generator=generator)
        self.slope_P = draw(NUM_PAIRS)
        self.lora = None
        if has_adapter:
            a, b = draw(RANK, HIDDEN) * 0.3, draw(VOCAB, RANK) * 0.3
            a.grad, b.grad = torch.zeros_like(a), torch.zeros_like(b)
            self.lora = LoraWeights(scale=2.0, layers=[], unembed=UnembedLora(a, b))

    def projection(self, temperature: float = 1.0) -> Projection:
        return Projection(self.decoder, self.lora, self.hidden_PH, self.targets_P, temperature)

    def oracle(self, temperature: float = 1.0) -> tuple[Tensor, list[Tensor]]:
        """(logprobs_PV, gradients of Σ slope · logprob of the target in the hidden states, a and b), in float64."""
        leaves = [self.hidden_PH.double().requires_grad_()]
        logits_PV = leaves[0] @ self.decoder.unembedding.double().t()
        if self.lora is not None:
            assert self.lora.unembed is not None
            leaves += [x.double().requires_grad_() for x in (self.lora.unembed.a, self.lora.unembed.b)]
            logits_PV = logits_PV + self.lora.scale * (leaves[0] @ leaves[1].t()) @ leaves[2].t()
        logprobs_PV = torch.log_softmax(logits_PV / temperature, dim=-1)
        (self.slope_P.double() * self.target(logprobs_PV)).sum().backward()
        gradients = []
        for leaf in leaves:
            assert leaf.grad is not None
            gradients.append(leaf.grad)
        return logprobs_PV.detach(), gradients

    def target(self, logprobs_PV: Tensor) -> Tensor:
        return logprobs_PV.gather(1, self.targets_P[:, None])[:, 0]

    def assert_adapter_gradients(self, expected: list[Tensor]) -> None:
        if self.lora is not None:
            assert self.lora.unembed is not None
            for found, theirs in zip((self.lora.unembed.a.grad, self.lora.unembed.b.grad), expected, strict=True):
                assert found is not None
                torch.testing.assert_close(found, theirs.float(), atol=1e-5, rtol=1e-5)


@pytest.fixture(params=CUTS, ids=str)
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(("_CHUNK_BYTES", "_SMALLEST_CHUNK", "_BLOCK_FLOATS"), request.param, strict=True):
        monkeypatch.setattr(projection, name, value)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("has_adapter", [False, True])
def test_logprobs_and_gradients_equal_autograd(has_adapter: bool, temperature: float) -> None:
    case = Case(has_adapter)
    logprobs_PV, (gradient_PH, *adapter) = case.oracle(temperature)
    expected_P = case.target(logprobs_PV).float()
    close: Any = {"atol": 2e-6, "rtol": 1e-5}

    torch.testing.assert_close(case.projection(temperature).logprobs(), expected_P, **close)
    ids, values = case.projection(temperature).topk(5)
    torch.testing.assert_close(values, logprobs_PV.topk(5).values.float(), **close)
    torch.testing.assert_close(logprobs_PV.gather(1, ids).float(), values, **close)

    def weighted(logprobs_C: Tensor, chunk: slice) -> Tensor:
        return case.slope_P[chunk] * logprobs_C

    logprobs_P, loss_P, found_PH = case.projection(temperature).loss_and_gradient(weighted)
    torch.testing.assert_close(logprobs_P, expected_P, **close)
    torch.testing.assert_close(loss_P, case.slope_P * expected_P, **close)
    torch.testing.assert_close(found_PH, gradient_PH.float(), **close)
    case.assert_adapter_gradients(adapter)

    again = Case(has_adapter)
    torch.testing.assert_close(again.projection(temperature).gradient(case.slope_P), gradient_PH.float(), **close)
    again.assert_adapter_gradients(adapter)


@pytest.mark.usefixtures("cut")
def test_slopes_scaled_later_are_the_gradient() -> None:
    case = Case()
    logprobs_PV, (gradient_PH,) = case.oracle(0.6)
    logprobs_P, slopes_PH = case.projection(0.6).logprobs_and_slopes()
    torch.testing.assert_close(logprobs_P, case.target(logprobs_PV).float(), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(slopes_PH * case.slope_P[:, None], gradient_PH.float(), atol=2e-6, rtol=1e-5)
    with pytest.raises(AssertionError, match="the unembedding's adapter needs the slopes"):
        Case(has_adapter=True).projection().logprobs_and_slopes()


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("has_adapter", [False, True])
def test_bfloat16_is_off_by_its_own_rounding(has_adapter: bool) -> None:
    """Logits of size ten with eight bits; the gradient is compared by direction and length."""
    case = Case(has_adapter, dtype=torch.bfloat16)
    logprobs_PV, (gradient_PH, *_) = case.oracle()
    logprobs_P, _, found_PH = case.projection().loss_and_gradient(lambda p, chunk: case.slope_P[chunk] * p)
    assert logprobs_P.dtype == torch.float32 and found_PH.dtype == torch.bfloat16
    torch.testing.assert_close(logprobs_P, case.target(logprobs_PV).float(), atol=0.1, rtol=0)
    assert float((found_PH - gradient_PH).norm() / gradient_PH.norm()) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_nearly_certain_target_keeps_its_small_gradient(dtype: torch.dtype) -> None:
    """1 - p is far below the precision of p in bfloat16, yet the gradient, which is proportional to it, is right."""
    case = Case(dtype=dtype, sharpness=6.0)
    logits_PV = case.hidden_PH.double() @ case.decoder.unembedding.double().t()
    case.targets_P = logits_PV.argmax(dim=-1)
    logprobs_PV, (gradient_PH,) = case.oracle()
    is_certain_P = (case.target(logprobs_PV) > -1e-2) & (case.target(logprobs_PV) < -1e-5)
    assert int(is_certain_P.sum()) >= 2, "the case shows nothing"
    found_PH = case.projection().gradient(case.slope_P)
    errors_P = (found_PH - gradient_PH).norm(dim=1) / gradient_PH.norm(dim=1)
    assert float(errors_P[is_certain_P].max()) < (0.3 if dtype == torch.bfloat16 else 0.02)


def test_a_target_out_of_reach_has_its_logprob_and_a_finite_gradient() -> None:
    """The softmax of the target is zero in float32, its logprob is not minus infinity."""
    case = Case(sharpness=60.0)
    logits_PV = case.hidden_PH @ case.decoder.unembedding.t()
    case.targets_P = logits_PV.argmin(dim=-1)
    logprobs_PV, (gradient_PH,) = case.oracle()
    expected_P = case.target(logprobs_PV).float()
    assert float(expected_P.max()) < -110
    logprobs_P, slopes_PH = case.projection().logprobs_and_slopes()
    torch.testing.assert_close(logprobs_P, expected_P, atol=1e-4, rtol=1e-6)
    torch.testing.assert_close(slopes_PH * case.slope_P[:, None], gradient_PH.float(), atol=1e-5, rtol=1e-5)


def test_what_is_not_finite_shows_in_its_own_row() -> None:
    case = Case()
    case.hidden_PH[3, 5] = torch.nan
    is_bad_P = ~torch.isfinite(case.projection().logprobs())
    assert is_bad_P.nonzero().flatten().tolist() == [3]


def test_no_pairs_have_no_logprobs() -> None:
    case = Case()
    case.hidden_PH, case.targets_P = case.hidden_PH[:0], case.targets_P[:0]
    assert case.projection().logprobs().shape == (0,)
    logprobs_P, slopes_PH = case.projection().logprobs_and_slopes()
    assert logprobs_P.shape == (0,) and slopes_PH.shape == (0, HIDDEN)
