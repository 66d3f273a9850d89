"""The engines of this process: one per set of options, so that clients with equal options share base models."""

from __future__ import annotations

import os
import threading

from mint.engine.engine import Engine
from mint.service_client import EngineOptions

_lock = threading.Lock()
_engines: dict[tuple[int, EngineOptions, str | None], Engine] = {}


def get_engine(options: EngineOptions) -> Engine:
    """The engine for these options, started if need be."""
    # The process id: a forked child inherits the table but not the worker threads. MINT_HOME: it may change between
    # clients, and an engine keeps writing where it started.
    key = (os.getpid(), options, options.home or os.environ.get("MINT_HOME"))
    with _lock:
        if key not in _engines:
            _engines[key] = Engine(options)
        return _engines[key]
