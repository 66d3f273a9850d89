"""Conversations as datums, and the datasets made of them.

Axes: _T token of one example; ragged lists of examples have _D.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import chz
import numpy as np

from mint import types
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.conversation_files import Conversation, ConversationColumns, check_conversation, read_conversations
from recipe.data_digest import Digest, add_datum
from recipe.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from renderers import Message, Renderer, TrainOnWhat

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class ExampleTooLong(InvalidRequest):
    """An example with more tokens than may be used. Nothing is ever cut off in silence."""

    def __init__(self, num_tokens: int, limit: int) -> None:
        super().__init__(
            f"the example has {num_tokens} tokens, more than the limit of {limit} (max_length, or the model's "
            "context); shorten it, raise the limit, or leave such examples out with on_too_long='drop'"
        )


def datum_from_model_input_weights(
    model_input: types.ModelInput,
    weights: Sequence[float] | np.ndarray | torch.Tensor,
    max_length: int | None = None,
) -> types.Datum:
    """The cross_entropy datum of a token sequence.

    weights_T[i] says how much token i itself counts. The shift happens here: position i of the datum reads token i and
    predicts token i + 1, so the input is tokens[:-1], target_tokens is tokens[1:] and weights is weights_T[1:].
    Raises ExampleTooLong beyond `max_length` tokens and InvalidRequest for unequal lengths or fewer than two tokens.
    """
    tokens_T = model_input.to_ints()
    weights_T = np.asarray(weights, dtype=np.float32)
    if weights_T.shape != (len(tokens_T),):
        raise InvalidRequest(
            f"{len(tokens_T)} tokens and weights of shape {weights_T.shape}: give one weight for each token"
        )
    if len(tokens_T) < 2:
        raise InvalidRequest(f"the example has {len(tokens_T)} tokens: it takes 2 to predict one from another")
    if max_length is not None and len(tokens_T) > max_length:
        raise ExampleTooLong(len(tokens_T), max_length)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens_T[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_numpy(np.asarray(tokens_T[1:], dtype=np.int64)),
            "weights": types.TensorData.from_numpy(weights_T[1:].copy()),
        },
    )


def conversation_to_datum(
    conversation: Sequence[Message],
    renderer: Renderer,
    max_length: int | None = None,
    train_on_what: TrainOnWhat = TrainOnWhat.LAST_ASSISTANT_MESSAGE,
) -> types.Datum:
    """Render a conversation for training. Errors as in `datum_from_model_input_weights`."""
    model_input, weights_T = renderer.build_supervised_example(conversation, train_on_what=train_on_what)
    return datum_from_model_input_weights(model_input, weights_T, max_length)


@dataclass(frozen=True)
class Example:
    """A rendered conversation, compact. weights_T[i] is for token i itself."""

    tokens_T: np.ndarray
    weights_T: np.ndarray

    def to_datum(self) -> types.Datum:
        """The datum to train on."""
        return datum_from_model_input_weights(types.ModelInput.from_ints(self.tokens_T.tolist()), self.weights_T)


class ExampleDataset(SupervisedDataset):
    """Examples in memory. The last batch of a pass holds what is left and may be smaller than the others."""

    def __init__(self, examples_D: Sequence[Example], batch_size: int, num_dropped: int = 0) -> None:
        self._examples_D = examples_D
        self._batch_size = batch_size
        self._order_D = np.arange(len(examples_D))
        self.num_dropped = num_dropped

    def set_epoch(self, seed: int) -> None:
        """Shuffle with `seed`."""
        self._order_D = np.random.default_rng(seed).permutation(len(self._examples_D))

    def get_batch(self, index: int) -> list[types.Datum]:
        """See SupervisedDataset."""
        if not 0 <= index < len(self):
            raise InvalidRequest(f"batch {index}: must be in [0, {len(self)})")
        chosen = self._order_D[index * self._batch_size : (index + 1) * self._batch_size]
        return [self._examples_D[i_example].to_datum() for i_example in chosen]

    def __len__(self) -> int:
        return -(-len(self._examples_D) // self._batch_size)


@chz.chz(typecheck=True)
class SFTExampleConfig:
    """How conversations become examples and batches."""

    # Examples per optimizer step; the last batch of a pass may be smaller.
    batch_size: int = 32
    # Longest example in tokens; None: what fits the model's context.
    max_length: int | None = None
    # "error" refuses the data; "drop" leaves such examples out, with a warning and the metric num_dropped.
    on_too_long: Literal["error", "drop"] = "error"
    # Which messages carry loss.
    train_on_what: TrainOnWhat = TrainOnWhat.LAST_ASSISTANT_MESSAGE
    # Examples to hold out for test/nll, drawn with split_seed; 0 for none.
    num_test: int = 0
    split_seed: int = 0

    # typecheck=True checks types last; the rules below compare values.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _ranges(self) -> None:
        for name, lowest in (("batch_size", 1), ("num_test", 0)):
            if getattr(self, name) < lowest:
                raise InvalidRequest(f"{name}={getattr(self, name)}: must be at least {lowest}")
        if self.max_length is not None and self.max_length < 2:
            raise InvalidRequest(f"max_length={self.max_length}: must be at least 2, or None")


@chz.chz(typecheck=True)
class ListSFTDatasetBuilder(SupervisedDatasetBuilder):
    """Conversations made in Python, each a list of {"role", "content"} messages."""

    conversations: list[Any]
    # Held-out conversations; None: `examples.num_test` of `conversations`.
    test_conversations: list[Any] | None = None
    examples: SFTExampleConfig = chz.field(default_factory=SFTExampleConfig)

    def __call__(
        self, renderer: Renderer, context_length: int | None = None
    ) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """See SupervisedDatasetBuilder."""
        train = _from_list(self.conversations, "conversations")
        test = None if self.test_conversations is None else _from_list(self.test_conversations, "test_conversations")
        return make_datasets(train, test, self.examples, renderer, context_length)


@chz.chz(typecheck=True)
class FileSFTDatasetBuilder(SupervisedDatasetBuilder):
    """Conversations from a .jsonl or .parquet file, or from a hub dataset."""

    # A file, or the name of a hub dataset such as "openai/gsm8k".
    path: str
    # A file or hub dataset with held-out conversations; None: `examples.num_test` of `path`.
    test_path: str | None = None
    columns: ConversationColumns = chz.field(default_factory=ConversationColumns)
    # Of a hub dataset.
    subset: str | None = None
    split: str = "train"
    # Read only the first rows of `path`; None: all.
    max_rows: int | None = None
    examples: SFTExampleConfig = chz.field(default_factory=SFTExampleConfig)

    # typecheck=True checks types last; the rules below compare values.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _ranges(self) -> None:
        if self.max_rows is not None and self.max_rows < 1:
            raise InvalidRequest(f"max_rows={self.max_rows}: must be at least 1, or None for all")

    def __call__(
        self, renderer: Renderer, context_length: int | None = None
    ) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """See SupervisedDatasetBuilder."""
        where: dict[str, Any] = {"split": self.split, "subset": self.subset}
        train = read_conversations(self.path, self.columns, max_rows=self.max_rows, **where)
        test = None if self.test_path is None else read_conversations(self.test_path, self.columns, **where)
        return make_datasets(train, test, self.examples, renderer, context_length)


def make_datasets(
    train: Sequence[Conversation],
    test: Sequence[Conversation] | None,
    config: SFTExampleConfig,
    renderer: Renderer,
    context_length: int | None = None,
) -> tuple[ExampleDataset, ExampleDataset | None]:
    """Render everything, split off held-out examples where `test` is None, and make the two datasets."""
    limits = [limit for limit in (config.max_length, context_length) if limit is not None]
    limit = min(limits, default=None)
    examples_D, num_dropped = _render(train, config, renderer, limit)
    if test is not None:
        test_examples_D, num_test_dropped = _render(test, config, renderer, limit)
        return (
            ExampleDataset(examples_D, config.batch_size, num_dropped),
            ExampleDataset(test_examples_D, config.batch_size, num_test_dropped),
        )
    if config.num_test == 0:
        return ExampleDataset(examples_D, config.batch_size, num_dropped), None
    if config.num_test >= len(examples_D):
        raise InvalidRequest(
            f"num_test={config.num_test}: holding out that many of {len(examples_D)} examples leaves none to train on"
        )
    order = np.random.default_rng(derive_seed(config.split_seed, "held-out split")).permutation(len(examples_D))
    held_out = set(order[: config.num_test].tolist())
    return (
        ExampleDataset([e for i, e in enumerate(examples_D) if i not in held_out], config.batch_size, num_dropped),
        ExampleDataset([e for i, e in enumerate(examples_D) if i in held_out], config.batch_size),
    )


def _from_list(conversations: Sequence[Any], name: str) -> list[Conversation]:
    if not conversations:
        raise InvalidRequest(f"{name} is empty; it needs at least one conversation")
    checked: list[Conversation] = []
    for i_conversation, messages in enumerate(conversations):
        origin = f"{name}[{i_conversation}]"
        try:
            check_conversation(messages)
        except InvalidRequest as error:
            raise InvalidRequest(f"{origin}: {error}") from error
        checked.append(Conversation(messages, origin))
    return checked


def _render(
    conversations: Sequence[Conversation], config: SFTExampleConfig, renderer: Renderer, limit: int | None
) -> tuple[list[Example], int]:
    """Examples of all conversations, and how many were dropped as too long."""
    examples_D: list[Example] = []
    num_dropped = 0
    for conversation in conversations:
        try:
            example = _render_one(conversation, config, renderer, limit)
        except ExampleTooLong as error:
            if config.on_too_long == "error":
                raise InvalidRequest(f"{conversation.origin}: {error}") from error
            num_dropped += 1
        except InvalidRequest as error:
            raise InvalidRequest(f"{conversation.origin}: {error}") from error
        else:
            examples_D.append(example)
    if num_dropped:
        logger.warning("left out %d of %d examples longer than %s tokens", num_dropped, len(conversations), limit)
    if not examples_D:
        raise InvalidRequest(
            f"all {len(conversations)} examples are longer than {limit} tokens, so none is left; raise max_length or "
            "shorten them"
        )
    return examples_D, num_dropped


def _render_one(conversation: Conversation, config: SFTExampleConfig, renderer: Renderer, limit: int | None) -> Example:
    model_input, weights_T = renderer.build_supervised_example(
        conversation.messages, train_on_what=config.train_on_what, tools=conversation.tools
    )
    tokens_T = np.asarray(model_input.to_ints(), dtype=np.int32)
    if limit is not None and len(tokens_T) > limit:
        raise ExampleTooLong(len(tokens_T), limit)
    if not weights_T[1:].any():
        raise InvalidRequest(
            f"no token carries loss with train_on_what={str(config.train_on_what)!r}; choose another, or mark messages "
            "with trainable=True for 'customized'"
        )
    return Example(tokens_T, weights_T)


def data_sha256(train: SupervisedDataset, test: SupervisedDataset | None) -> str:
    """SHA-256 of all examples, as datums: those to train on, in an order of the dataset's own, and those held out."""
    digest = Digest()
    train.set_epoch(0)
    for dataset in (train, test):
        digest.add(b"no examples" if dataset is None else b"examples")
        for i_batch in range(len(dataset) if dataset is not None else 0):
            assert dataset is not None
            for datum in dataset.get_batch(i_batch):
                add_datum(digest, datum)
    return digest.hexdigest()
