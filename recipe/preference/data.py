"""Preference pairs from lists and files, their split by prompt, and the order in which they are trained on."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chz

from envs.data_rows import read_rows
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.data_digest import digest_of_json
from recipe.preference.pair_rows import PairColumns, pair_from_row
from recipe.preference.types import PreferenceDatasetBuilder, PreferencePair, PreferenceSplit, prompt_key


@chz.chz(typecheck=True)
class ListPreferenceDatasetBuilder(PreferenceDatasetBuilder):
    """Pairs made in Python: PreferencePairs, or rows as in a file with the columns that `PairColumns` names by default.

    Only rows can be rebuilt from a run's config.json.
    """

    pairs: list[Any]
    # Pairs for testing, which may not share a prompt with `pairs`; None: taken from `pairs`.
    held_out_pairs: list[Any] | None = None

    def __call__(self) -> PreferenceSplit:
        """See PreferenceDatasetBuilder. InvalidRequest names the position of the first row that is not a pair."""
        pairs = _from_list(self.pairs, "pairs")
        if self.held_out_pairs is not None:
            return PreferenceSplit(pairs, _from_list(self.held_out_pairs, "held_out_pairs"))
        return split_by_prompt(pairs, self.examples.held_out_share, self.examples.split_seed)


@chz.chz(typecheck=True)
class FilePreferenceDatasetBuilder(PreferenceDatasetBuilder):
    """Pairs from a .jsonl or .parquet file, or from a hub dataset, one pair a row."""

    # A file, or the name of a hub dataset.
    path: str
    # A file or hub dataset with pairs for testing, which may not share a prompt with `path`; None: taken from `path`.
    held_out_path: str | None = None
    columns: PairColumns = chz.field(default_factory=PairColumns)
    # Of a hub dataset.
    subset: str | None = None
    split: str = "train"
    # Read only the first rows of `path`; None: all.
    max_rows: int | None = None

    @chz.validate
    def _rows(self) -> None:
        if self.max_rows is not None and self.max_rows < 1:
            raise InvalidRequest(f"max_rows={self.max_rows}: must be at least 1, or None for all")

    def __call__(self) -> PreferenceSplit:
        """See PreferenceDatasetBuilder. InvalidRequest names file and line of the first row that is not a pair."""
        where: dict[str, Any] = {"split": self.split, "subset": self.subset}
        pairs = read_pairs(self.path, self.columns, max_rows=self.max_rows, **where)
        if self.held_out_path is not None:
            return PreferenceSplit(pairs, read_pairs(self.held_out_path, self.columns, **where))
        return split_by_prompt(pairs, self.examples.held_out_share, self.examples.split_seed)


def read_pairs(
    path: str | Path,
    columns: PairColumns | None = None,
    *,
    split: str = "train",
    subset: str | None = None,
    max_rows: int | None = None,
) -> list[PreferencePair]:
    """The pairs of a file or hub dataset (see `envs.data_rows.read_rows`), in order."""
    pairs: list[PreferencePair] = []
    for line, row in read_rows(path, split=split, subset=subset, max_rows=max_rows):
        origin = f"{path}, line {line}"
        try:
            pairs.append(pair_from_row(row, columns, origin))
        except InvalidRequest as error:
            raise InvalidRequest(f"{origin}: {error}") from error
    return pairs


def split_by_prompt(pairs: Sequence[PreferencePair], held_out_share: float, seed: int = 0) -> PreferenceSplit:
    """Hold out a share of the prompts, at least one unless the share is 0; all pairs of a prompt fall on one side.

    Which prompts are held out follows from their text and the seed, not from the order of the pairs.
    """
    if held_out_share == 0.0 or not pairs:
        return PreferenceSplit(pairs)
    held_out = held_out_prompts({prompt_key(pair.prompt) for pair in pairs}, held_out_share, seed, "pairs")
    return PreferenceSplit(
        train=[pair for pair in pairs if prompt_key(pair.prompt) not in held_out],
        held_out=[pair for pair in pairs if prompt_key(pair.prompt) in held_out],
    )


def held_out_prompts(prompts: set[str], held_out_share: float, seed: int, of_what: str) -> set[str]:
    """The share of the prompts, at least one and not all, that is kept for testing. InvalidRequest for a single prompt.

    prompts: as `prompt_key` writes them. of_what: what the prompts belong to, for messages.
    """
    if len(prompts) < 2:
        raise InvalidRequest(
            f"held_out_share={held_out_share}: all {of_what} have the same prompt, and a prompt is never on both "
            f"sides; give {of_what} for more prompts or set held_out_share=0"
        )
    num_held_out = min(max(round(held_out_share * len(prompts)), 1), len(prompts) - 1)
    by_draw = sorted(prompts, key=lambda prompt: (derive_seed(seed, "held-out prompt", prompt), prompt))
    return set(by_draw[:num_held_out])


def pairs_sha256(train: Sequence[PreferencePair], held_out: Sequence[PreferencePair]) -> str:
    """SHA-256 of all pairs, in order; where each comes from (`origin`) does not count."""
    shown = ("prompt", "chosen", "rejected", "source", "strength", "is_tie")
    parts = [[{name: getattr(pair, name) for name in shown} for pair in pairs] for pairs in (train, held_out)]
    return digest_of_json(*parts)


def batch_of_step(num_pairs: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Indices of the pairs that optimizer step `step` trains on: each pair once an epoch, in an order per epoch.

    The last batch of an epoch holds what is left. A pure function, so a resumed run needs no cursor.
    """
    epoch, i_batch = divmod(step, num_batches(num_pairs, batch_size))
    order = list(range(num_pairs))
    random.Random(derive_seed(seed, "preference order", epoch)).shuffle(order)
    return order[i_batch * batch_size : (i_batch + 1) * batch_size]


def num_batches(num_pairs: int, batch_size: int) -> int:
    """Batches in one epoch."""
    return -(-num_pairs // batch_size)


def _from_list(items: Sequence[Any], name: str) -> list[PreferencePair]:
    pairs: list[PreferencePair] = []
    for i_item, item in enumerate(items):
        origin = f"{name}[{i_item}]"
        if isinstance(item, PreferencePair):
            pairs.append(item)
            continue
        if not isinstance(item, Mapping):
            raise InvalidRequest(f"{origin} must be a PreferencePair or a row, got {type(item).__name__}")
        try:
            pairs.append(pair_from_row(item, origin=origin))
        except InvalidRequest as error:
            raise InvalidRequest(f"{origin}: {error}") from error
    return pairs
