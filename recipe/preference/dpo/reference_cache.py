"""What the reference policy says of every reply: computed once, and kept on disk for the rest of the run and the next.

A cache is a folder of its own for each combination of reference, model, renderer and data, its name a hash of them, so
anything that changes makes another one. It holds one small file for each stretch of replies, written in one atomic
move: a run that is killed goes on with the stretch it was at.

Axes: _R reply, _T target token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mint.atomic_files import storage_errors, write_atomically
from recipe.data_digest import Digest, digest_of_json
from recipe.preference.readouts import RenderedReply
from recipe.preference.scorer import target_logprobs

if TYPE_CHECKING:
    import mint

logger = logging.getLogger(__name__)

ABOUT_FILE = "about.json"
# Replies in one file: what a killed run has to compute again at most.
STRETCH = 512
_FORMAT = 1


@dataclass(frozen=True)
class ReferenceIdentity:
    """Whose logprobs they are. reference: path of the weights, or "base" for the bare model."""

    base_model: str
    reference: str
    renderer_name: str


class ReferenceCache:
    """The reference's logprobs of one list of replies.

    folder: where caches are kept; the one for these replies is `path` in it.
    """

    def __init__(self, folder: Path, identity: ReferenceIdentity, replies_R: Sequence[RenderedReply]) -> None:
        self._replies_R = list(replies_R)
        self._identity = identity
        self.key = cache_key(identity, self._replies_R)
        self.path = folder.expanduser() / self.key[:24]

    async def logprobs(self, open_client: Callable[[], Awaitable[mint.SamplingClient]]) -> list[float]:
        """Σ w·logprob of every reply under the reference, in order.

        What is on disk is read; the rest is computed and written. open_client: the reference, asked for only where
        something has to be computed. A file that is damaged is computed anew, with a warning.
        """
        stretches = [slice(first, first + STRETCH) for first in range(0, len(self._replies_R), STRETCH)]
        found = [self._read(stretch) for stretch in stretches]
        if any(part is None for part in found):
            client = await open_client()
            self._write_about()
            for i, stretch in enumerate(stretches):
                if found[i] is None:
                    found[i] = await self._compute(client, stretch)
        return [logprob for part in found if part is not None for logprob in part]

    async def _compute(self, client: mint.SamplingClient, stretch: slice) -> list[float]:
        replies = self._replies_R[stretch]
        logprobs = await asyncio.gather(*(target_logprobs(client, reply) for reply in replies))
        sums = [
            float(reply.weights_T.double() @ logprobs_T) for reply, logprobs_T in zip(replies, logprobs, strict=True)
        ]
        content = {"key": self.key, "first": stretch.start, "logprobs": sums}
        document = {**content, "sha256": digest_of_json([content])}
        await asyncio.to_thread(write_atomically, self._file(stretch), json.dumps(document).encode())
        return sums

    def _read(self, stretch: slice) -> list[float] | None:
        """The logprobs of a stretch; None where there is no file, or a damaged one."""
        file = self._file(stretch)
        if not file.exists():
            return None
        try:
            document = json.loads(file.read_bytes())
            sums = self._checked(document, stretch)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("%s is damaged (%s); the reference's logprobs in it are computed anew", file, error)
            return None
        return sums

    def _checked(self, document: dict[str, Any], stretch: slice) -> list[float]:
        digest = document.pop("sha256")
        if digest != digest_of_json([document]):
            raise ValueError("its checksum is another")
        sums = document["logprobs"]
        if (document["key"], document["first"]) != (self.key, stretch.start):
            raise ValueError("it belongs to other replies")
        if len(sums) != len(self._replies_R[stretch]) or not all(math.isfinite(value) for value in sums):
            raise ValueError("it does not hold one number for each reply")
        return [float(value) for value in sums]

    def _file(self, stretch: slice) -> Path:
        return self.path / f"{stretch.start:09d}.json"

    def _write_about(self) -> None:
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        about = {"format": _FORMAT, "key": self.key, **asdict(self._identity), "num_replies": len(self._replies_R)}
        write_atomically(self.path / ABOUT_FILE, (json.dumps(about, indent=2) + "\n").encode())


def cache_key(identity: ReferenceIdentity, replies_R: Sequence[RenderedReply]) -> str:
    """A hash of all that the numbers follow from: reference, model, renderer, and each reply's tokens and weights.

    Of a model in a local folder, names, sizes and times of its files count too.
    """
    folder = Path(identity.base_model).expanduser()
    files = (
        [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir())]
        if folder.is_dir()
        else []
    )
    digest = Digest()
    digest.add_json([_FORMAT, asdict(identity), files])
    for reply in replies_R:
        digest.add(np.asarray(reply.tokens, dtype=np.int64).tobytes())
        digest.add(np.asarray(reply.weights, dtype=np.float32).tobytes())
    return digest.hexdigest()
