"""Ctrl-C and SIGTERM: one line, an orderly end within seconds, the exit status that shells know (130, 143).

Whatever a run has recorded survives even SIGKILL, so nothing is saved here. The first signal cancels the work, which
lets environments and files be closed; what has not ended after that is cut off. The process dies by the signal that it
got, so that a shell script or loop around it ends too.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from types import FrameType

PATIENCE_SECONDS = 4.0
"""From the first signal to the end of the process, whatever it is doing."""
_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def end_at_once() -> None:
    """Let Ctrl-C end this process without a traceback: for a script whose imports take seconds, before them."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_until_interrupted(work: Awaitable[object]) -> None:
    """`asyncio.run`, ended by SIGINT or SIGTERM: one line on stderr, SystemExit, and death by that signal at exit.

    A second signal ends the process at once. A signal that is ignored (nohup, background jobs of scripts) stays so. In
    a thread other than the main one, which cannot receive signals, this is `asyncio.run`.
    """
    if threading.current_thread() is not threading.main_thread():
        asyncio.run(_awaited(work))
        return
    interruption = _Interruption()
    interruption.install()
    try:
        asyncio.run(interruption.watched(work))
    finally:
        interruption.leave_if_asked()
        interruption.remove()


class _Interruption:
    """The signal that came, if one did, and what it sets in motion."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._previous = {number: signal.getsignal(number) for number in _WORDS}
        self._is_decided = threading.Event()  # a signal has come, or none will
        self._cancel: Callable[[], object] = self.leave_if_asked

    def install(self) -> None:
        """Handle the signals from now on."""
        # Made now: a signal handler must not start threads, as it may have interrupted the start of another.
        threading.Thread(target=self._cut_off, name="interruption", daemon=True).start()
        # The first registered is the last to run: after the engine's worker has been ended.
        atexit.register(self._end)
        for number in self._handled():
            signal.signal(number, self._handle)

    def remove(self) -> None:
        """Leave everything as it was before `install`."""
        for number in self._handled():
            signal.signal(number, self._previous[number])
        atexit.unregister(self._end)
        self._is_decided.set()

    async def watched(self, work: Awaitable[object]) -> None:
        """`work` as what a signal cancels."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            await work
        finally:
            self._cancel = lambda: None  # the work has ended, and so will the process

    def leave_if_asked(self) -> None:
        """SystemExit where a signal has come: what the cancelled work then says about itself is of no interest."""
        if self._number is not None:
            raise SystemExit(128 + self._number) from None

    def _handled(self) -> list[signal.Signals]:
        return [number for number, previous in self._previous.items() if previous is not signal.SIG_IGN]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        for each in self._handled():
            signal.signal(each, signal.SIG_DFL)  # the next one ends the process, whatever it is doing
        self._number = number
        word = _WORDS[signal.Signals(number)]
        # Not print: the handler may have interrupted one.
        os.write(2, f"\n{word}; start the same command again to go on from the last checkpoint\n".encode())
        self._is_decided.set()
        self._cancel()

    def _cut_off(self) -> None:
        self._is_decided.wait()
        if self._number is not None:
            time.sleep(PATIENCE_SECONDS)
            _die_by(self._number)

    def _end(self) -> None:
        if self._number is not None:
            sys.stdout.flush()
            _die_by(self._number)


def _die_by(number: int) -> None:
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container is not killed by its own signal


async def _awaited(work: Awaitable[object]) -> None:
    await work
