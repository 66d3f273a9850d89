"""Training and held-out files from audited pairs: without repetitions and contradictions, and balanced in length.

Axes: _N preference pair, _R distinct text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mint.atomic_files import storage_errors, write_atomically
from mint.errors import InvalidRequest
from mint.seeds import derive_seed
from recipe.preference.data_audit import AuditedFile, AuditResult
from recipe.preference.length_balance import length_balanced
from recipe.preference.pair_findings import clean_pairs
from recipe.preference.pair_lengths import length_difference
from recipe.preference.pair_rows import pair_to_row
from recipe.preference.types import PreferencePair, prompt_key


@dataclass(frozen=True)
class CleanSplits:
    """Clean pairs on two sides that share no prompt, not even a nearly equal one; of each side the balanced part.

    num_shared_dropped: clean training pairs that went because a given held-out file has their prompt.
    """

    train: list[PreferencePair]
    held_out: list[PreferencePair]
    balanced_train: list[PreferencePair]
    balanced_held_out: list[PreferencePair]
    num_shared_dropped: int = 0


def clean_splits(
    file: AuditedFile,
    result: AuditResult,
    *,
    held_out: AuditedFile | None = None,
    held_out_share: float = 0.1,
    seed: int = 0,
    drop_near: bool = False,
) -> CleanSplits:
    """The clean pairs split by prompt: as a given held-out file says, or by a share of the prompts drawn with `seed`.

    The draw follows from the prompts and the seed. InvalidRequest where no pair is left to train on.
    """
    clean = [file.pairs_N[i] for i in result.clean.kept]
    prompts = [result.near_R[result.numbered_N[i].prompt] for i in result.clean.kept]
    num_shared_dropped = 0
    if held_out is not None:
        kept = clean_pairs(result.held_out_N, result.near_R if drop_near else None).kept
        test = [held_out.pairs_N[i] for i in kept]
        test_prompts = {result.near_R[pair.prompt] for pair in result.held_out_N}
        train = [pair for pair, prompt in zip(clean, prompts, strict=True) if prompt not in test_prompts]
        num_shared_dropped = len(clean) - len(train)
    else:
        test_prompts = _drawn_prompts(clean, prompts, held_out_share, seed)
        train = [pair for pair, prompt in zip(clean, prompts, strict=True) if prompt not in test_prompts]
        test = [pair for pair, prompt in zip(clean, prompts, strict=True) if prompt in test_prompts]
    if not train:
        raise InvalidRequest(
            f"{file.path}: none of its {len(file.pairs_N)} pairs is left to train on once repetitions, contradictions "
            "and held-out prompts are gone; give pairs for more prompts, or hold out fewer"
        )
    return CleanSplits(train, test, balanced(train), balanced(test), num_shared_dropped)


def balanced(pairs_N: Sequence[PreferencePair]) -> list[PreferencePair]:
    """As many pairs as can be matched on length difference (`length_balance`), in order; no ties."""
    preferences = [pair for pair in pairs_N if not pair.is_tie]
    keys = [_as_line(pair) for pair in preferences]
    return [preferences[i] for i in length_balanced([length_difference(pair) for pair in preferences], keys)]


_NAMES = ("train", "held_out", "balanced_train", "balanced_held_out")


def write_splits(splits: CleanSplits, prefix: str, sources: Sequence[str] = ()) -> dict[str, int]:
    """Write PREFIX_train.jsonl, PREFIX_held_out.jsonl and their balanced parts; the number of pairs of each file.

    A part without pairs is not written, and an older file of its name is an InvalidRequest, since it would be taken
    for one of these; so is a file that is one of the `sources`, before anything is written.
    """
    written: dict[str, int] = {}
    originals = {Path(source).expanduser().resolve() for source in sources}
    for name in _NAMES:
        if Path(f"{prefix}_{name}.jsonl").expanduser().resolve() in originals:
            raise InvalidRequest(
                f"{prefix}_{name}.jsonl is a file that was read: write under another name than {prefix}"
            )
    for name in _NAMES:
        pairs: list[PreferencePair] = getattr(splits, name)
        path = Path(f"{prefix}_{name}.jsonl").expanduser()
        if not pairs and path.exists():
            raise InvalidRequest(f"{path} is of an earlier audit, and now no pair belongs there: remove it")
        if pairs:
            with storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, "".join(_as_line(pair) + "\n" for pair in pairs).encode("utf-8"))
            written[str(path)] = len(pairs)
    return written


def _drawn_prompts(
    pairs: Sequence[PreferencePair], prompts: Sequence[int], held_out_share: float, seed: int
) -> set[int]:
    """The prompts to hold out, each as the number that nearly equal prompts share."""
    if held_out_share == 0.0:
        return set()
    key_of: dict[int, str] = {}
    for pair, prompt in zip(pairs, prompts, strict=True):
        key = prompt_key(pair.prompt)
        key_of[prompt] = min(key, key_of.get(prompt, key))
    if len(key_of) < 2:
        raise InvalidRequest(
            f"held_out_share={held_out_share}: {len(key_of)} prompt is left, and a prompt is never on both sides; "
            "give pairs for more prompts, or hold out none"
        )
    num_held_out = min(max(round(held_out_share * len(key_of)), 1), len(key_of) - 1)
    return set(
        sorted(key_of, key=lambda prompt: (derive_seed(seed, "held-out prompt", key_of[prompt]), key_of[prompt]))[
            :num_held_out
        ]
    )


def _as_line(pair: PreferencePair) -> str:
    """The pair as JSON that can be written as UTF-8: readable, or escaped where a text has half a surrogate pair."""
    row = pair_to_row(pair)
    line = json.dumps(row, ensure_ascii=False)
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(row)
    return line
