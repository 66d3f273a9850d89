"""A conversation's tokens with their loss weights, to be read at one glance: pure text in, pure text out.

Each line starts with the weight of its tokens, so the plain form says what the colours say:

       0 | [<|im_start|>]user⏎
       0 | How can I sleep better?[<|im_end|>]⏎
       1 | Keep the bedroom dark.[<|im_end|>]

Axes: _T token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recipe.terminal import Palette

_LINE_END = "⏎"
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def token_texts(tokens_T: Sequence[int], decode: Callable[[list[int]], str]) -> list[str]:
    """The text that each token adds, shape (T,); joined, they are the text of all.

    A character that several tokens write together is given to the last of them, the others get "".
    """
    texts: list[str] = []
    pending: list[int] = []
    for token in tokens_T:
        pending.append(token)
        text = decode(pending)
        # Four bytes are the longest character; what is still unfinished then never will be.
        if text.endswith(_UNFINISHED) and len(pending) < 4:
            texts.append("")
        else:
            texts.append(text)
            pending = []
    if pending:
        texts[-1] = decode(pending)
    return texts


def token_view(
    texts_T: Sequence[str], weights_T: Sequence[float], is_special_T: Sequence[bool], palette: Palette
) -> list[str]:
    """Lines of tokens; a new one starts where the text breaks and where the weight changes.

    Zero weight is dim, positive green (bold at 1 and above), negative red, special tokens magenta. Without colours
    special tokens stand in brackets. Control characters are written out, so that they cannot act on the terminal.
    """
    lines: list[str] = []
    line, line_weight = "", 0.0
    for text, weight, is_special in zip(texts_T, weights_T, is_special_T, strict=True):
        if line and weight != line_weight:
            lines.append(_finished(line, line_weight, palette))
            line = ""
        line_weight = weight
        pieces = text.split("\n")
        for i_piece, piece in enumerate(pieces):
            ends_here = i_piece < len(pieces) - 1
            line += _painted(_visible(piece), weight, is_special, palette)
            if ends_here:
                lines.append(_finished(line + palette.paint(_LINE_END, "dim"), weight, palette))
                line = ""
    if line:
        lines.append(_finished(line, line_weight, palette))
    return lines


def _finished(line: str, weight: float, palette: Palette) -> str:
    return f"{palette.paint(f'{weight:>8.3g}', _style(weight))} | {line}"


def _painted(text: str, weight: float, is_special: bool, palette: Palette) -> str:
    if is_special:
        return palette.paint(text, "magenta") if palette.is_coloured else f"[{text}]" if text else ""
    return palette.paint(text, _style(weight))


def _style(weight: float) -> str:
    if weight == 0:
        return "dim"
    if weight < 0:
        return "red"
    return "bold green" if weight >= 1 else "green"


def _visible(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
