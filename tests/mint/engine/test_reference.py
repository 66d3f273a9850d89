"""The engine against a slow, obvious re-implementation: transformers and peft, one sequence at a time, no padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import mint
from mint import types
from tests.random_model import make_random_model

LENGTHS = (9, 17, 5, 17, 30, 1)
SHARED_PREFIX = 20


class Reference:
    """A peft model trained with torch's own AdamW."""

    def __init__(self, model_dir: Path, rank: int, target_modules: list[str]) -> None:
        base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
        config = LoraConfig(r=rank, lora_alpha=32, lora_dropout=0.0, target_modules=target_modules)
        self.model = get_peft_model(base, config).eval()

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        named = {name.replace(".default", ""): p for name, p in self.model.named_parameters() if "lora_" in name}
        assert set(named) == set(tensors)
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(tensors[name])

    def adapter(self) -> dict[str, torch.Tensor]:
        return {n.replace(".default", ""): p.detach() for n, p in self.model.named_parameters() if "lora_" in n}

    def logprobs(self, datum: types.Datum, temperature: float = 1.0) -> torch.Tensor:
        tokens = torch.tensor([datum.model_input.to_ints()])
        logits = self.model(input_ids=tokens).logits[0].float() / temperature
        targets = datum.loss_fn_inputs["target_tokens"].to_torch()
        return torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]


def reference_loss(name: str, p: torch.Tensor, datum: types.Datum) -> torch.Tensor:
    """The formulas of docs/losses.md, written token by token."""
    inputs = {key: value.to_torch() for key, value in datum.loss_fn_inputs.items()}
    w = inputs.get("weights", torch.ones(len(p)))
    total = torch.zeros(())
    for t in range(len(p)):
        if name == "cross_entropy":
            total = total - w[t] * p[t]
            continue
        q, a = inputs["logprobs"][t], inputs["advantages"][t]
        ratio = torch.exp(p[t] - q)
        if name == "importance_sampling":
            total = total - w[t] * ratio * a
        elif name == "ppo":
            total = total - w[t] * min(ratio * a, ratio.clamp(0.8, 1.2) * a)
        elif name == "cispo":
            total = total - w[t] * ratio.detach().clamp(0.0, 4.0) * p[t] * a
        elif name == "dro":
            total = total - w[t] * (p[t] * a - 0.5 * 0.05 * (p[t] - q) ** 2)
    return total


def make_data(
    vocab: int, names: tuple[str, ...], seed: int = 0, lengths: tuple[int, ...] = LENGTHS
) -> list[types.Datum]:
    """Sequences of several lengths; the last three begin alike, as members of a group do."""
    rng = np.random.default_rng(seed)
    prefix = rng.integers(0, vocab, SHARED_PREFIX)
    sequences = [rng.integers(0, vocab, n) for n in lengths]
    sequences += [np.concatenate([prefix, rng.integers(0, vocab, n)]) for n in (4, 9, 2)]
    data = []
    for tokens in sequences:
        inputs: dict[str, Any] = {"target_tokens": np.append(tokens[1:], rng.integers(0, vocab))}
        if "weights" in names:
            inputs["weights"] = rng.choice([0.0, 1.0, 0.5, -0.7], len(tokens)).astype(np.float32)
        if "logprobs" in names:
            inputs["logprobs"] = rng.normal(-8, 1, len(tokens)).astype(np.float32)
            inputs["advantages"] = rng.choice([0.0, 1.0, -1.0, 0.3], len(tokens)).astype(np.float32)
        data.append(types.Datum(model_input=types.ModelInput.from_ints(tokens.tolist()), loss_fn_inputs=inputs))
    return data


def adapter_of(client: mint.TrainingClient, home: Path, name: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    path = client.save_weights_for_sampler(name).result().path
    run_id, kind, checkpoint = path.removeprefix("mint://").split("/")
    return load_file(home / "runs" / run_id / kind / checkpoint / "adapter_model.safetensors")


def assert_close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float) -> None:
    worst = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
    assert worst <= tolerance, f"largest difference {worst:.2e}"


ALL_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]


def accumulated_gradient(client: mint.TrainingClient) -> dict[str, torch.Tensor]:
    """What has accumulated in the engine, by the names that peft uses."""
    backend: Any = client._backend
    run = backend._runs[client.model_id]
    return run.layout.to_peft(run._grads_F)


