"""The token view: nothing lost, weights at a glance, nothing that acts on the terminal."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from mint import builtin
from recipe.terminal import Palette
from recipe.token_view import token_texts, token_view

TOKENIZER = AutoTokenizer.from_pretrained(builtin.model_dir())
PLAIN, COLOURED = Palette(False), Palette(True)


def test_lines_break_at_line_ends_and_where_the_weight_changes() -> None:
    lines = token_view(["<s>", "a\nb", "c", "d\n"], [0, 0, 1, 0.5], [True, False, False, False], PLAIN)
    assert lines == ["       0 | [<s>]a⏎", "       0 | b", "       1 | c", "     0.5 | d⏎"]


def test_colours_tell_trained_tokens_from_the_rest() -> None:
    (first, second, third) = token_view(["<s>", "yes", "no"], [0, 1, -1], [True, False, False], COLOURED)
    assert first == "\033[2m       0\033[0m | \033[35m<s>\033[0m"
    assert second == "\033[1;32m       1\033[0m | \033[1;32myes\033[0m"
    assert third == "\033[31m      -1\033[0m | \033[31mno\033[0m"


def test_control_characters_are_written_out() -> None:
    assert token_view(["a\x1b[31mb\r\t"], [1], [False], PLAIN) == [r"       1 | a\x1b[31mb\r\t"]


@settings(max_examples=60)
@given(st.text(max_size=30))
def test_no_text_is_lost_between_tokens(text: str) -> None:
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    texts = token_texts(tokens, TOKENIZER.decode)
    assert len(texts) == len(tokens)
    assert "".join(texts) == text


def test_bytes_that_never_become_a_character_are_shown_as_such() -> None:
    first_byte = TOKENIZER.encode("東", add_special_tokens=False)[0]
    assert token_texts([first_byte] * 2, TOKENIZER.decode) == ["", TOKENIZER.decode([first_byte] * 2)]
