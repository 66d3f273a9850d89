"""What hangs together: items that have keys in common, directly or through others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def connected(items: Sequence[T], keys_of: Callable[[T], Iterable[int]]) -> list[list[T]]:
    """Items in runs that have no key in common; runs, and the items of each, in the order of `items`.

    Every item has a key at least.
    """
    place = {id(item): i for i, item in enumerate(items)}
    run_of_key: dict[int, tuple[set[int], list[T]]] = {}
    for item in items:
        own = set(keys_of(item))
        found = {id(run): run for key in own if (run := run_of_key.get(key)) is not None}.values()
        merged = (own.union(*(keys for keys, _ in found)), [one for _, run in found for one in run] + [item])
        run_of_key.update(dict.fromkeys(merged[0], merged))
    runs = [
        sorted(run, key=lambda item: place[id(item)]) for _, run in {id(r): r for r in run_of_key.values()}.values()
    ]
    return sorted(runs, key=lambda run: place[id(run[0])])
