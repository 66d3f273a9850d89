"""A row of a file as a preference pair, and a pair as a row.

Files say which reply is better in one of three ways: by the columns' names (chosen, rejected), by a label beside two
replies, or by numbers (one signed margin, or a score for each reply). `PairColumns` says which.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import chz

from mint.errors import InvalidRequest
from recipe.conversation_files import messages_in
from recipe.preference.types import PreferencePair
from renderers import Message

# The turns of a conversation written as one text, as in Anthropic's hh-rlhf.
_TURN = re.compile(r"\n\n(Human|Assistant):")
_TRANSCRIPT_ROLES = {"Human": "user", "Assistant": "assistant"}


@chz.chz(typecheck=True)
class PairColumns:
    """Names of the columns of a file of pairs. InvalidRequest where two of them say which reply is better."""

    # Text of one user message, or a list of messages. None, or no such column: chosen and rejected are whole
    # conversations.
    prompt: str | None = "prompt"
    # Text of the assistant's reply, one message, or a list of messages that begins with the prompt. Where a label,
    # margin or scores say which is better, these two are just the first and the second reply.
    chosen: str = "chosen"
    rejected: str = "rejected"
    # Text of a system message that goes before the prompt; None: there is no such column.
    system: str | None = None
    # Where a pair comes from; optional.
    source: str = "source"
    # How much better the better reply is, a number above 0; optional. Not read beside a margin or scores.
    strength: str = "strength"
    # Whether neither is better, true or false; optional. Not read beside a label, margin or scores.
    is_tie: str = "is_tie"
    # Which of two replies is better; the values of this column that say so follow.
    label: str | None = None
    # Several values are separated by commas; small and capital letters are the same.
    first_wins: str = "a,model_a,response_a,first"
    second_wins: str = "b,model_b,response_b,second"
    tie_values: str = "tie,tie (bothbad),both,equal,same"
    # By how much the first reply is better than the second, a number: below 0 the second is better, 0 is a tie.
    margin: str | None = None
    # A score for each reply, numbers: their difference is the margin.
    chosen_score: str | None = None
    rejected_score: str | None = None

    # typecheck=True checks types last; the rules below compare values.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _one_verdict(self) -> None:
        if (self.chosen_score is None) != (self.rejected_score is None):
            raise InvalidRequest(
                f"columns.chosen_score={self.chosen_score!r} and columns.rejected_score={self.rejected_score!r}: "
                "name both or neither"
            )
        verdicts = {"label": self.label, "margin": self.margin, "chosen_score": self.chosen_score}
        named = [f"columns.{name}={column!r}" for name, column in verdicts.items() if column is not None]
        if len(named) > 1:
            raise InvalidRequest(f"{' and '.join(named)} each say which reply is better: name one of them")
        values = [value for text in (self.first_wins, self.second_wins, self.tie_values) for value in _values(text)]
        repeated = sorted({value for value in values if values.count(value) > 1})
        if repeated:
            raise InvalidRequest(
                f"{repeated[0]!r} is in two of columns.first_wins, columns.second_wins and columns.tie_values: "
                "a label means one thing; name all three"
            )


@dataclass(frozen=True)
class PairRow:
    """What one row says, before the rules of a pair are applied: its two replies may be equal."""

    prompt: list[Message]
    chosen: Message
    rejected: Message
    source: str | None
    strength: float
    is_tie: bool

    def to_pair(self, origin: str | None = None) -> PreferencePair:
        """The pair. InvalidRequest where it breaks a rule of PreferencePair."""
        return PreferencePair(
            self.prompt, self.chosen, self.rejected, self.source, origin, strength=self.strength, is_tie=self.is_tie
        )


def pair_from_row(
    row: Mapping[str, Any], columns: PairColumns | None = None, origin: str | None = None
) -> PreferencePair:
    """The pair in one row: texts, messages or conversations. InvalidRequest says which column breaks which rule."""
    return parse_row(row, columns or PairColumns()).to_pair(origin)


def parse_row(row: Mapping[str, Any], columns: PairColumns) -> PairRow:
    """Prompt, better and worse reply of one row. InvalidRequest says which column breaks which rule."""
    if _is_transcript(row, columns):
        first_prompt, first = _transcript(row[columns.chosen], columns.chosen)
        second_prompt, second = _transcript(row[columns.rejected], columns.rejected)
    else:
        first_prompt, first = _reply_of(row, columns.chosen)
        second_prompt, second = _reply_of(row, columns.rejected)
    if first_prompt != second_prompt:
        raise InvalidRequest(
            f"{columns.chosen!r} and {columns.rejected!r} begin with different messages: "
            "a pair is two replies to one conversation"
        )
    prompt = _whole_prompt(row, columns, first_prompt)
    winner_is_first, strength, is_tie = _verdict(row, columns)
    chosen, rejected = (first, second) if winner_is_first else (second, first)
    source = row.get(columns.source)
    return PairRow(prompt, chosen, rejected, None if source is None else str(source), strength, is_tie)


def pair_to_row(pair: PreferencePair) -> dict[str, Any]:
    """A row from which `pair_from_row` makes an equal pair: texts where texts say it all, messages elsewhere."""
    is_text = (
        len(pair.prompt) == 1 and pair.prompt[0].keys() == {"role", "content"} and pair.prompt[0]["role"] == "user"
    )
    row: dict[str, Any] = {"prompt": pair.prompt[0]["content"] if is_text else pair.prompt}
    for name, reply in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        row[name] = reply["content"] if reply.keys() == {"role", "content"} else reply
    if pair.source is not None:
        row["source"] = pair.source
    if pair.strength != 1.0:
        row["strength"] = pair.strength
    if pair.is_tie:
        row["is_tie"] = True
    return row


def _whole_prompt(row: Mapping[str, Any], columns: PairColumns, before_reply: list[Message]) -> list[Message]:
    prompt = _prompt_of(row, columns.prompt)
    if prompt and before_reply and prompt != before_reply:
        raise InvalidRequest(
            f"{columns.prompt!r} differs from the messages before the reply in {columns.chosen!r}: remove one of them, "
            "or do not read the first with columns.prompt=None"
        )
    if not prompt and not before_reply:
        raise InvalidRequest(
            f"no prompt: the row needs a column {columns.prompt!r}, or {columns.chosen!r} as a whole conversation; "
            f"it has {', '.join(map(repr, row))}. Name other columns with columns.prompt=..."
        )
    prompt = prompt or before_reply
    system = None if columns.system is None else row.get(columns.system)
    if not system:
        return prompt
    if not isinstance(system, str):
        raise InvalidRequest(f"column {columns.system!r} must be a text, got {type(system).__name__}")
    if prompt[0].get("role") == "system":
        raise InvalidRequest(
            f"the prompt begins with a system message and column {columns.system!r} has another: "
            "remove one of them, or do not read the column"
        )
    return [Message(role="system", content=system), *prompt]


def _verdict(row: Mapping[str, Any], columns: PairColumns) -> tuple[bool, float, bool]:
    """(whether the first reply is the better one, strength, whether it is a tie)."""
    if columns.label is not None:
        winner_is_first = _label_verdict(_required(row, columns.label, "label"), columns)
        if winner_is_first is None:
            return True, 1.0, True
        return winner_is_first, _strength(row, columns.strength), False
    if columns.margin is not None:
        margin = _number(_required(row, columns.margin, "margin"), columns.margin)
    elif columns.chosen_score is not None and columns.rejected_score is not None:
        scores = [
            _number(_required(row, column, name), column)
            for name, column in (("chosen_score", columns.chosen_score), ("rejected_score", columns.rejected_score))
        ]
        margin = scores[0] - scores[1]
    else:
        is_tie = row.get(columns.is_tie, False)
        if not isinstance(is_tie, bool):
            raise InvalidRequest(
                f"column {columns.is_tie!r} holds {is_tie!r}: must be true or false; "
                "a column that means something else is left out with another name in columns.is_tie=..."
            )
        return True, 1.0 if is_tie else _strength(row, columns.strength), is_tie
    return margin >= 0, abs(margin) or 1.0, margin == 0


def _label_verdict(value: Any, columns: PairColumns) -> bool | None:
    """True: the first reply is better; False: the second; None: neither."""
    label = f"{value:g}" if isinstance(value, float) else str(value).strip().casefold()
    for text, verdict in ((columns.first_wins, True), (columns.second_wins, False), (columns.tie_values, None)):
        if label in _values(text):
            return verdict
    raise InvalidRequest(
        f"column {columns.label!r} holds {value!r}, which is none of first_wins ({columns.first_wins}), "
        f"second_wins ({columns.second_wins}) and tie_values ({columns.tie_values}); "
        "say what it means with columns.first_wins=..., columns.second_wins=... or columns.tie_values=..."
    )


def _values(text: str) -> list[str]:
    return [value.strip().casefold() for value in text.split(",") if value.strip()]


def _strength(row: Mapping[str, Any], column: str) -> float:
    value = row.get(column)
    if value is None:
        return 1.0
    strength = _number(value, column, fix=", or give columns.strength=... the name of a column that does")
    if strength <= 0:
        raise InvalidRequest(
            f"column {column!r} holds {value!r}: a strength is above 0; "
            f"where its sign says which reply is better, read it with columns.margin={column}"
        )
    return strength


def _number(value: Any, column: str, fix: str = "") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequest(f"column {column!r} holds {value!r}: it must hold a finite number{fix}")
    return float(value)


def _required(row: Mapping[str, Any], column: str, setting: str) -> Any:
    value = row.get(column)
    if value is None:
        raise InvalidRequest(
            f"no value in column {column!r}; the row has {', '.join(map(repr, row))}. "
            f"Name another column with columns.{setting}=..."
        )
    return value


def _prompt_of(row: Mapping[str, Any], column: str | None) -> list[Message]:
    value = None if column is None else row.get(column)
    if value is None:
        return []
    if isinstance(value, str):
        return [Message(role="user", content=value)]
    if isinstance(value, list):
        return messages_in(value, str(column))
    raise InvalidRequest(f"column {column!r} must be a text or a list of messages, got {type(value).__name__}")


def _reply_of(row: Mapping[str, Any], column: str) -> tuple[list[Message], Message]:
    """The messages before the reply (none where the column holds the reply alone) and the reply."""
    value = row.get(column)
    if value is None:
        raise InvalidRequest(
            f"no value in column {column!r}; the row has {', '.join(map(repr, row))}. "
            "Name other columns with columns.chosen=... and columns.rejected=..."
        )
    if isinstance(value, str):
        return [], Message(role="assistant", content=value)
    messages = messages_in([dict(value)] if isinstance(value, Mapping) else value, column)
    if not messages:
        raise InvalidRequest(f"column {column!r} is an empty list: it needs the assistant's reply")
    return messages[:-1], messages[-1]


def _is_transcript(row: Mapping[str, Any], columns: PairColumns) -> bool:
    """Whether both replies are whole conversations in one text each. A text beside a prompt is always a reply."""
    if columns.prompt is not None and row.get(columns.prompt) is not None:
        return False
    return all(
        isinstance(row.get(name), str) and row[name].lstrip().startswith("Human:")
        for name in (columns.chosen, columns.rejected)
    )


def _transcript(text: str, column: str) -> tuple[list[Message], Message]:
    """The messages before the last turn, and the last turn, of "\\n\\nHuman: …\\n\\nAssistant: …"."""
    parts = _TURN.split("\n\n" + text.lstrip())[1:]
    messages = [
        Message(role=_TRANSCRIPT_ROLES[role], content=said.strip())
        for role, said in zip(parts[::2], parts[1::2], strict=True)
    ]
    if messages[-1]["role"] != "assistant":
        raise InvalidRequest(f"column {column!r} ends with a turn of Human: it must end with the reply of Assistant")
    return messages[:-1], cast(Message, messages[-1])
