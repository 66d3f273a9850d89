"""Checkpoint paths: `mint://<run id>/weights/<name>` and `mint://<run id>/sampler_weights/<name>`."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Literal, get_args

from mint.errors import InvalidRequest, nearest_name

CheckpointKind = Literal["weights", "sampler_weights"]
KINDS: tuple[CheckpointKind, ...] = get_args(CheckpointKind)

_SCHEMES = ("mint://", "tinker://")
_MAX_NAME_BYTES = 160
_PUNCTUATION = frozenset("._-+=")


def check_name(name: str, what: str = "checkpoint name") -> str:
    """`name` itself when it can be one folder on any file system; InvalidRequest otherwise.

    Letters and digits of any script, and `. _ - + =`, not starting with a dot or dash, at most 160 bytes. So a name
    holds no separator, no `..`, no control or formatting character, and cannot collide with a temporary folder.
    """
    rule = "use letters, digits and . _ - + =, not starting with . or -"
    if not name:
        raise InvalidRequest(f"{what} is empty; {rule}")
    if len(name.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES:
        raise InvalidRequest(f"{what} {name[:40]!r}... is longer than {_MAX_NAME_BYTES} bytes; choose a shorter one")
    wrong = [char for char in name if not (char.isalnum() or char in _PUNCTUATION)]
    if wrong:
        raise InvalidRequest(f"{what} {name!r} contains {wrong[0]!r}; {rule}")
    if name[0] in ".-":
        raise InvalidRequest(f"{what} {name!r} starts with {name[0]!r}; {rule}")
    if not unicodedata.is_normalized("NFC", name):
        raise InvalidRequest(f"{what} {name!r} is not in Unicode's composed form (NFC); retype it with plain letters")
    return name


def is_name(name: str) -> bool:
    """Whether `check_name` would accept it."""
    try:
        check_name(name)
    except InvalidRequest:
        return False
    return True


@dataclass(frozen=True, order=True)
class CheckpointPath:
    """Where a checkpoint lives: a training run, a kind, a name. `str()` gives the `mint://` form."""

    run_id: str
    kind: CheckpointKind
    name: str

    def __post_init__(self) -> None:
        check_name(self.run_id, "run id")
        if self.kind not in KINDS:
            raise InvalidRequest(f"checkpoint kind {self.kind!r} is not one of {', '.join(KINDS)}")
        check_name(self.name)

    @classmethod
    def parse(cls, text: str | CheckpointPath) -> CheckpointPath:
        """Read `mint://...` or `tinker://...`; InvalidRequest says which part is wrong."""
        if isinstance(text, CheckpointPath):
            return text
        form = "mint://<run id>/weights/<name> or mint://<run id>/sampler_weights/<name>"
        scheme = next((scheme for scheme in _SCHEMES if text.startswith(scheme)), None)
        if scheme is None:
            raise InvalidRequest(f"{text!r} is not a checkpoint path; write {form}")
        parts = text.removeprefix(scheme).split("/")
        if len(parts) != 3:
            raise InvalidRequest(f"{text!r} has {len(parts)} parts where a checkpoint path has 3; write {form}")
        run_id, kind, name = parts
        if kind not in KINDS:
            raise InvalidRequest(
                f"{text!r}: {kind!r} is not a kind of checkpoint.{nearest_name(kind, KINDS)} Write {form}"
            )
        return cls(run_id, kind, name)

    @property
    def checkpoint_id(self) -> str:
        """`weights/<name>` or `sampler_weights/<name>`: what the API calls the checkpoint id within a run."""
        return f"{self.kind}/{self.name}"

    def __str__(self) -> str:
        return f"mint://{self.run_id}/{self.kind}/{self.name}"
