"""FusedOps against PlainOps, values and gradients, and the memory setting that comes with it.

Axes: _N tokens, _H hidden, _Q query heads, _K key/value heads, _D head dimension, _M MLP width.
"""

from __future__ import annotations

import math
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import mint
from mint.engine.base_model import ComputeOptions
from mint.engine.few_row_ops import FewRowOps
from mint.engine.fused_ops import FusedOps
from mint.engine.layer_ops import AttendHeads, LayerOps, LowRank, PlainOps, Rotation
from mint.engine.remade import remade

# More tokens than a block holds, so that several blocks and a shorter last one are tried.
SIZES = st.sampled_from([1, 3, 64, 700])
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}


def assert_same(compute: Callable[[LayerOps], Sequence[Tensor]], leaves: Sequence[Tensor]) -> None:
    """Both kinds of operation give the same values and gradients, and the same values where none is asked for."""
    found, expected = ([*compute(ops)] for ops in (FusedOps(), PlainOps()))
    slopes = [torch.randn_like(y) for y in expected]
    gradients, expected_gradients = (torch.autograd.grad(ys, leaves, slopes) for ys in (found, expected))
    assert_close([*found, *gradients], [*expected, *expected_gradients], leaves[0].dtype)
    fused = FusedOps()
    with torch.no_grad():
        ops = fused.for_rows(len(leaves[0]))
        for _ in range(2):  # weights are prepared, then found prepared
            assert_close([*compute(ops)], expected, leaves[0].dtype)


def assert_close(found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype) -> None:
    """To rounding in `dtype`, relative to the largest of each tensor."""
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        scale = theirs.float().abs().max().item() or 1.0
        assert (ours.float() - theirs.float()).abs().max().item() <= TOLERANCE[dtype] * scale


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=10)
@given(num_tokens=SIZES, seed=st.integers(0, 99))
def test_norm(dtype: torch.dtype, num_tokens: int, seed: int) -> None:
    torch.manual_seed(seed)
    x_NH, weight_H = leaf(num_tokens, 640, dtype=dtype), torch.rand(640).to(dtype)
    assert_same(lambda ops: [ops.norm(x_NH, weight_H, 1e-6)], [x_NH])


