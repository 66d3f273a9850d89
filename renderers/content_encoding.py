"""Encode message content so that it can never become a control token.

A tokenizer turns the text "<|im_end|>" into the token that ends a turn, wherever the text comes from; content that
holds such text could end its own turn and begin another. Content is therefore cut behind the first character of every
control string before it is encoded: it decodes to the same text, and its tokens are ordinary ones.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from typing import Any, Protocol


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that renderers use."""

    @property
    def added_tokens_decoder(self) -> dict[int, Any]: ...

    def encode(self, text: str, /, *, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, token_ids: Any, /, *, skip_special_tokens: bool = ...) -> Any: ...


class ContentEncoder:
    """Encodes text with a tokenizer whose added tokens, those in `allowed` excepted, only `control_id` can write."""

    def __init__(self, tokenizer: Tokenizer, allowed: Collection[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._id_of_added = {str(token): i for i, token in tokenizer.added_tokens_decoder.items()}
        control_strings = sorted(
            (text for text in self._id_of_added if text not in allowed and len(text) > 1), key=len, reverse=True
        )
        self.control_ids = frozenset(self._id_of_added[text] for text in control_strings)
        # A lookahead finds overlapping control strings too, so that no cut piece can still hold one.
        pattern = "|".join(re.escape(text) for text in control_strings)
        self._control_pattern = re.compile(f"(?={pattern})") if pattern else None

    def control_id(self, text: str) -> int | None:
        """The id of the added token `text`, or None where the tokenizer has none."""
        return self._id_of_added.get(text)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; those of `tokenizer.encode` unless it holds control strings."""
        if self._control_pattern is None:
            return self._encode_piece(text)
        cuts = [0, *(match.start() + 1 for match in self._control_pattern.finditer(text)), len(text)]
        pieces = (text[start:end] for start, end in itertools.pairwise(cuts))
        return [token for piece in pieces for token in self._encode_piece(piece)]

    def _encode_piece(self, piece: str) -> list[int]:
        return list(self._tokenizer.encode(piece, add_special_tokens=False)) if piece else []

    def decode(self, tokens: list[int]) -> str:
        """Text of `tokens`, control tokens written out."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False)) if tokens else ""
