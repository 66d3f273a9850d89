"""Prompts for the preference environment from JSONL and Parquet files and from hub datasets."""

from __future__ import annotations

import logging
from typing import Any, Literal, cast

import chz

from envs.data_rows import read_rows
from envs.rlhf import RLHFDatasetBuilder
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, get_renderer, validate_messages

logger = logging.getLogger(__name__)


@chz.chz(typecheck=True)
class FileRLHFDatasetBuilder(RLHFDatasetBuilder):
    """One prompt a row: text of a user message, or a conversation to reply to. Equal prompts are used once."""

    # A .jsonl or .parquet file, or the name of a hub dataset.
    path: str
    # Column with the prompt.
    column: str = "prompt"
    # Of a hub dataset.
    subset: str | None = None
    split: str = "train"
    # Read only the first rows; None: all.
    max_rows: int | None = None
    # Prompts to hold out for evaluation, drawn with split_seed; 0 for none.
    num_test: int = 0
    split_seed: int = 0
    # What to do with prompts longer than max_prompt_tokens: refuse the data, or leave them out with a warning.
    on_too_long: Literal["error", "drop"] = "error"

    @chz.validate
    def _ranges(self) -> None:
        if self.num_test < 0:
            raise InvalidRequest(f"num_test={self.num_test}: must not be negative")
        if self.max_rows is not None and self.max_rows < 1:
            raise InvalidRequest(f"max_rows={self.max_rows}: must be at least 1, or None for all")
        if self.on_too_long == "drop" and self.max_prompt_tokens is None:
            raise InvalidRequest("on_too_long='drop' needs a limit: set max_prompt_tokens")

    def load_prompts(self) -> tuple[list[list[Message]], list[list[Message]]]:
        """See RLHFDatasetBuilder. InvalidRequest names the line of the first bad row."""
        import numpy as np

        rows = read_rows(self.path, split=self.split, subset=self.subset, max_rows=self.max_rows)
        prompts: dict[str, list[Message]] = {}
        for line, row in rows:
            prompt = self._prompt(f"{self.path}, line {line}", row)
            prompts.setdefault(repr(prompt), prompt)
        kept = self._short_enough(list(prompts.values()))
        if self.num_test >= len(kept):
            raise InvalidRequest(
                f"num_test={self.num_test} of {len(kept)} prompts leaves none to train on; hold out fewer"
            )
        order = np.random.default_rng(derive_seed(self.split_seed, "held-out prompts")).permutation(len(kept))
        held_out = set(order[: self.num_test].tolist())
        return (
            [prompt for i, prompt in enumerate(kept) if i not in held_out],
            [prompt for i, prompt in enumerate(kept) if i in held_out],
        )

    def _prompt(self, where: str, row: dict[str, Any]) -> list[Message]:
        if self.column not in row:
            raise InvalidRequest(
                f"{where}: no column {self.column!r}; its columns are {', '.join(map(repr, row))}. "
                "Name yours with column=..."
            )
        value = row[self.column]
        messages = [Message(role="user", content=value)] if isinstance(value, str) else cast("list[Message]", value)
        try:
            validate_messages(messages)
        except InvalidRequest as error:
            raise InvalidRequest(f"{where}: {error}") from error
        return messages

    def _short_enough(self, prompts: list[list[Message]]) -> list[list[Message]]:
        if self.on_too_long == "error" or self.max_prompt_tokens is None:
            return prompts
        renderer = get_renderer(self.renderer_name, get_tokenizer(self.model_name))
        kept = [p for p in prompts if renderer.build_generation_prompt(p).length <= self.max_prompt_tokens]
        if len(kept) < len(prompts):
            dropped = len(prompts) - len(kept)
            logger.warning(
                "left out %d of %d prompts longer than %d tokens", dropped, len(prompts), self.max_prompt_tokens
            )
        return kept
