"""Waiting for many coroutines as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def started(coroutines: Iterable[Coroutine[Any, Any, T]]) -> AsyncIterator[list[asyncio.Task[T]]]:
    """All of them as running tasks, in order. On leaving, what still runs is cancelled and waited for."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order, all run concurrently; the first error cancels the others and is raised once they ended.

    `asyncio.gather` alone would leave the others running behind the caller's back.
    """
    async with started(coroutines) as tasks:
        return await asyncio.gather(*tasks)
