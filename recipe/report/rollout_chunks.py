"""Rollout files as the page wants them: a small index of all episodes, and a chunk of texts and one of tokens per file.

The page filters and sorts on the index alone; a chunk is unpacked when one of its episodes is looked at or searched.

Axes: _T token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from recipe.report.tolerant_reading import FolderReader, dump, number

_FILE_NAME = re.compile(r"([a-z][a-z_]*)_(\d+)\.jsonl")
# The folder's names of what the page calls by the right-hand side; other names are kept.
_SET_NAMES = {"iteration": "train"}
# Written beside the episodes and read with them.
_TRAINED = "trained"
_SNIPPET_CHARACTERS = 110
_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>")
_LOGPROB_DECIMALS, _ADVANTAGE_DECIMALS, _LOG_RATIO_DECIMALS = 4, 5, 5
# Bits of `flags`.
IS_CUT, IS_FAULT, HAS_TRAINER = 1, 2, 4


@dataclass(frozen=True)
class RolloutFile:
    """One file of episodes."""

    path: Path
    set_name: str
    iteration: int


@dataclass
class RolloutIndex:
    """A column per property, an entry per episode; `files` and `prompts` are what two of the columns point into."""

    files: list[dict[str, Any]] = field(default_factory=list)
    prompts: dict[str, int] = field(default_factory=dict)
    environments: dict[str, int] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, list[float | int | None]] = field(default_factory=dict)
    num_episodes: int = 0

    def add(self, row: dict[str, Any], metrics: dict[str, float | int]) -> None:
        """Append an episode."""
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)
        for name, value in metrics.items():
            if name not in self.metrics:
                self.metrics[name] = [None] * self.num_episodes
            self.metrics[name].append(value)
        self.num_episodes += 1
        for column in self.metrics.values():
            column.extend([None] * (self.num_episodes - len(column)))

    def as_json(self) -> dict[str, Any]:
        """Without the prompts, which travel apart."""
        return {
            "num_episodes": self.num_episodes,
            "files": self.files,
            "environments": list(self.environments),
            "tags": list(self.tags),
            "columns": self.columns,
            "metrics": self.metrics,
        }


@dataclass(frozen=True)
class Chunk:
    """What one rollout file adds to the page: two JSON documents, one entry per episode in each."""

    texts: bytes
    tokens: bytes


def rollout_files(folder: Path) -> list[RolloutFile]:
    """The files of episodes of a stage, by iteration; training before evaluation of the same iteration's number."""
    names = sorted(path for path in (folder / "rollouts").glob("*.jsonl") if path.is_file())
    matches = [(path, _FILE_NAME.fullmatch(path.name)) for path in names]
    files = [
        RolloutFile(path, _SET_NAMES.get(match[1], match[1]), int(match[2]))
        for path, match in matches
        if match is not None and match[1] != _TRAINED
    ]
    return sorted(files, key=lambda file: (file.iteration, file.set_name != "train", file.set_name))


def within_budget(files: list[RolloutFile], max_bytes: int) -> list[RolloutFile]:
    """All files where they are small enough together; else first, last and as many evenly spaced ones as fit, of each
    set."""
    total = sum(file.path.stat().st_size for file in files)
    if total <= max_bytes or not files:
        return files
    kept: list[RolloutFile] = []
    for set_name in dict.fromkeys(file.set_name for file in files):
        own = [file for file in files if file.set_name == set_name]
        num_kept = max(1, int(len(own) * max_bytes / total))
        places = {round(i * (len(own) - 1) / max(num_kept - 1, 1)) for i in range(num_kept)}
        kept += [file for i, file in enumerate(own) if i in places]
    return [file for file in files if file in kept]


def read_chunk(reader: FolderReader, file: RolloutFile, i_stage: int, index: RolloutIndex) -> Chunk:
    """The episodes of one file, added to the index; lines that are no episodes are reported and left out."""
    trainer_logprobs_of = _trainer_logprobs(reader, file)
    i_file, first = len(index.files), index.num_episodes
    texts: list[Any] = []
    tokens: list[Any] = []
    for line_number, record in reader.lines(file.path):
        try:
            trainer_logprobs = trainer_logprobs_of.get((record.get("group"), record.get("member")))
            turn_texts, turn_tokens, row, metrics = _episode(record, trainer_logprobs, index)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reader.report(file.path, line_number, f"not an episode, left out: {type(error).__name__} {error}")
            continue
        index.add({"file": i_file, **row}, metrics)
        texts.append(turn_texts)
        tokens.append(turn_tokens)
    index.files.append(
        {
            "stage": i_stage,
            "set": file.set_name,
            "iteration": file.iteration,
            "name": reader.name_of(file.path),
            "first": first,
            "count": len(texts),
        }
    )
    return Chunk(dump(texts), dump(tokens))


def _trainer_logprobs(reader: FolderReader, file: RolloutFile) -> dict[tuple[Any, Any], list[Any]]:
    if file.set_name != "train":
        return {}
    path = file.path.with_name(f"{_TRAINED}_{file.path.stem.rpartition('_')[2]}.jsonl")
    found = {(line.get("group"), line.get("member")): line.get("trainer_logprobs") for _, line in reader.lines(path)}
    return {key: values for key, values in found.items() if isinstance(values, list)}


