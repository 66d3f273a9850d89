"""The escape suite again, as an ordinary user: root runs it once more as somebody who is not."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SUITE = [f"tests/envs/sandbox/test_{name}.py" for name in ("excess", "reaching_outside", "forgery", "outliving")]
# No account: neither root nor the user that programs run as.
UID = 65533
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


def _become_ordinary() -> None:
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)


def _run_as_ordinary(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        command, cwd=ROOT, env=environment, preexec_fn=_become_ordinary, capture_output=True, text=True, timeout=280
    )


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of this version that an ordinary user can run with our packages; skips where there is none."""
    if not hasattr(os, "setresuid") or os.getuid() != 0:
        pytest.skip("not root: the suite itself already runs as an ordinary user")
    folder = tmp_path_factory.mktemp("elsewhere")
    for candidate in (sys.executable, f"/usr/bin/{_VERSION}", f"/usr/local/bin/{_VERSION}"):
        try:
            done = _run_as_ordinary(candidate, "-c", "import envs.sandbox, pytest", folder=folder)
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    pytest.skip(f"an ordinary user can run no {_VERSION} with these packages here")


def _run_suite(interpreter: str, folder: Path, *arguments: str) -> str:
    folder.chmod(0o755)
    home = folder / "home"
    home.mkdir()
    os.chown(home, UID, UID)
    options = ["-p", "no:cacheprovider", f"--basetemp={home}/pytest", "-q", "-rs"]
    done = _run_as_ordinary(interpreter, "-m", "pytest", *SUITE, *options, *arguments, folder=home)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def reachable_folder() -> Iterator[Path]:
    """A folder whose parents an ordinary user may pass through."""
    with tempfile.TemporaryDirectory(prefix="ordinary-user-") as folder:
        yield Path(folder)


def test_escapes_fail_for_an_ordinary_user_too(interpreter: str, reachable_folder: Path) -> None:
    output = _run_suite(interpreter, reachable_folder, "-k", "namespaces")
    assert " passed" in output


@pytest.mark.slow
def test_escapes_fail_for_an_ordinary_user_at_every_level(interpreter: str, reachable_folder: Path) -> None:
    output = _run_suite(interpreter, reachable_folder, "-m", "slow or not slow")
    assert " passed" in output
