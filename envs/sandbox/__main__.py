"""Says how well this machine can wall programs in: python -m envs.sandbox"""

from __future__ import annotations

import json

from envs.sandbox.isolation import IsolationLevel, SandboxConfig
from envs.sandbox.pool import ARRANGEMENTS, Sandbox, SandboxUnavailable


def main() -> None:
    """Try every level on a program, and print what became of it as JSON."""
    config = SandboxConfig(minimum_isolation="none", num_workers=1)
    levels: dict[str, str] = {}
    user: int | None = None
    for level, has_syscall_filter in ARRANGEMENTS:
        name = level.name.lower()
        if level == IsolationLevel.NAMESPACES and not has_syscall_filter:
            name += " without a filter"
        try:
            sandbox = Sandbox(config, exactly=(level, has_syscall_filter))
            answer = sandbox.run_blocking("", ["6 * 7"]).calls[0]
            sandbox.close()
        except SandboxUnavailable as error:
            levels[name] = str(error)
            continue
        assert answer.value == 42, f"the sandbox gave {answer} for 6 * 7"
        levels[name] = "available"
        user = sandbox.isolation.user if user is None else user
    strongest = next((name for name, state in levels.items() if state == "available"), None)
    print(json.dumps({"strongest": strongest, "user": user, "levels": levels}, indent=2))


if __name__ == "__main__":
    main()