def assert_training_equals(
    client: mint.TrainingClient, reference: Reference, home: Path, loss: str, names: tuple[str, ...],
    params: types.AdamParams, steps: int = 5, lengths: tuple[int, ...] = LENGTHS,
) -> None:  # fmt: skip
    """Adam steps on the same data: logprobs, losses, gradients and at the end the weights agree to 1e-5."""
    reference.load(adapter_of(client, home, "start"))
    parameters = [p for p in reference.model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(
        parameters, lr=params.learning_rate, betas=(0.9, 0.95), eps=params.eps, weight_decay=params.weight_decay
    )
    for step in range(steps):
        data = make_data(reference.model.config.vocab_size, names, seed=step, lengths=lengths)
        output = client.forward_backward(data[:4], loss).result()  # two calls: gradients add up
        output2 = client.forward_backward(data[4:], loss).result()
        losses = []
        for i, datum in enumerate(data):
            p = reference.logprobs(datum)
            losses.append(reference_loss(loss, p, datum))
            ours = (output.loss_fn_outputs + output2.loss_fn_outputs)[i]["logprobs"].to_torch()
            carries = ours != 0
            torch.testing.assert_close(ours[carries], p.detach()[carries].float(), atol=1e-5, rtol=0)
        total = torch.stack(losses).sum()
        assert output.metrics["loss:sum"] + output2.metrics["loss:sum"] == pytest.approx(
            float(total.detach()), rel=1e-5, abs=1e-4
        )
        adam.zero_grad()
        total.backward()
        assert_gradients_close(accumulated_gradient(client), reference)
        if params.grad_clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, params.grad_clip_norm)
        adam.step()
        client.optim_step(params).result()
    assert_close(adapter_of(client, home, "end"), reference.adapter(), 1e-5)


def assert_gradients_close(ours: dict[str, torch.Tensor], reference: Reference) -> None:
    """Of all tensors together, in norm and at the worst entry; what is zero there is zero here."""
    named = {n.replace(".default", ""): p for n, p in reference.model.named_parameters() if p.requires_grad}
    assert set(ours) == set(named)
    theirs = {name: p.grad for name, p in named.items() if p.grad is not None}
    assert set(theirs) == set(named)
    a, b = (torch.cat([tensors[name].flatten().double() for name in sorted(theirs)]) for tensors in (ours, theirs))
    assert float((a - b).norm() / b.norm()) <= 1e-5
    assert float((a - b).abs().max() / b.abs().max()) <= 1e-5


CASES = [
    ("cross_entropy", ("weights",)),
    *(
        (loss, names)
        for loss in ("importance_sampling", "ppo", "cispo", "dro")
        for names in (("logprobs",), ("weights", "logprobs"))
    ),
]


@pytest.mark.parametrize(("loss", "names"), CASES)
def test_five_adam_steps_equal_peft_and_torch(loss, names, service, mint_home, tiny_model_dir):
    client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    params = types.AdamParams(learning_rate=1e-3, eps=1e-8, weight_decay=0.1, grad_clip_norm=1.0)
    assert_training_equals(client, Reference(tiny_model_dir, 4, ALL_MODULES), mint_home, loss, names, params)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("clip", [0.0, 1e6, 0.3])  # none, one that never binds, one that always does
def test_clipping_and_weight_decay_equal_torch(weight_decay, clip, service, mint_home, tiny_model_dir):
    client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    params = types.AdamParams(learning_rate=1e-3, eps=1e-8, weight_decay=weight_decay, grad_clip_norm=clip)
    reference = Reference(tiny_model_dir, 4, ALL_MODULES)
    assert_training_equals(client, reference, mint_home, "cross_entropy", ("weights",), params, steps=3)


SWITCHES = [
    ({}, ALL_MODULES),
    ({"train_attn": False}, ["gate_proj", "up_proj", "down_proj", "lm_head"]),
    ({"train_mlp": False}, ["q_proj", "k_proj", "v_proj", "o_proj", "lm_head"]),
    ({"train_unembed": False}, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    ({"train_attn": False, "train_mlp": False}, ["lm_head"]),
    ({"train_attn": False, "train_unembed": False}, ["gate_proj", "up_proj", "down_proj"]),
    ({"train_mlp": False, "train_unembed": False}, ["q_proj", "k_proj", "v_proj", "o_proj"]),
]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("switches", "modules"), SWITCHES)
def test_each_switch_trains_exactly_its_modules(switches, modules, tied, service, mint_home, tmp_path):
    folder = make_random_model(tmp_path / "model", tied=tied)
    client = service.create_lora_training_client(str(folder), rank=2, seed=1, **switches)
    params = types.AdamParams(learning_rate=1e-3, eps=1e-8)
    assert_training_equals(client, Reference(folder, 2, modules), mint_home, "cross_entropy", ("weights",), params)