def _episode(
    record: dict[str, Any], trainer_logprobs: list[Any] | None, index: RolloutIndex
) -> tuple[dict[str, Any], list[Any], dict[str, Any], dict[str, float | int]]:
    """Texts, tokens, row of the index, and metrics of an episode or of a failed call."""
    turns = list(record["turns"])
    fault = record.get("fault")
    num_tokens = sum(len(turn["tokens"]) for turn in turns)
    has_trainer = trainer_logprobs is not None and len(trainer_logprobs) == num_tokens
    remaining = iter(trainer_logprobs if trainer_logprobs is not None and has_trainer else ())
    own_metrics = _metrics(record)
    texts = {
        "turns": list(_turn_texts(turns)),
        "parts": _plain_dict(record.get("metrics")),
        "fault": None if fault is None else {name: str(value) for name, value in dict(fault).items()},
        "attempt": record.get("attempt"),
    }
    tokens = [_turn_tokens(turn, remaining if has_trainer else None) for turn in turns]
    prompt = str(turns[0]["prompt"]) if turns else ""
    is_cut = any(turn["stop_reason"] == "length" for turn in turns)
    row = {
        "group": _whole(record["group"]),
        "member": -1 if record.get("member") is None else _whole(record["member"]),
        "prompt": index.prompts.setdefault(prompt, len(index.prompts)),
        "env": index.environments.setdefault(str(record.get("env", "")), len(index.environments)),
        "tags": [index.tags.setdefault(str(tag), len(index.tags)) for tag in record.get("tags", [])],
        "reward": None if fault is not None else number(record["total_reward"]),
        "final": None if fault is not None else number(record["final_reward"]),
        "advantage": number(record.get("advantage")),
        "num_tokens": num_tokens,
        "num_turns": len(turns),
        "flags": IS_CUT * is_cut + IS_FAULT * (fault is not None) + HAS_TRAINER * has_trainer,
        "snippet": _snippet(turns),
    }
    return texts, tokens, row, own_metrics


def _turn_texts(turns: list[Any]) -> Iterator[dict[str, Any]]:
    """`given` is what a turn adds to the text before it; the first turn's is the prompt, which the index has."""
    before = ""
    for i_turn, turn in enumerate(turns):
        prompt, response = str(turn["prompt"]), str(turn["response"])
        extends = prompt.startswith(before)
        text: dict[str, Any] = {
            "response": response,
            "stop": str(turn["stop_reason"]),
            "reward": number(turn["reward"]),
        }
        if i_turn > 0:
            text |= {"given": prompt[len(before) :] if extends else prompt, "is_fresh": not extends}
        yield text | {"metrics": _plain_dict(turn.get("metrics")), "logs": _plain_dict(turn.get("logs"))}
        before = prompt + response


def _turn_tokens(turn: dict[str, Any], trainer_logprobs: Iterator[Any] | None) -> dict[str, Any]:
    """ids; lengths in UTF-16 units, as the browser counts; logprobs of the sampler; log ratios; advantages."""
    ids = [_whole(token) for token in turn["tokens"]]
    advantages = turn.get("advantages")
    return {
        "ids": ids,
        "lengths": _utf16_lengths(str(turn["response"]), turn.get("token_lengths"), len(ids)),
        "sampler": _rounded(turn["logprobs"], _LOGPROB_DECIMALS),
        "log_ratios": None if trainer_logprobs is None else _log_ratios(trainer_logprobs, turn["logprobs"]),
        "advantages": _rounded(advantages, _ADVANTAGE_DECIMALS) if isinstance(advantages, list) else number(advantages),
    }


def _utf16_lengths(text: str, lengths_T: Any, num_tokens: int) -> list[int] | None:
    if not isinstance(lengths_T, list) or len(lengths_T) != num_tokens:
        return None
    lengths_T = [_whole(length) for length in lengths_T]
    if sum(lengths_T) != len(text) or min(lengths_T, default=0) < 0:
        return None
    if max(text, default="") <= "\uffff":
        return lengths_T
    lengths, start = [], 0
    for length in lengths_T:
        lengths.append(sum(2 if char > "\uffff" else 1 for char in text[start : start + length]))
        start += length
    return lengths


def _log_ratios(trainer_logprobs: Iterator[Any], sampler_logprobs_T: list[Any]) -> list[float | int | None]:
    """Trainer's logprob less sampler's, shape (T,): on-policy all of it is next to nothing, and takes up as little."""
    return [
        round(p - q, _LOG_RATIO_DECIMALS) if type(p) is float and type(q) is float else None
        for q, p in zip(sampler_logprobs_T, islice(trainer_logprobs, len(sampler_logprobs_T)), strict=True)
    ]


def _rounded(values: Iterable[Any], decimals: int) -> list[float | int | None]:
    """Numbers to so many decimals. Most of a page's numbers come through here, hence the short way for plain floats;
    those that are not finite become null when the chunk is written."""
    return [round(value, decimals) if type(value) is float else number(value) for value in values]


def _metrics(record: dict[str, Any]) -> dict[str, float | int]:
    """The group's metrics of an episode, and the means of its turns' metrics over the turns that have them."""
    values: dict[str, list[float | int]] = {}
    for entry in [record.get("metrics"), *(turn.get("metrics") for turn in record["turns"])]:
        for name, value in (entry or {}).items():
            if (value := number(value)) is not None:
                values.setdefault(str(name), []).append(value)
    return {name: number(float(sum(found)) / len(found)) or 0 for name, found in values.items()}


def _snippet(turns: list[Any]) -> str:
    text = " ".join(_SPECIAL.sub(" ", str(turns[-1]["response"])[: 4 * _SNIPPET_CHARACTERS]).split()) if turns else ""
    return text if len(text) <= _SNIPPET_CHARACTERS else text[: _SNIPPET_CHARACTERS - 1] + "…"


def _plain_dict(value: Any) -> dict[str, Any]:
    """Numbers to a few digits, everything else as text."""
    if not isinstance(value, dict):
        return {}
    return {str(key): item if (item := number(entry)) is not None else str(entry) for key, entry in value.items()}


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value
