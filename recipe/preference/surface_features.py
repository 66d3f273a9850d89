"""What can be counted in a reply without understanding it, and how closely a score follows it.

Pure functions. Axes: _R reply.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from renderers import Message, get_text

FEATURES = ("characters", "sentences", "list_markers", "digits", "prompt_overlap", "type_token_ratio")

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_LIST_MARKER = re.compile(r"^[ \t]*(?:[-*+•]|\d+[.)])[ \t]+\S", re.MULTILINE)


def surface_features(prompt: Sequence[Message], reply: Message) -> dict[str, float]:
    """Each of FEATURES for a reply: counts of characters, of sentences (pieces between full stops and line ends that
    hold a word), of lines that begin like an item of a list, and of digits; the share of its distinct words that stand
    in the prompt; and distinct words over words. The last two are 0 for a reply without words."""
    text = get_text(reply)
    words = words_of(text)
    prompt_words = {word for message in prompt for word in words_of(get_text(message))}
    distinct = set(words)
    return {
        "characters": float(len(text)),
        "sentences": float(sum(bool(_WORD.search(piece)) for piece in _SENTENCE_END.split(text))),
        "list_markers": float(len(_LIST_MARKER.findall(text))),
        "digits": float(sum(character.isdigit() for character in text)),
        "prompt_overlap": len(distinct & prompt_words) / len(distinct) if distinct else 0.0,
        "type_token_ratio": len(distinct) / len(words) if words else 0.0,
    }


def words_of(text: str) -> list[str]:
    """The words of a text, in order, in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def pearson(x_R: Sequence[float], y_R: Sequence[float]) -> float | None:
    """The linear correlation, from −1 to 1; None where it is undefined: below two values, or one side constant."""
    if len(x_R) < 2 or min(x_R) == max(x_R) or min(y_R) == max(y_R):
        return None
    mean_x, mean_y = math.fsum(x_R) / len(x_R), math.fsum(y_R) / len(y_R)
    x_R, y_R = [x - mean_x for x in x_R], [y - mean_y for y in y_R]
    # Scaled first, so that the squares of very small or large values neither vanish nor overflow.
    scale_x, scale_y = max(map(abs, x_R)), max(map(abs, y_R))
    x_R, y_R = [x / scale_x for x in x_R], [y / scale_y for y in y_R]
    covariance = math.fsum(x * y for x, y in zip(x_R, y_R, strict=True))
    correlation = covariance / math.sqrt(math.fsum(x * x for x in x_R) * math.fsum(y * y for y in y_R))
    return max(-1.0, min(1.0, correlation))


def spearman(x_R: Sequence[float], y_R: Sequence[float]) -> float | None:
    """The correlation of the ranks: how nearly one rises with the other, along whatever curve; None as in `pearson`."""
    return pearson(ranks(x_R), ranks(y_R))


def ranks(values_R: Sequence[float]) -> list[float]:
    """Each value's place in the order, from 1; equal values share the mean of their places."""
    order = sorted(range(len(values_R)), key=lambda i: values_R[i])
    ranks_R = [0.0] * len(values_R)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values_R[order[end]] == values_R[order[start]]:
            end += 1
        for i in order[start:end]:
            ranks_R[i] = (start + 1 + end) / 2
        start = end
    return ranks_R
