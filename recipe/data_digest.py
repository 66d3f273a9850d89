"""SHA-256 of what a stage is given to learn from: the examples themselves, not the files they came from.

Two files with the same examples in the same order have the same digest; one changed, added, dropped or moved example
has another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from mint import types


class Digest:
    """Feeds a SHA-256 with parts whose borders count: ("ab", "c") and ("a", "bc") differ."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def add(self, part: bytes) -> None:
        """One more part."""
        self._sha256.update(len(part).to_bytes(8, "little"))
        self._sha256.update(part)

    def add_json(self, value: Any) -> None:
        """One more part: JSON with sorted keys."""
        self.add(json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass"))

    def hexdigest(self) -> str:
        """In hexadecimal."""
        return self._sha256.hexdigest()


def digest_of_json(*parts: Iterable[Any]) -> str:
    """The digest of several lists of JSON values, such as training and held-out examples."""
    digest = Digest()
    for part in parts:
        values = list(part)
        digest.add_json(len(values))
        for value in values:
            digest.add_json(value)
    return digest.hexdigest()


def add_datum(digest: Digest, datum: types.Datum) -> None:
    """Feed a datum: its tokens, then each input of the loss by name."""
    digest.add_json(datum.model_input.to_ints())
    for name in sorted(datum.loss_fn_inputs):
        values = datum.loss_fn_inputs[name].to_numpy()
        digest.add_json([name, str(values.dtype), list(values.shape)])
        digest.add(values.tobytes())
