"""When to form a batch: once everybody who could still add to it is waiting.

A batch's composition decides the last bits of its results. If the worker took whatever happened to be queued, timing
would decide those bits, and two runs with one seed would part. So the worker first lets every caller come to rest: a
thread rests while it waits for a result, an event loop once it has gone round several times without submitting. The
composition then follows from the program alone, and requests made "at once" always share a batch.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mint.engine.thread_teams import release_team

logger = logging.getLogger(__name__)

_QUIET_ROUNDS = 24
"""A task that wakes another needs a round or two of its loop for each hand-over; chains in practice are shorter."""
_THREAD_PATIENCE_SECONDS = 0.1
_LOOP_PATIENCE_SECONDS = 10.0


@dataclass
class _Caller:
    """A thread or an event loop that has submitted something."""

    loop: asyncio.AbstractEventLoop | None
    is_resting: bool = False
    is_unresponsive: bool = False
    busy_since: float = field(default_factory=time.monotonic)
    num_submissions: int = 0
    num_pending: int = 0
    watch_id: int = 0
    waits_for: concurrent.futures.Future | None = None

    def patience(self) -> float:
        return _LOOP_PATIENCE_SECONDS if self.loop is not None else _THREAD_PATIENCE_SECONDS


class CallerGate:
    """Keeps account of who is still running and who waits. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._callers: dict[int, _Caller] = {}
        self._caller_of: dict[concurrent.futures.Future, _Caller] = {}

    def submitted(self, future: concurrent.futures.Future) -> None:
        """The running thread or loop has submitted a request that will complete `future`."""
        release_team()
        loop = _running_loop()
        with self._changed:
            caller = self._caller(loop)
            caller.num_submissions += 1
            caller.num_pending += 1
            self._caller_of[future] = caller
            self._mark_busy(caller)

    def completed(self, future: concurrent.futures.Future) -> None:
        """`future` has just been completed: whoever waits for it will run, and may submit more.

        Called after completion, so that a loop's watch is queued behind the wake-up of the tasks that waited.
        """
        with self._changed:
            caller = self._caller_of.pop(future, None)
            if caller is None:
                return
            caller.num_pending -= 1
            if caller.loop is not None or caller.waits_for is future:
                caller.waits_for = None
                self._mark_busy(caller)

    @contextmanager
    def waiting(self, future: concurrent.futures.Future) -> Iterator[None]:
        """The running thread blocks until `future` is done; an event loop that blocks like this rests too."""
        release_team()
        with self._changed:
            caller = self._caller(_running_loop())
            caller.watch_id += 1
            if not future.done():
                caller.waits_for, caller.is_resting = future, True
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                caller.waits_for = None
                self._mark_busy(caller)

    def wait_until_all_rest(self) -> None:
        """Return once every caller rests, or has run for longer than its patience without submitting or waiting."""
        with self._changed:
            while True:
                self._forget_the_gone()
                now = time.monotonic()
                busy = [c for c in self._callers.values() if not c.is_resting and not c.is_unresponsive]
                deadlines = [c.busy_since + c.patience() - now for c in busy]
                if not busy:
                    return
                for caller, remaining in zip(busy, deadlines, strict=True):
                    if remaining <= 0:
                        self._give_up_on(caller)
                if min(deadlines) > 0:
                    self._changed.wait(min(deadlines))

    def _caller(self, loop: asyncio.AbstractEventLoop | None) -> _Caller:
        key = id(loop) if loop is not None else threading.get_ident()
        caller = self._callers.get(key)
        if caller is None or caller.loop is not loop:
            caller = self._callers[key] = _Caller(loop)
        return caller

    def _mark_busy(self, caller: _Caller) -> None:
        caller.is_resting = False
        caller.busy_since = time.monotonic()
        caller.watch_id += 1
        if caller.loop is not None:
            try:
                caller.loop.call_soon_threadsafe(self._watch, caller, caller.watch_id, _QUIET_ROUNDS)
            except RuntimeError:  # the loop is closed: nothing can come from it any more
                caller.is_resting = True
        self._changed.notify_all()

    def _watch(self, caller: _Caller, watch_id: int, rounds_left: int) -> None:
        """Runs in the caller's loop, once per round, until the loop has been quiet for long enough."""
        with self._changed:
            if caller.watch_id != watch_id:  # something happened since; a newer watch is under way
                return
            if rounds_left == 0:
                caller.is_resting, caller.is_unresponsive = True, False
                self._changed.notify_all()
                return
        assert caller.loop is not None
        caller.loop.call_soon(self._watch, caller, watch_id, rounds_left - 1)

    def _give_up_on(self, caller: _Caller) -> None:
        if caller.loop is None:
            caller.is_resting = True
            return
        caller.is_unresponsive = True
        logger.warning(
            "an event loop has been blocked for %.0f s; batches are formed without waiting for it, so results may "
            "differ in the last bits between runs. Move blocking work off the loop (asyncio.to_thread).",
            _LOOP_PATIENCE_SECONDS,
        )

    def _forget_the_gone(self) -> None:
        for key, caller in list(self._callers.items()):
            is_closed = caller.loop is not None and caller.loop.is_closed()
            is_done = caller.loop is None and caller.num_pending == 0 and caller.is_resting
            if is_closed or is_done:
                del self._callers[key]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
