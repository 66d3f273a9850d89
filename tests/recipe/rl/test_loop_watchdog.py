"""A call that blocks the event loop is named from outside it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from recipe.rl.env_calls import call_env
from recipe.rl.loop_watchdog import LoopWatchdog


class SleepyEnv:
    async def step(self) -> float:
        time.sleep(0.5)
        return 1.0


async def test_the_call_that_blocks_the_loop_is_named_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), LoopWatchdog(patience_s=0.1):
        await asyncio.sleep(0.01)
        result = await call_env(SleepyEnv().step, float, "step() of SleepyEnv (group 3, member 1), turn 0")
    assert result == 1.0
    messages = [record.getMessage() for record in caplog.records]
    # At 0.1 s and, doubled, at 0.2 and 0.4 s.
    assert 1 <= len(messages) <= 3
    assert messages[0].startswith(
        "step() of SleepyEnv (group 3, member 1), turn 0 has blocked the event loop for 0.1 s"
    )
    line = SleepyEnv.step.__code__.co_firstlineno + 1
    assert f"now at {__file__}:{line} in step" in messages[0]


async def test_a_loop_that_goes_round_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def patient() -> float:
        await asyncio.sleep(0.4)
        return 1.0

    with caplog.at_level(logging.WARNING), LoopWatchdog(patience_s=0.2):
        await call_env(patient, float, "step() of PatientEnv")
    assert caplog.records == []


async def test_the_thread_ends_with_the_watch() -> None:
    with LoopWatchdog(patience_s=0.05):
        watching = [thread for thread in threading.enumerate() if thread.name == "loop-watchdog"]
        assert watching
    for thread in watching:
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()