def test_norm_of_worked_numbers() -> None:
    """x = (3, 4): mean square 12.5, so y = x / sqrt(12.5); dy0/dx is (1 / rms) (1 - 9/25, -12/25)."""
    x_NH = torch.tensor([[3.0, 4.0]], requires_grad=True)
    y_NH = FusedOps().norm(x_NH, torch.ones(2), 0.0)
    rms = math.sqrt(12.5)
    torch.testing.assert_close(y_NH, torch.tensor([[3 / rms, 4 / rms]]))
    (gradient_NH,) = torch.autograd.grad(y_NH[0, 0], x_NH)
    torch.testing.assert_close(gradient_NH, torch.tensor([[(1 - 9 / 25) / rms, -12 / 25 / rms]]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [0, 4])
@settings(max_examples=10)
@given(num_tokens=SIZES, seed=st.integers(0, 99))
def test_gated_linear(dtype: torch.dtype, rank: int, num_tokens: int, seed: int) -> None:
    torch.manual_seed(seed)
    gate_up, weight = leaf(num_tokens, 2 * 768, dtype=dtype), torch.randn(96, 768).to(dtype)
    a, b = leaf(rank, 768), leaf(96, rank)
    lora = LowRank(a, (b,), scale=2.0) if rank else None
    assert_same(lambda ops: [ops.gated_linear(gate_up, weight, lora)], [gate_up, *((a, b) if rank else ())])


def test_gated_linear_of_worked_numbers() -> None:
    """gate 0, up 3: silu(0) = 0 with slope 1/2, so y = 0, dy/dgate = 3/2 and dy/dup = 0, each times the weight 2."""
    gate_up = torch.tensor([[0.0, 3.0]], requires_grad=True)
    y = FusedOps().gated_linear(gate_up, torch.tensor([[2.0]]), None)
    (gradient,) = torch.autograd.grad(y, gate_up)
    assert y.tolist() == [[0.0]] and gradient.tolist() == [[3.0, 0.0]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_query_heads", "num_kv_heads"), [(4, 2), (3, 3), (6, 1)])
@settings(max_examples=5)
@given(num_tokens=SIZES, seed=st.integers(0, 99))
def test_heads(dtype: torch.dtype, num_query_heads: int, num_kv_heads: int, num_tokens: int, seed: int) -> None:
    torch.manual_seed(seed)
    head_dim = 32
    qkv = leaf(num_tokens, (num_query_heads + 2 * num_kv_heads) * head_dim, dtype=dtype)
    norms = [torch.rand(head_dim).to(dtype) + 0.5 for _ in range(2)]
    angles = torch.rand(num_tokens, 1, head_dim // 2) * 100
    rotation = Rotation(*(torch.cat([half, half], dim=-1).to(dtype) for half in (angles.cos(), angles.sin())))
    query_norm, key_norm = norms

    def all_of(ops: LayerOps, attend: AttendHeads) -> Tensor:
        return ops.attended(qkv, query_norm, key_norm, num_query_heads, rotation, 1e-6, attend)

    def heads(ops: LayerOps) -> Sequence[Tensor]:
        seen: list[Tensor] = []
        all_of(ops, lambda *heads: seen.extend(heads) or qkv)
        return seen

    assert_same(heads, [qkv])
    # Each head is a factor, so each is needed in the backward pass.
    repeated = num_query_heads // num_kv_heads
    assert_same(
        lambda ops: [
            all_of(ops, lambda q, k, v: q * k.repeat_interleave(repeated, 1) * v.repeat_interleave(repeated, 1))
        ],
        [qkv],
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [0, 4])
@settings(max_examples=10)
@given(num_tokens=SIZES, seed=st.integers(0, 99))
def test_norm_linear(dtype: torch.dtype, rank: int, num_tokens: int, seed: int) -> None:
    torch.manual_seed(seed)
    x_NH, norm_weight_H, weight = leaf(num_tokens, 640, dtype=dtype), torch.rand(640), torch.randn(96, 640).to(dtype)
    a, b = leaf(rank, 640), leaf(96, rank)
    lora = LowRank(a, (b,), scale=2.0) if rank else None
    assert_same(
        lambda ops: [ops.norm_linear(x_NH, norm_weight_H.to(dtype), 1e-6, weight, lora)],
        [x_NH, *((a, b) if rank else ())],
    )


def test_what_is_made_again_is_not_kept_and_made_once() -> None:
    x = leaf(1000)
    y, num_calls = x.sin(), []
    with remade(y, lambda: num_calls.append(1) or x.detach().sin()):
        product = x.exp() * y
    alive = weakref.ref(y.untyped_storage())
    del y
    assert alive() is None and num_calls == []
    (gradient,) = torch.autograd.grad(product.sum(), x)
    assert len(num_calls) == 1
    torch.testing.assert_close(gradient, x.exp() * (x.sin() + x.cos()))


def test_the_bits_are_those_of_what_is_kept() -> None:
    x, norm_weight, weight = leaf(50, 64, dtype=torch.bfloat16), torch.rand(64), torch.randn(32, 64).bfloat16()
    a, b = leaf(4, 64), leaf(32, 4)
    gradients = []
    for remakes in (True, False):
        y = FusedOps(remakes).norm_linear(x, norm_weight, 1e-6, weight, LowRank(a, (b,), 2.0))
        gradients.append(torch.autograd.grad(y.float().square().sum(), (x, a, b)))
    assert all(torch.equal(ours, kept) for ours, kept in zip(*gradients, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("widths", [(), (96,), (96, 32), (64, 32, 32)])
@settings(max_examples=5)
@given(num_tokens=SIZES, seed=st.integers(0, 99))
def test_linear(dtype: torch.dtype, widths: tuple[int, ...], num_tokens: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = leaf(num_tokens, 80, dtype=dtype), torch.randn(sum(widths) or 128, 80).to(dtype)
    a, bs = leaf(len(widths) * 4, 80), tuple(leaf(width, 4) for width in widths)
    lora = LowRank(a, bs, scale=2.0) if widths else None
    assert_same(lambda ops: [ops.linear(x, weight, lora)], [x, *((a, *bs) if widths else ())])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("widths", [(96,), (64, 32, 32)])
@settings(max_examples=5)
@given(num_tokens=st.sampled_from([1, 3, 64, 200]), scale=st.sampled_from([2.0, 32 / 24]), seed=st.integers(0, 99))
def test_adapter_for_sampling(
    dtype: torch.dtype, widths: tuple[int, ...], num_tokens: int, scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(num_tokens, 80).to(dtype), torch.randn(sum(widths), 80).to(dtype)
    lora = LowRank(torch.randn(len(widths) * 4, 80), tuple(torch.randn(width, 4) for width in widths), scale)
    expected = PlainOps().linear(x, weight, lora)
    with torch.no_grad():
        for ops in (PlainOps(), FusedOps()):
            own = ops.for_sampling(lora, dtype)
            assert_close([ops.for_rows(num_tokens).linear(x, weight, own)], [expected], dtype)


def test_a_checkpointed_layer_keeps_nothing_of_its_inside() -> None:
    """Not even for the sake of what would be made again from it."""
    qkv_weight, norm = torch.randn(3 * 16, 8), torch.ones(16)
    rotation = Rotation(torch.ones(5, 1, 16), torch.zeros(5, 1, 16))
    inside = []

    def layer(x: Tensor) -> Tensor:
        ops = FusedOps().for_rows(5, is_checkpointed=True)
        qkv = ops.norm_linear(x, torch.ones(8), 1e-6, qkv_weight, None)
        inside.append(weakref.ref(qkv.untyped_storage()))
        return ops.attended(qkv, norm, norm, 1, rotation, 1e-6, lambda q, k, v: q * k * v)

    x = leaf(5, 8)
    y = checkpoint(layer, x, use_reentrant=False)
    assert inside[0]() is None
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(layer(x).sum(), x)[0])


def test_few_rows_without_gradient_have_weights_of_their_own_until_something_trains() -> None:
    fused, x, weight = FusedOps(), torch.randn(129, 64), torch.randn(96, 64)
    with torch.no_grad():
        assert fused.for_rows(129) is fused
        few = fused.for_rows(128)
        few.linear(x[:128], weight, None)
    assert isinstance(few, FewRowOps) and len(few._prepared) == 1
    assert fused.for_rows(1) is fused and not few._prepared


def test_first_layer_computes_no_gradient_that_nobody_asks_for() -> None:
    x, weight = torch.randn(5, 8), torch.randn(6, 8)
    a, b = leaf(2, 8), leaf(6, 2)
    FusedOps().linear(x, weight, LowRank(a, (b,), 1.0)).sum().backward()
    assert x.grad is None and a.grad is not None and b.grad is not None


def test_the_switch_gives_the_same_training(mint_home: Path) -> None:
    tokens = list(range(10, 40))
    arrays = {"target_tokens": np.asarray(tokens[1:]), "weights": np.ones(29, dtype=np.float32)}
    datum = mint.types.Datum(
        model_input=mint.types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={name: mint.types.TensorData.from_numpy(array) for name, array in arrays.items()},
    )
    losses: list[float] = []
    for fused_ops in (True, False):
        service = mint.ServiceClient(home=str(mint_home), fused_ops=fused_ops)
        client = service.create_lora_training_client("mint-tiny", rank=4, seed=0)
        for _ in range(3):
            output = client.forward_backward([datum], "cross_entropy").result()
            client.optim_step(mint.types.AdamParams(learning_rate=1e-3)).result()
            losses.append(output.metrics["loss:sum"])
    assert losses[:3] == pytest.approx(losses[3:], abs=1e-3)
    assert losses[2] < losses[0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_freed_memory_is_used_again_without_new_pages() -> None:
    """Every block of 80 MB costs some 19,531 page faults by default; with reuse the later ones cost few.

    Each is a little smaller: of exactly the same size a block may miss the few bytes of its alignment.
    """
    program = """
import resource, torch
from mint.engine.host_memory import keep_freed_memory
assert keep_freed_memory(is_large_model=False)
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for i in range(5):
    before = faults()
    torch.ones(20_000_000 - 1000 * i)
    print(faults() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 2000


class _Config:
    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        self.hidden_size, self.dtype = hidden_size, dtype
        self.num_hidden_layers, self.intermediate_size = 28, 3 * hidden_size


@pytest.mark.parametrize(
    ("options", "hidden", "stored", "has_instructions", "expected"),
    [
        (ComputeOptions("cpu"), 1024, torch.bfloat16, True, torch.bfloat16),
        (ComputeOptions("cpu"), 1024, torch.bfloat16, False, torch.float32),
        (ComputeOptions("cpu"), 1024, torch.float32, True, torch.float32),
        (ComputeOptions("cpu"), 128, torch.bfloat16, True, torch.float32),
        (ComputeOptions("cpu", "float32"), 1024, torch.bfloat16, True, torch.float32),
        (ComputeOptions("cpu", "bfloat16"), 128, torch.float32, False, torch.bfloat16),
    ],
)
def test_dtype_is_chosen_for_model_and_processor(
    options: ComputeOptions,
    hidden: int,
    stored: torch.dtype,
    has_instructions: bool,
    expected: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mint.engine.base_model._multiplies_bfloat16", lambda: has_instructions)
    assert options.resolve_dtype(_Config(hidden, stored)) == expected
