"""APIFuture: the result of a request, awaited or waited for."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class APIFuture(Generic[T]):
    """The result of a submitted request.

    `future.result(timeout)` blocks; `await future` does not. Both may be used any number of times, from any thread.
    The request runs whether or not anybody waits.
    """

    def __init__(
        self,
        future: concurrent.futures.Future[T],
        waiting: Callable[[concurrent.futures.Future[T]], AbstractContextManager[Any]] | None = None,
    ) -> None:
        self._future = future
        self._waiting = waiting

    @classmethod
    def completed(cls, value: T) -> APIFuture[T]:
        """A future that already holds `value`."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_result(value)
        return cls(future)

    @classmethod
    def failed(cls, error: BaseException) -> APIFuture[T]:
        """A future that already failed with `error`."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_exception(error)
        return cls(future)

    def result(self, timeout: float | None = None) -> T:
        """Block until the request is done; its error is raised here. TimeoutError after `timeout` seconds."""
        with self._waiting(self._future) if self._waiting else nullcontext():
            return self._future.result(timeout)

    async def result_async(self, timeout: float | None = None) -> T:
        """Like `result`, without blocking the event loop."""
        async with asyncio.timeout(timeout):
            # Shielded: a caller that stops waiting must not cancel the request under other waiters.
            return await asyncio.shield(asyncio.wrap_future(self._future))

    def __await__(self) -> Generator[Any, None, T]:
        return self.result_async().__await__()

    async def coroutine(self) -> T:
        """This future as a coroutine, for `asyncio.create_task` and the like."""
        return await self

    def future(self) -> concurrent.futures.Future[T]:
        """The underlying `concurrent.futures.Future`."""
        return self._future

    def done(self) -> bool:
        """True once the request has succeeded or failed."""
        return self._future.done()

    def map(self, transform: Callable[[T], U]) -> APIFuture[U]:
        """A future of `transform(result)`; errors pass through."""
        mapped: concurrent.futures.Future[U] = concurrent.futures.Future()

        def relay(source: concurrent.futures.Future[T]) -> None:
            error = source.exception()
            if error is not None:
                mapped.set_exception(error)
                return
            try:
                mapped.set_result(transform(source.result()))
            except Exception as transform_error:
                mapped.set_exception(transform_error)

        self._future.add_done_callback(relay)
        waiting = self._waiting
        return APIFuture(mapped, (lambda _: waiting(self._future)) if waiting else None)


class Ready:
    """Mixin for objects that the SDK returns through a future and we return at once.

    `service.create_lora_training_client(...)` can be used directly, awaited, or asked for its `.result()`.
    """

    def result(self, timeout: float | None = None) -> Any:
        """The object itself: it is ready."""
        del timeout
        return self

    async def result_async(self, timeout: float | None = None) -> Any:
        """The object itself: it is ready."""
        del timeout
        return self

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result_async().__await__()
