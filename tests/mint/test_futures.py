"""APIFuture: waiting, awaiting, mapping, time-outs."""

from __future__ import annotations

import asyncio
import concurrent.futures

import pytest

from mint.futures import APIFuture, Ready


def test_result_and_await_agree_and_may_be_repeated():
    future = APIFuture.completed(3)

    async def twice() -> list[int]:
        return [await future, await future, await future.coroutine()]

    assert asyncio.run(twice()) == [3, 3, 3]
    assert (future.result(), future.result(), future.done()) == (3, 3, True)


def test_errors_come_out_of_both():
    future = APIFuture.failed(KeyError("x"))
    with pytest.raises(KeyError):
        future.result()
    with pytest.raises(KeyError):
        asyncio.run(future.coroutine())


def test_timeouts():
    future: APIFuture[int] = APIFuture(concurrent.futures.Future())
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        asyncio.run(future.result_async(timeout=0.01))


def test_giving_up_does_not_cancel_the_request_for_others():
    inner: concurrent.futures.Future = concurrent.futures.Future()
    future = APIFuture(inner)

    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            await future.result_async(timeout=0.01)

    asyncio.run(impatient())
    inner.set_result(5)
    assert future.result() == 5


def test_map_transforms_results_and_passes_errors():
    assert APIFuture.completed(3).map(lambda x: x + 1).result() == 4
    with pytest.raises(KeyError):
        APIFuture.failed(KeyError("x")).map(lambda x: x).result()
    with pytest.raises(ZeroDivisionError):
        APIFuture.completed(0).map(lambda x: 1 / x).result()


def test_a_ready_object_is_its_own_future():
    class Thing(Ready):
        pass

    thing = Thing()

    async def awaited() -> Thing:
        return await thing

    assert thing.result() is thing
    assert asyncio.run(awaited()) is thing
