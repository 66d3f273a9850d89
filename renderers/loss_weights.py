"""Which messages of a conversation carry loss."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from mint.errors import InvalidRequest
from renderers.messages import Message


class TrainOnWhat(StrEnum):
    """What carries loss in a supervised example. Of a message it is always the content and the token that ends it."""

    LAST_ASSISTANT_MESSAGE = "last_assistant_message"
    ALL_ASSISTANT_MESSAGES = "all_assistant_messages"
    # Every role's content, headers excepted.
    ALL_MESSAGES = "all_messages"
    # Everything, headers included.
    ALL_TOKENS = "all_tokens"
    # The messages that say "trainable": True; every message must then say.
    CUSTOMIZED = "customized"


def messages_with_loss(messages: Sequence[Message], train_on_what: TrainOnWhat) -> list[bool]:
    """For each message, whether its content carries loss. A conversation in which none does is an InvalidRequest."""
    _check_trainable_flags(messages, train_on_what)
    is_assistant = [message["role"] == "assistant" for message in messages]
    if train_on_what in (TrainOnWhat.ALL_MESSAGES, TrainOnWhat.ALL_TOKENS):
        return [True] * len(messages)
    if train_on_what is TrainOnWhat.CUSTOMIZED:
        carries_loss = [message.get("trainable", False) for message in messages]
        if not any(carries_loss):
            raise InvalidRequest(
                "no message is trainable, so the example carries no loss: set 'trainable': True on at least one message"
            )
        return carries_loss
    if not any(is_assistant):
        roles = ", ".join(message["role"] for message in messages)
        raise InvalidRequest(
            f"the conversation has no assistant message to train on (roles: {roles}): "
            "add the assistant's reply, or drop this conversation"
        )
    if train_on_what is TrainOnWhat.ALL_ASSISTANT_MESSAGES:
        return is_assistant
    i_last = max(i_message for i_message, assistant in enumerate(is_assistant) if assistant)
    return [i_message == i_last for i_message in range(len(messages))]


def _check_trainable_flags(messages: Sequence[Message], train_on_what: TrainOnWhat) -> None:
    for i_message, message in enumerate(messages):
        if train_on_what is TrainOnWhat.CUSTOMIZED and "trainable" not in message:
            raise InvalidRequest(
                f"messages[{i_message}] has no 'trainable': with train_on_what='customized' every message must have it"
            )
        if train_on_what is not TrainOnWhat.CUSTOMIZED and "trainable" in message:
            raise InvalidRequest(
                f"messages[{i_message}] has 'trainable', which train_on_what={str(train_on_what)!r} would ignore: "
                "remove it, or use train_on_what='customized'"
            )
