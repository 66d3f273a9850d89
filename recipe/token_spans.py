"""Which characters of a decoded text each token wrote, so that a text can be shown token by token.

Axes: _T token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recipe.token_view import token_texts

# Enough tokens before one for a tokenizer whose text depends on what stands before it (a space at the start of a word).
_CONTEXT = 8


class TokenSpans:
    """Spans under one tokenizer. It remembers what short sequences decode to, so a batch costs little more than one
    decoding of each distinct token."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._texts: dict[tuple[int, ...], str] = {}

    def lengths(self, tokens_T: Sequence[int], text: str) -> list[int] | None:
        """The number of characters of `text` that each token wrote, shape (T,); they add up to len(text).

        text: what all the tokens decode to. A character that several tokens write together counts for the last of
        them. None where the tokens' texts do not add up to `text`, as where the bytes are no UTF-8.
        """
        for texts_T in (token_texts(tokens_T, self._remembered), self._texts_in_context(tokens_T)):
            if "".join(texts_T) == text:
                return [len(part) for part in texts_T]
        return None

    def _texts_in_context(self, tokens_T: Sequence[int]) -> list[str]:
        texts: list[str] = []
        for i in range(len(tokens_T)):
            before = self._decode(list(tokens_T[max(0, i - _CONTEXT) : i])) if i else ""
            texts.append(self._decode(list(tokens_T[max(0, i - _CONTEXT) : i + 1]))[len(before) :])
        return texts

    def _remembered(self, tokens_T: list[int]) -> str:
        key = tuple(tokens_T)
        if key not in self._texts:
            self._texts[key] = self._decode(tokens_T)
        return self._texts[key]
