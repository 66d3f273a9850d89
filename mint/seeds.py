"""Seeds derived by name, so that any step of a run can be repeated without replaying what came before it."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part and its position, the same on every machine and Python version.

    `derive_seed(config.seed, "shuffle", epoch)` gives each use its own independent stream.
    """
    if not parts:
        raise ValueError("derive_seed() needs at least one part")
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