@pytest.mark.parametrize(
    "sizes",
    [
        {"head_dim": 32},  # four heads of 32 on a width of 64, as Qwen3-0.6B has 16 of 128 on 1024
        {"head_dim": 8},
        {"num_attention_heads": 8, "num_key_value_heads": 1},
        {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 20},
        {"num_attention_heads": 4, "num_key_value_heads": 4},
        {"num_hidden_layers": 5, "hidden_size": 48, "intermediate_size": 200},
    ],
    ids=lambda sizes: "-".join(f"{name}={value}" for name, value in sizes.items()),
)
def test_every_shape_of_decoder_equals_transformers(sizes, service, mint_home, tmp_path):
    folder = make_random_model(tmp_path / "model", tied=False, **sizes)
    client = service.create_lora_training_client(str(folder), rank=2, seed=1)
    params = types.AdamParams(learning_rate=1e-3, eps=1e-8)
    data_lengths = (9, 60, 1, 33, 17)
    reference = Reference(folder, 2, ALL_MODULES)
    assert_training_equals(
        client, reference, mint_home, "cross_entropy", ("weights",), params, steps=2, lengths=data_lengths
    )
    # The decoder with a cache, which is other code: greedy replies, token by token.
    sampler = client.save_weights_and_get_sampling_client()
    greedy = types.SamplingParams(max_tokens=10, temperature=0, stop=[])
    prompt = list(range(40, 75))
    ours = sampler.sample(types.ModelInput.from_ints(prompt), 1, greedy).result().sequences[0].tokens
    sequence = list(prompt)
    for _ in range(10):
        with torch.no_grad():
            sequence.append(int(reference.model(input_ids=torch.tensor([sequence])).logits[0, -1].argmax()))
    assert ours == sequence[len(prompt) :]


def test_sequences_as_long_as_the_context(service, mint_home, tiny_model_dir):
    client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    params = types.AdamParams(learning_rate=1e-3, eps=1e-8)
    reference, long = Reference(tiny_model_dir, 4, ALL_MODULES), (512, 500, 130, 512)
    assert_training_equals(client, reference, mint_home, "cross_entropy", ("weights",), params, steps=2, lengths=long)


def test_forward_gives_every_logprob(service, tiny_model_dir, mint_home):
    client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    reference = Reference(tiny_model_dir, 4, ["q_proj"])  # fresh adapters change nothing
    data = make_data(reference.model.config.vocab_size, ("weights",))
    output = client.forward(data, "cross_entropy").result()
    for datum, out in zip(data, output.loss_fn_outputs, strict=True):
        torch.testing.assert_close(out["logprobs"].to_torch(), reference.logprobs(datum).detach(), atol=1e-5, rtol=0)
    with pytest.raises(mint.errors.InvalidRequest, match="no gradient has accumulated"):
        client.optim_step(types.AdamParams()).result()


def test_custom_loss_gradient_equals_autograd(service, tiny_model_dir, mint_home):
    """A loss that couples sequences: the squared difference of two summed logprobs, plus a nonlinear term."""
    client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    reference = Reference(tiny_model_dir, 4, ALL_MODULES)
    reference.load(adapter_of(client, mint_home, "start"))

    def coupled(data, logprobs):
        del data
        loss = (logprobs[0].sum() - logprobs[7].sum()) ** 2 * 0.01 + torch.sigmoid(logprobs[8][-1] + 8) * 3
        return loss, {"answer": 42.0}

    data = make_data(reference.model.config.vocab_size, ())
    output = client.forward_backward_custom(data, coupled).result()
    assert output.metrics["answer"] == 42.0
    client.optim_step(types.AdamParams(learning_rate=1e-3, eps=1e-8)).result()
    parameters = [p for p in reference.model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    loss, _ = coupled(data, [reference.logprobs(datum) for datum in data])
    loss.backward()
    adam.step()
    assert output.metrics["loss:sum"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert_close(adapter_of(client, mint_home, "end"), reference.adapter(), 1e-5)


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_temperature_scales_the_trainers_logits(temperature, service, tiny_model_dir):
    client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=3)
    reference = Reference(tiny_model_dir, 4, ["q_proj"])
    data = make_data(reference.model.config.vocab_size, ("weights",))
    output = client.forward(data, "cross_entropy", {"temperature": temperature}).result()
    for datum, out in zip(data, output.loss_fn_outputs, strict=True):
        expected = reference.logprobs(datum, temperature).detach()
        torch.testing.assert_close(out["logprobs"].to_torch(), expected, atol=1e-5, rtol=0)
