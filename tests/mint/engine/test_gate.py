"""Batches form once every caller rests, and never later than its patience."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time

import pytest

from mint.engine import gate as gate_module
from mint.engine.gate import CallerGate
from mint.futures import APIFuture


def returns_within(gate: CallerGate, seconds: float) -> bool:
    """Whether wait_until_all_rest comes back in time, asked from a thread of its own as the worker asks."""
    done = threading.Event()
    threading.Thread(target=lambda: (gate.wait_until_all_rest(), done.set()), daemon=True).start()
    return done.wait(seconds)


def test_nobody_submitted_nobody_is_waited_for():
    assert returns_within(CallerGate(), 5)


def test_a_thread_that_waits_for_its_result_rests_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate_module, "_THREAD_PATIENCE_SECONDS", 60.0)
    gate, future = CallerGate(), concurrent.futures.Future()

    def caller() -> None:
        gate.submitted(future)
        APIFuture(future, gate.waiting).result()

    thread = threading.Thread(target=caller)
    thread.start()
    assert returns_within(gate, 5)
    future.set_result(None)
    gate.completed(future)
    thread.join(5)
    assert not thread.is_alive()


def test_a_thread_that_goes_on_computing_is_given_its_patience(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate_module, "_THREAD_PATIENCE_SECONDS", 0.3)
    gate = CallerGate()
    gate.submitted(concurrent.futures.Future())
    started = time.monotonic()
    gate.wait_until_all_rest()
    assert time.monotonic() - started >= 0.25


def test_a_loop_is_awaited_through_chains_of_tasks():
    """A hundred tasks that each hand over to another before they submit: the worker sees all of them at once."""
    gate = CallerGate()
    seen: list[int] = []
    submitted: list[concurrent.futures.Future] = []

    def worker(first: threading.Event) -> None:
        first.wait()
        gate.wait_until_all_rest()
        seen.append(len(submitted))
        for future in submitted:
            future.set_result(None)
        for future in submitted:
            gate.completed(future)

    async def leaf(depth: int) -> None:
        if depth:
            await asyncio.create_task(leaf(depth - 1))
        future: concurrent.futures.Future = concurrent.futures.Future()
        gate.submitted(future)
        submitted.append(future)
        first.set()
        await APIFuture(future, gate.waiting)

    async def everyone() -> None:
        await asyncio.gather(*(leaf(i % 6 == 0 and 3) for i in range(100)))

    first = threading.Event()
    thread = threading.Thread(target=worker, args=(first,))
    thread.start()
    # Leaves that handed over submit again after their child was answered; answer those as well.
    helper = threading.Thread(target=lambda: _answer_late(gate, submitted), daemon=True)
    helper.start()
    asyncio.run(everyone())
    thread.join(5)
    assert seen[0] >= 100


def _answer_late(gate: CallerGate, submitted: list[concurrent.futures.Future]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for future in [f for f in submitted[100:] if not f.done()]:
            future.set_result(None)
            gate.completed(future)
        time.sleep(0.005)


def test_a_loop_blocked_by_a_synchronous_wait_rests():
    """`.result()` inside a coroutine blocks the loop; the worker must not wait for the loop in turn."""
    gate, future = CallerGate(), concurrent.futures.Future()

    async def blocking() -> None:
        gate.submitted(future)
        APIFuture(future, gate.waiting).result(timeout=10)

    thread = threading.Thread(target=lambda: asyncio.run(blocking()))
    thread.start()
    while not gate._callers:
        time.sleep(0.001)
    assert returns_within(gate, 5)
    future.set_result(None)
    gate.completed(future)
    thread.join(5)
    assert not thread.is_alive()


def test_a_closed_loop_is_forgotten():
    gate = CallerGate()

    async def submit_and_leave() -> None:
        gate.submitted(concurrent.futures.Future())

    asyncio.run(submit_and_leave())
    assert returns_within(gate, 5)
