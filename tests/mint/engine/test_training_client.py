"""TrainingClient: order, accumulation, failures that change nothing, tenants, checkpoints, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mint import errors, types

ADAM = types.AdamParams(learning_rate=1e-2, eps=1e-8)


def datum(tokens: list[int], **inputs) -> types.Datum:
    fields = {"target_tokens": [*tokens[1:], 1], **inputs}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=fields)


def sft(tokens: list[int]) -> types.Datum:
    return datum(tokens, weights=[1.0] * len(tokens))


A, B = sft(list(range(10, 30))), sft([7, 3, 250, 8])


@pytest.fixture
def make_client(service, tiny_model_dir):
    return lambda **kwargs: service.create_lora_training_client(str(tiny_model_dir), **{"rank": 4, "seed": 3, **kwargs})


def logprobs_of(client, data=(A, B)) -> list[float]:
    outputs = client.forward(list(data), "cross_entropy").result().loss_fn_outputs
    return [x for output in outputs for x in output["logprobs"].tolist()]


def test_requests_take_effect_in_order_without_waiting(make_client):
    patient, hasty = make_client(), make_client()
    for _ in range(3):
        patient.forward_backward([A], "cross_entropy").result()
        patient.optim_step(ADAM).result()
    futures = []
    for _ in range(3):
        futures += [hasty.forward_backward([A], "cross_entropy"), hasty.optim_step(ADAM)]
    snapshot = hasty.save_weights_and_get_sampling_client()
    assert logprobs_of(hasty) == logprobs_of(patient)
    scored = snapshot.compute_logprobs(A.model_input).result()
    np.testing.assert_allclose(scored[1:], logprobs_of(patient, [A])[:-1], atol=1e-5)


def test_gradients_add_up_and_are_cleared(make_client):
    twice, together = make_client(), make_client()
    twice.forward_backward([A], "cross_entropy")
    twice.forward_backward([B], "cross_entropy")
    together.forward_backward([A, B], "cross_entropy")
    for client in (twice, together):
        client.optim_step(ADAM).result()
    np.testing.assert_allclose(logprobs_of(twice), logprobs_of(together), atol=1e-5)
    with pytest.raises(errors.InvalidRequest, match="no gradient has accumulated"):
        twice.optim_step(ADAM).result()


def test_weight_zero_tokens_are_not_projected_and_read_zero(make_client):
    client = make_client()
    masked = datum([4, 5, 6, 7], weights=[0.0, 1.0, 0.0, 1.0])
    values = client.forward_backward([masked], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()
    full = client.forward([masked], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()
    assert values[0] == values[2] == 0.0
    np.testing.assert_allclose([values[1], values[3]], [full[1], full[3]], atol=1e-6)


def test_a_refused_request_changes_nothing(make_client):
    disturbed, calm = make_client(), make_client()
    for client in (disturbed, calm):
        client.forward_backward([A], "cross_entropy").result()
    bad = [
        datum([4, 5], weights=[1.0, 1.0], advantages=[1.0, 1.0], logprobs=[-200.0, -200.0]),  # exp overflows to inf
    ]
    with pytest.raises(errors.NonFiniteError, match="the loss of datum 0 is not finite"):
        disturbed.forward_backward(bad, "importance_sampling").result()
    with pytest.raises(errors.InvalidRequest):
        disturbed.forward_backward([sft([10**7])], "cross_entropy").result()
    with pytest.raises(ZeroDivisionError):
        disturbed.forward_backward_custom([A], lambda data, logprobs: 1 / 0).result()
    with pytest.raises(errors.NonFiniteError, match="the custom loss is -inf"):
        disturbed.forward_backward_custom([A], lambda data, logprobs: (logprobs[0].sum() * torch.inf, {})).result()
    for client in (disturbed, calm):
        client.optim_step(ADAM).result()
    assert logprobs_of(disturbed) == logprobs_of(calm)


def test_only_the_datum_with_the_bad_loss_is_named(make_client):
    fine = datum([4, 5], weights=[1.0, 1.0], advantages=[1.0, 1.0], logprobs=[-5.0, -5.0])
    bad = datum([4, 5], weights=[1.0, 1.0], advantages=[1.0, 1.0], logprobs=[-5.0, -200.0])
    with pytest.raises(errors.NonFiniteError, match="the loss of datum 2 is not finite"):
        make_client().forward_backward([fine, fine, bad], "importance_sampling").result()


def test_a_gradient_that_overflows_names_its_datum(make_client):
    """The loss itself is finite."""
    client = make_client()
    fine = datum([4, 5], weights=[1.0, 1.0], advantages=[1.0, 1.0], logprobs=[-9.0, -9.0])
    on_policy = logprobs_of(client, [sft([4, 5])])
    huge = datum([4, 5], weights=[1.0, 1.0], advantages=[3.4e38, -3.4e38], logprobs=on_policy)
    assert np.isfinite(client.forward([fine, huge], "importance_sampling").result().metrics["loss:sum"])
    with pytest.raises(errors.NonFiniteError, match="the gradient of datum 1 is not finite: nothing was updated"):
        client.forward_backward([fine, huge], "importance_sampling").result()
    with pytest.raises(errors.InvalidRequest, match="no gradient has accumulated"):
        client.optim_step(ADAM).result()


def test_a_refused_step_leaves_weights_and_optimizer_and_clears_the_gradient(make_client):
    """The square of a gradient of 1e30 is beyond float32: Adam's second moment would be infinite for good."""
    disturbed, calm = make_client(), make_client()
    disturbed.forward_backward([datum([4, 5, 6], weights=[1e30, -1e30, 1.0])], "cross_entropy").result()
    with pytest.raises(errors.NonFiniteError, match="Adam's moments non-finite: no step was taken"):
        disturbed.optim_step(ADAM).result()
    with pytest.raises(errors.InvalidRequest, match="no gradient has accumulated"):
        disturbed.optim_step(ADAM).result()
    for client in (disturbed, calm):
        client.forward_backward([A], "cross_entropy").result()
        client.optim_step(ADAM).result()
    assert logprobs_of(disturbed) == logprobs_of(calm)


