"""What is to be known about preference pairs before a model is trained on them: `audit_pairs`.

Files are read by `read_for_audit`, which goes on where training would stop at the first bad row.

Axes: _N preference pair, _R distinct text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from envs.data_rows import read_rows
from mint.errors import InvalidRequest
from recipe.preference.clustered_share import ShareEstimate, clustered_share
from recipe.preference.label_noise import RepeatedLabels, WordModelNoise, repeated_labels, word_model_noise
from recipe.preference.pair_findings import (
    CleanPairs,
    NumberedPair,
    TextNumbers,
    clean_pairs,
    in_both_orders,
    number_pairs,
    on_cycles,
    repeated,
)
from recipe.preference.pair_lengths import LengthSkew, TokenLengths, length_difference, length_skew, longer_wins
from recipe.preference.pair_rows import PairColumns, parse_row
from recipe.preference.types import PreferencePair, prompt_key, replies_are_equal
from renderers import Message


@dataclass(frozen=True)
class AuditedFile:
    """The rows of a file that are pairs, with the line of each, and those that are none.

    equal_lines: rows whose two replies are equal. broken: a message for each row that cannot be read, with file, line,
    rule and fix.
    """

    path: str
    pairs_N: list[PreferencePair]
    lines_N: list[int]
    equal_lines: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        """All rows of the file."""
        return len(self.pairs_N) + len(self.equal_lines) + len(self.broken)


@dataclass(frozen=True)
class PromptOverlap:
    """Prompts of another file that the audited file has too.

    num_equal: message for message, as training compares them. num_near: nearly equal, those above among them.
    lines: pairs of the audited file that have such a prompt.
    """

    path: str
    num_prompts: int
    num_equal: int
    num_near: int
    lines: list[int]


@dataclass(frozen=True)
class SourceAudit:
    """One source's part of the file. num_too_long is None where tokens were not counted."""

    num_pairs: int
    num_prompts: int
    num_ties: int
    num_not_clean: int
    num_too_long: int | None
    longer_is_chosen: ShareEstimate


@dataclass(frozen=True)
class DataAudit:
    """All findings; pairs are given as lines of the file, groups of pairs as lists of lines.

    num_near_prompts: prompts that nearly equal an earlier one. duplicates: pairs that say the same of the same replies.
    near_duplicates: the same of texts that are nearly equal, without groups that are all duplicates. near_equal_lines:
    pairs whose two replies are nearly equal. both_orders: pairs of the same replies with opposite preferences.
    cycles: for each prompt, pairs on a cycle of preferences. not_clean: how many pairs `clean_pairs` drops, by reason.
    suspicious_lines: line and probability of the labels that the model of words finds least likely.
    """

    path: str
    num_rows: int
    num_pairs: int
    num_ties: int
    num_prompts: int
    num_near_prompts: int
    broken_rows: list[str]
    equal_lines: list[int]
    duplicates: list[list[int]]
    near_duplicates: list[list[int]]
    near_equal_lines: list[int]
    both_orders: list[list[int]]
    cycles: list[list[int]]
    not_clean: dict[str, int]
    lengths: LengthSkew | None
    tokens: TokenLengths | None
    overlaps: dict[str, PromptOverlap]
    repeated_labels: RepeatedLabels
    word_model: WordModelNoise | None
    suspicious_lines: list[tuple[int, float]]
    by_source: dict[str, SourceAudit]


@dataclass(frozen=True)
class AuditResult:
    """The audit, and what clean splits are made from (`clean_splits`): texts as numbers, and which pairs are clean.

    near_R: for each text the number of the one that it nearly equals. held_out_N: the held-out file's pairs, if any.
    """

    audit: DataAudit
    numbered_N: list[NumberedPair]
    held_out_N: list[NumberedPair]
    near_R: list[int]
    clean: CleanPairs


def read_for_audit(
    path: str,
    columns: PairColumns | None = None,
    *,
    split: str = "train",
    subset: str | None = None,
    max_rows: int | None = None,
) -> AuditedFile:
    """All rows of a file or hub dataset, good and bad. InvalidRequest where not one of them is a pair."""
    columns = columns or PairColumns()
    file = AuditedFile(path, [], [])
    for line, row in read_rows(path, split=split, subset=subset, max_rows=max_rows):
        origin = f"{path}, line {line}"
        try:
            parsed = parse_row(row, columns)
            if replies_are_equal(parsed.chosen, parsed.rejected):
                file.equal_lines.append(line)
                continue
            file.pairs_N.append(parsed.to_pair(origin))
            file.lines_N.append(line)
        except InvalidRequest as error:
            file.broken.append(f"{origin}: {error}")
    if not file.pairs_N:
        first = file.broken[0] if file.broken else f"{path}, line {file.equal_lines[0]}: both replies are equal"
        raise InvalidRequest(f"no row of {path} is a pair. {first}")
    return file


