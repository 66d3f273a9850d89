"""Names the environment call that blocks the event loop.

A deadline can cut off a call that awaits. Code that computes or sleeps without awaiting holds the whole loop: no other
environment runs, no deadline fires, and from within the loop nobody can see it. A thread beside the loop can.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from types import FrameType

from recipe.rl.env_calls import call_env, call_env_now

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
_CALLS = {call_env.__code__: "where", call_env_now.__code__: "where"}


class LoopWatchdog:
    """While open, warns when the running loop has not gone round for `patience_s`, and again at each doubling."""

    def __init__(self, patience_s: float = PATIENCE_SECONDS) -> None:
        self._patience_s = patience_s
        self._is_over = threading.Event()

    def __enter__(self) -> LoopWatchdog:
        arguments = (asyncio.get_running_loop(), threading.get_ident())
        threading.Thread(target=self._watch, args=arguments, name="loop-watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # The thread ends by itself: to wait for it here would keep the loop from answering it.
        self._is_over.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        while not self._is_over.is_set():
            answered = threading.Event()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # the loop is closed
                return
            waited, patience = 0.0, self._patience_s
            while not answered.wait(patience) and not self._is_over.is_set():
                waited += patience
                patience = waited
                frame = sys._current_frames().get(loop_thread)
                if frame is not None:
                    logger.warning("%s", blocked_message(frame, waited))
            self._is_over.wait(self._patience_s / 4)


def blocked_message(frame: FrameType, seconds: float) -> str:
    """What a thread that stands at `frame` has been doing, for people."""
    line = traceback.extract_stack(frame)[-1]
    culprit = "code that does not await"
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_code in _CALLS:
            culprit = str(outer.f_locals["where"])
            break
        outer = outer.f_back
    return (
        f"{culprit} has blocked the event loop for {seconds:g} s, now at {line.filename}:{line.lineno} in {line.name}:"
        " nothing else runs, and no deadline can end it. Move such work off the loop (asyncio.to_thread, a process)."
    )
