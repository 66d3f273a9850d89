"""Which characters each token wrote."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.token_spans import TokenSpans
from recipe.tokenizer_utils import get_tokenizer


@settings(max_examples=200)
@given(st.text(max_size=40))
def test_lengths_add_up_to_the_text_of_the_built_in_tokenizer(text: str) -> None:
    tokenizer = get_tokenizer("mint-tiny")
    tokens = tokenizer.encode(text, add_special_tokens=False)
    decoded = tokenizer.decode(tokens)
    lengths = TokenSpans(tokenizer.decode).lengths(tokens, decoded)
    assert lengths is not None and len(lengths) == len(tokens) and sum(lengths) == len(decoded)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 4095), max_size=24))
def test_whatever_is_sampled_has_one_length_per_token_or_none_at_all(tokens: list[int]) -> None:
    """Random tokens break characters apart; where lengths come out, they cut the text as the tokens wrote it."""
    tokenizer = get_tokenizer("mint-tiny")
    decoded = tokenizer.decode(tokens)
    lengths = TokenSpans(tokenizer.decode).lengths(tokens, decoded)
    if lengths is not None:
        assert len(lengths) == len(tokens) and sum(lengths) == len(decoded) and min(lengths, default=0) >= 0


def test_a_character_of_several_tokens_counts_for_the_last() -> None:
    def decode(tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")

    tokens = list("né€".encode())
    assert TokenSpans(decode).lengths(tokens, "né€") == [1, 0, 1, 0, 0, 1]


def test_a_tokenizer_that_drops_the_first_space_is_followed_too() -> None:
    words = ["▁a", "▁cat", "s", "▁sat"]

    def decode(tokens: list[int]) -> str:
        return "".join(words[token] for token in tokens).replace("▁", " ").removeprefix(" ")

    assert TokenSpans(decode).lengths([0, 1, 2, 3], "a cats sat") == [1, 4, 1, 4]


def test_tokens_that_do_not_add_up_to_the_text_have_no_lengths() -> None:
    assert TokenSpans(lambda tokens: "x" * len(tokens)).lengths([1, 2], "something else") is None