def test_tenants_do_not_see_each_other(make_client):
    """Eight clients interleaved end with the weights of eight separate runs."""

    def data(i: int) -> list[types.Datum]:
        return [sft([i + 3, 2 * i + 5, 40 + i, 9])]

    alone = []
    for i in range(8):
        client = make_client(seed=i)
        for _ in range(3):
            client.forward_backward(data(i), "cross_entropy").result()
            client.optim_step(ADAM).result()
        alone.append(logprobs_of(client))
    clients = [make_client(seed=i) for i in range(8)]
    for _ in range(3):
        for i, client in enumerate(clients):
            client.forward_backward(data(i), "cross_entropy")
        for client in clients:
            client.optim_step(ADAM)
    assert [logprobs_of(client) for client in clients] == alone


def test_resume_continues_bit_for_bit(make_client, service):
    straight = make_client()
    for _ in range(2):
        straight.forward_backward([A, B], "cross_entropy")
        straight.optim_step(ADAM).result()
    state = straight.save_state("middle").result().path
    resumed = service.create_training_client_from_state_with_optimizer(state)
    fresh_optimizer = service.create_training_client_from_state(state)
    for client in (straight, resumed, fresh_optimizer):
        assert logprobs_of(client) == logprobs_of(straight)
    in_place = make_client(seed=9)
    in_place.load_state_with_optimizer(state).result()
    clients = (straight, resumed, in_place, fresh_optimizer)
    for client in clients:
        client.forward_backward([A], "cross_entropy")
        client.optim_step(ADAM).result()
    results = [logprobs_of(client) for client in clients]
    assert results[0] == results[1] == results[2]
    assert results[3] != results[0]  # Adam's moments matter


def test_two_clients_from_one_state_draw_the_same_without_a_seed(make_client, service):
    path = make_client().save_state("start").result().path
    prompt, params = types.ModelInput.from_ints([5, 6, 7]), types.SamplingParams(max_tokens=12, temperature=1.0)
    drawn = []
    for _ in range(2):
        sampler = service.create_training_client_from_state(path).save_weights_and_get_sampling_client()
        drawn.append(sampler.sample(prompt, num_samples=2, sampling_params=params).result().sequences)
    assert [sequence.tokens for sequence in drawn[0]] == [sequence.tokens for sequence in drawn[1]]


def test_info_and_tokenizer(make_client, tiny_model_dir):
    client = make_client(rank=7)
    info = client.get_info()
    assert (info.lora_rank, info.model_name, info.is_lora) == (7, str(tiny_model_dir), True)
    assert client.get_tokenizer().decode([client.get_tokenizer().eos_token_id]) == "<|im_end|>"


@pytest.mark.parametrize(
    ("data", "loss", "config", "message"),
    [
        ([], "cross_entropy", None, "data is empty"),
        ([A], "cross_entropi", None, r"loss_fn='cross_entropi': must be one of .* Did you mean 'cross_entropy'\?"),
        ([A], "ppo", None, "datum 0: loss_fn_inputs has no 'logprobs', which loss_fn='ppo' needs"),
        ([A, datum([1, 2])], "cross_entropy", None, "datum 1: loss_fn_inputs has no 'weights'"),
        ([datum([1, 2], weights=[1.0])], "cross_entropy", None, r"datum 0: weights has shape \(1,\), but .* 2 tokens"),
        ([datum([1, 2], weights=[1.0, float("nan")])], "cross_entropy", None, "weights is nan at position 1"),
        (
            [datum([1, 2], weights=[1.0, 1.0], wieghts=np.ones(2, dtype=np.float32))],
            "cross_entropy",
            None,
            "Did you mean 'weights'",
        ),
        ([sft([1, 99999])], "cross_entropy", None, "datum 0: model_input: token id 99999 at position 1 is outside"),
        ([sft([1] * 513)], "cross_entropy", None, "513 tokens, but the model's context holds 512"),
        ([A], "cross_entropy", {"beta": 1.0}, "loss_fn_config has 'beta', which loss_fn='cross_entropy' does not know"),
        ([A], "cross_entropy", {"temperature": 0.0}, "must be positive and finite"),
    ],
)
def test_bad_data_gets_one_clear_error(data, loss, config, message, make_client):
    with pytest.raises(errors.InvalidRequest, match=message):
        make_client().forward_backward(data, loss, config).result()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank=0: a LoRA adapter needs rank >= 1"),
        ({"train_attn": False, "train_mlp": False, "train_unembed": False}, "are all False"),
    ],
)
def test_impossible_adapters_are_refused(options, message, make_client):
    with pytest.raises(errors.InvalidRequest, match=message):
        make_client(**options)


@pytest.mark.parametrize(
    ("params", "message"),
    [({"beta1": 1.0}, r"beta1=1.0: must be in \[0, 1\)"), ({"grad_clip_norm": -1.0}, "grad_clip_norm=-1.0")],
)
def test_impossible_adam_settings_are_refused(params, message, make_client):
    client = make_client()
    client.forward_backward([A], "cross_entropy")
    with pytest.raises(errors.InvalidRequest, match=message):
        client.optim_step(types.AdamParams(**params)).result()
    client.optim_step(ADAM).result()  # the gradient is still there
