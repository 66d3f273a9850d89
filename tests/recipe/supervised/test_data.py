"""Conversations as datums, id by id, and the datasets made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint import types
from mint.errors import InvalidRequest
from recipe.supervised.data import (
    Example,
    ExampleDataset,
    ExampleTooLong,
    FileSFTDatasetBuilder,
    ListSFTDatasetBuilder,
    SFTExampleConfig,
    conversation_to_datum,
    datum_from_model_input_weights,
)
from recipe.supervised.types import SupervisedDataset
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, Renderer, TrainOnWhat, get_renderer

CHAT: list[Message] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
TWO_REPLIES: list[Message] = [*CHAT, {"role": "user", "content": "so"}, {"role": "assistant", "content": "no"}]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return get_renderer("role_colon", get_tokenizer("mint-tiny"))


def targets(datum: types.Datum) -> list[int]:
    return datum.loss_fn_inputs["target_tokens"].tolist()


def weights(datum: types.Datum) -> list[float]:
    return datum.loss_fn_inputs["weights"].tolist()


def supervised_ids(datum: types.Datum) -> list[int]:
    return [token for token, weight in zip(targets(datum), weights(datum), strict=True) if weight]


def chats(num: int) -> list[list[Message]]:
    return [[CHAT[0], {"role": "assistant", "content": str(i)}] for i in range(num)]


def flat(batches: list[list[str]]) -> list[str]:
    return [reply for batch in batches for reply in batch]


def replies(dataset: SupervisedDataset, renderer: Renderer) -> list[list[str]]:
    batches = [dataset.get_batch(i_batch) for i_batch in range(len(dataset))]
    return [[renderer.tokenizer.decode(supervised_ids(datum)).split()[0] for datum in batch] for batch in batches]


def test_shift_pairs_each_token_with_the_next_and_its_weight() -> None:
    datum = datum_from_model_input_weights(types.ModelInput.from_ints([10, 11, 12, 13]), [0.0, 0.0, 1.0, 0.5])
    assert datum.model_input.to_ints() == [10, 11, 12]
    assert targets(datum) == [11, 12, 13]
    assert weights(datum) == [0.0, 1.0, 0.5]


@given(st.lists(st.tuples(st.integers(0, 500), st.floats(0, 4, width=32)), min_size=2, max_size=40))
def test_shift_keeps_every_token_and_every_weight_but_the_first(pairs: list[tuple[int, float]]) -> None:
    tokens, token_weights = [token for token, _ in pairs], [weight for _, weight in pairs]
    datum = datum_from_model_input_weights(types.ModelInput.from_ints(tokens), token_weights)
    assert [*datum.model_input.to_ints()[:1], *targets(datum)] == tokens
    assert weights(datum) == token_weights[1:]


def test_weights_may_be_a_torch_tensor() -> None:
    import torch

    datum = datum_from_model_input_weights(types.ModelInput.from_ints([1, 2]), torch.tensor([0.0, 1.0]))
    assert weights(datum) == [1.0]


@pytest.mark.parametrize(
    ("tokens", "token_weights", "max_length", "message"),
    [
        ([1, 2, 3], [1.0, 1.0], None, r"3 tokens and weights of shape \(2,\): give one weight for each token"),
        ([1], [1.0], None, r"the example has 1 tokens: it takes 2"),
        ([1, 2, 3], [1.0] * 3, 2, r"the example has 3 tokens, more than the limit of 2 .*on_too_long='drop'"),
    ],
)
def test_bad_token_sequence_is_refused(
    tokens: list[int], token_weights: list[float], max_length: int | None, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        datum_from_model_input_weights(types.ModelInput.from_ints(tokens), token_weights, max_length)


def test_only_the_reply_and_its_end_carry_loss(renderer: Renderer) -> None:
    datum = conversation_to_datum(CHAT, renderer)
    text = renderer.tokenizer.decode([*datum.model_input.to_ints()[:1], *targets(datum)])
    assert renderer.tokenizer.decode(supervised_ids(datum)).strip() == "yes\n\nUser:"
    assert text.startswith("User: hi")


def test_all_assistant_messages_carry_loss_when_asked(renderer: Renderer) -> None:
    last = conversation_to_datum(TWO_REPLIES, renderer)
    every = conversation_to_datum(
        TWO_REPLIES,
        renderer,
        train_on_what=TrainOnWhat.ALL_ASSISTANT_MESSAGES,
    )
    assert targets(last) == targets(every)
    assert "yes" not in renderer.tokenizer.decode(supervised_ids(last))
    assert "yes" in renderer.tokenizer.decode(supervised_ids(every))


def test_too_long_conversation_is_an_error_with_its_lengths(renderer: Renderer) -> None:
    with pytest.raises(ExampleTooLong, match=r"more than the limit of 3"):
        conversation_to_datum(CHAT, renderer, max_length=3)


def test_last_batch_holds_what_is_left(renderer: Renderer) -> None:
    builder = ListSFTDatasetBuilder(conversations=chats(7), examples=SFTExampleConfig(batch_size=3))
    dataset, test_dataset = builder(renderer)
    assert [len(batch) for batch in replies(dataset, renderer)] == [3, 3, 1]
    assert test_dataset is None


def test_order_follows_from_the_seed_alone(renderer: Renderer) -> None:
    dataset, _ = ListSFTDatasetBuilder(conversations=chats(8), examples=SFTExampleConfig(batch_size=3))(renderer)
    dataset.set_epoch(5)
    first = replies(dataset, renderer)
    dataset.set_epoch(6)
    second = replies(dataset, renderer)
    dataset.set_epoch(5)
    assert replies(dataset, renderer) == first
    assert first != second
    assert sorted(flat(first)) == sorted(flat(second)) == [str(i) for i in range(8)]


def test_held_out_examples_are_not_trained_on(renderer: Renderer) -> None:
    examples = SFTExampleConfig(batch_size=4, num_test=3, split_seed=1)
    dataset, test_dataset = ListSFTDatasetBuilder(conversations=chats(9), examples=examples)(renderer)
    assert test_dataset is not None
    trained, held_out = flat(replies(dataset, renderer)), flat(replies(test_dataset, renderer))
    assert (len(trained), len(held_out)) == (6, 3)
    assert sorted(trained + held_out) == [str(i) for i in range(9)]


def test_given_test_conversations_are_used_as_they_are(renderer: Renderer) -> None:
    _, test_dataset = ListSFTDatasetBuilder(conversations=chats(2), test_conversations=chats(1))(renderer)
    assert test_dataset is not None and replies(test_dataset, renderer) == [["0"]]


def test_batch_outside_the_pass_is_refused() -> None:
    dataset = ExampleDataset([Example(np.array([1, 2]), np.array([0.0, 1.0]))], batch_size=1)
    with pytest.raises(InvalidRequest, match=r"batch 1: must be in \[0, 1\)"):
        dataset.get_batch(1)


def test_too_long_examples_are_an_error_naming_the_conversation_or_are_counted(renderer: Renderer) -> None:
    long = [CHAT[0], {"role": "assistant", "content": "word " * 50}]
    with pytest.raises(
        InvalidRequest, match=r"conversations\[1\]: the example has \d+ tokens, more than the limit of 40"
    ):
        ListSFTDatasetBuilder(conversations=[CHAT, long])(renderer, context_length=40)
    dropping = SFTExampleConfig(max_length=40, on_too_long="drop")
    dataset, _ = ListSFTDatasetBuilder(conversations=[CHAT, long], examples=dropping)(renderer)
    assert (dataset.num_dropped, len(dataset.get_batch(0))) == (1, 1)
    with pytest.raises(InvalidRequest, match="all 1 examples are longer than 40 tokens"):
        ListSFTDatasetBuilder(conversations=[long], examples=dropping)(renderer)


def test_the_smaller_of_max_length_and_context_is_the_limit(renderer: Renderer) -> None:
    builder = ListSFTDatasetBuilder(conversations=[CHAT], examples=SFTExampleConfig(max_length=500))
    with pytest.raises(InvalidRequest, match="more than the limit of 4"):
        builder(renderer, context_length=4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"conversations": []}, "conversations is empty"),
        ({"conversations": [CHAT, CHAT[:1]]}, r"conversations\[1\]: the conversation has no assistant message"),
        ({"conversations": ["hi"]}, r"conversations\[0\]: messages must be a list of dicts"),
        ({"conversations": [CHAT], "test_conversations": []}, "test_conversations is empty"),
        ({"conversations": [CHAT], "examples": SFTExampleConfig(num_test=1)}, "num_test=1: .* leaves none to train on"),
        (
            {"conversations": [CHAT], "examples": SFTExampleConfig(train_on_what=TrainOnWhat.CUSTOMIZED)},
            r"conversations\[0\]: .*trainable",
        ),
    ],
)
def test_bad_list_is_refused(renderer: Renderer, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        ListSFTDatasetBuilder(**settings)(renderer)


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("num_test", -1), ("max_length", 1)])
def test_impossible_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}={value}: must be at least"):
        SFTExampleConfig(**{name: value})


def test_file_and_list_give_the_same_batches(renderer: Renderer, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats(5)), encoding="utf-8")
    from_file, _ = FileSFTDatasetBuilder(path=str(path), max_rows=4)(renderer)
    from_list, _ = ListSFTDatasetBuilder(conversations=chats(4))(renderer)
    assert replies(from_file, renderer) == replies(from_list, renderer)


def test_too_long_line_of_a_file_is_named(renderer: Renderer, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": CHAT}) + "\n" + json.dumps({"messages": TWO_REPLIES}) + "\n")
    with pytest.raises(InvalidRequest, match=r"chats\.jsonl, line 2: the example has \d+ tokens, more than the limit"):
        FileSFTDatasetBuilder(path=str(path))(renderer, context_length=12)
