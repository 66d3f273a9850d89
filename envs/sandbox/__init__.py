"""Runs untrusted Python programs: a fresh process each, walled in, with the verdict left to whoever asked.

    sandbox = Sandbox()
    result = await sandbox.run("def double(x):\\n    return 2 * x", ["double(21)"])
    result.calls[0].value == 42

docs/sandbox.md: what it keeps out, at which level, and how to check it on a machine.
"""

from __future__ import annotations

from envs.sandbox.isolation import Isolation, IsolationLevel, Limits, SandboxConfig
from envs.sandbox.pool import Sandbox, SandboxUnavailable, shared_sandbox
from envs.sandbox.program_result import CallResult, ProgramResult

__all__ = [
    "CallResult",
    "Isolation",
    "IsolationLevel",
    "Limits",
    "ProgramResult",
    "Sandbox",
    "SandboxConfig",
    "SandboxUnavailable",
    "shared_sandbox",
]