def audit_pairs(
    file: AuditedFile,
    *,
    held_out: AuditedFile | None = None,
    rl_prompts: tuple[str, Sequence[list[Message]]] | None = None,
    tokens: TokenLengths | None = None,
    with_model: bool = True,
    drop_near: bool = False,
) -> AuditResult:
    """Look at the pairs of a file, and at what it shares with held-out pairs and with RL prompts (path, prompts).

    tokens: measured beforehand, since that needs a tokenizer. with_model: fit the model of words. drop_near: near
    duplicates are not clean.
    """
    numbers = TextNumbers()
    numbered_N = number_pairs(file.pairs_N, numbers)
    held_out_N = number_pairs(held_out.pairs_N, numbers) if held_out else []
    others: dict[str, tuple[str, Sequence[list[Message]]]] = {}
    if held_out:
        others["held-out"] = (held_out.path, [pair.prompt for pair in held_out.pairs_N])
    if rl_prompts:
        others["RL"] = rl_prompts
    numbers_of = {name: [numbers.number(prompt) for prompt in prompts] for name, (_, prompts) in others.items()}
    near_R = numbers.near_numbers()
    near_N = [pair.renumbered(near_R) for pair in numbered_N]
    near_duplicates = [group for group in repeated(near_N) if len({numbered_N[i].annotation for i in group}) > 1]
    prompt_numbers = {pair.prompt for pair in numbered_N}
    clean = clean_pairs(numbered_N, near_R if drop_near else None)
    # Nearly equal prompts are judged together: the model of words shall not have seen the one when it judges the other.
    judged_N = [replace(pair, prompt=near_R[pair.prompt]) for pair in numbered_N]
    model = word_model_noise(file.pairs_N, judged_N) if with_model else None
    audit = DataAudit(
        path=file.path,
        num_rows=file.num_rows,
        num_pairs=len(file.pairs_N),
        num_ties=sum(pair.is_tie for pair in numbered_N),
        num_prompts=len(prompt_numbers),
        num_near_prompts=len(prompt_numbers) - len({near_R[number] for number in prompt_numbers}),
        broken_rows=file.broken,
        equal_lines=file.equal_lines,
        duplicates=_lines(repeated(numbered_N), file),
        near_duplicates=_lines(near_duplicates, file),
        near_equal_lines=[file.lines_N[i] for i, pair in enumerate(near_N) if pair.chosen == pair.rejected],
        both_orders=_lines(in_both_orders(numbered_N), file),
        cycles=_lines(on_cycles(numbered_N), file),
        not_clean=clean.num_dropped(),
        lengths=length_skew(file.pairs_N, [pair.prompt for pair in numbered_N]),
        tokens=tokens,
        overlaps={
            name: _overlap(file, numbered_N, path, prompts, numbers_of[name], near_R)
            for name, (path, prompts) in others.items()
        },
        repeated_labels=repeated_labels(numbered_N),
        word_model=model,
        suspicious_lines=[
            (file.lines_N[pair.position], pair.label_probability) for pair in (model.suspicious if model else [])
        ],
        by_source=_by_source(file, numbered_N, clean, tokens),
    )
    return AuditResult(audit, numbered_N, held_out_N, near_R, clean)


def _lines(groups: Sequence[Sequence[int]], file: AuditedFile) -> list[list[int]]:
    return [[file.lines_N[i] for i in group] for group in groups]


def _overlap(
    file: AuditedFile,
    numbered_N: Sequence[NumberedPair],
    path: str,
    prompts: Sequence[list[Message]],
    prompt_numbers: Sequence[int],
    near_R: Sequence[int],
) -> PromptOverlap:
    keys = {prompt_key(prompt) for prompt in prompts}
    near = {near_R[number] for number in prompt_numbers}
    own_near_N = [near_R[pair.prompt] for pair in numbered_N]
    shared_near = near & set(own_near_N)
    return PromptOverlap(
        path=path,
        num_prompts=len(keys),
        num_equal=len(keys & {prompt_key(pair.prompt) for pair in file.pairs_N}),
        num_near=len(
            {
                prompt_key(prompt)
                for prompt, number in zip(prompts, prompt_numbers, strict=True)
                if near_R[number] in shared_near
            }
        ),
        lines=[line for line, number in zip(file.lines_N, own_near_N, strict=True) if number in shared_near],
    )


def _by_source(
    file: AuditedFile, numbered_N: Sequence[NumberedPair], clean: CleanPairs, tokens: TokenLengths | None
) -> dict[str, SourceAudit]:
    """Each source by name, pairs without one under "none"; nothing where no pair has a source."""
    positions_of: dict[str, list[int]] = defaultdict(list)
    for i_pair, pair in enumerate(file.pairs_N):
        positions_of[pair.source if pair.source is not None else "none"].append(i_pair)
    if all(pair.source is None for pair in file.pairs_N):
        return {}
    too_long = set(tokens.too_long_lines) if tokens else set()
    audits: dict[str, SourceAudit] = {}
    for source, positions in sorted(positions_of.items()):
        preferences = [i for i in positions if not numbered_N[i].is_tie]
        audits[source] = SourceAudit(
            num_pairs=len(positions),
            num_prompts=len({numbered_N[i].prompt for i in positions}),
            num_ties=len(positions) - len(preferences),
            num_not_clean=sum(i in clean.dropped for i in positions),
            num_too_long=None if tokens is None else sum(file.lines_N[i] in too_long for i in positions),
            longer_is_chosen=clustered_share(
                [longer_wins(length_difference(file.pairs_N[i])) for i in preferences],
                [numbered_N[i].prompt for i in preferences],
            ),
        )
    return audits
