"""Fixtures that every part of the test suite uses: a small random model, a service on temporary storage, real data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.random_model import make_random_model

# Workers of pytest-xdist divide the cores. Not in a hook: torch reads this once, and conftest files below import torch.
NUM_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if NUM_WORKERS > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // NUM_WORKERS)))

# How long an example takes is the machine's affair: one flush of a busy disk is past hypothesis's own deadline.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real data beside the checkout; skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the real data in ../shared/data, which is not part of the project")
    return SHARED_DATA


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 folder with random weights of non-trivial size and the built-in tokenizer: hidden 64, 2 layers, tied."""
    return make_random_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def mint_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A storage folder of the test's own, where MINT_HOME points."""
    home = tmp_path / "mint_home"
    monkeypatch.setenv("MINT_HOME", str(home))
    return home


@pytest.fixture
def service(mint_home: Path, monkeypatch: pytest.MonkeyPatch):
    """A ServiceClient on the embedded engine with storage of its own."""
    import mint

    monkeypatch.delenv("MINT_BASE_URL", raising=False)
    return mint.ServiceClient(home=str(mint_home))


@pytest.fixture(scope="session")
def tokenizer():
    """The built-in model's tokenizer."""
    from transformers import AutoTokenizer

    from mint import builtin

    return AutoTokenizer.from_pretrained(builtin.model_dir())
