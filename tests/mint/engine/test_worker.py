"""The worker starts no sampling before it has waited for its callers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mint
from mint import types


def test_a_request_that_arrives_just_after_a_look_is_waited_for(
    service: mint.ServiceClient, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = service.create_lora_training_client(str(tiny_model_dir), rank=4, seed=0)
    sampling_client = client.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=1, seed=0)
    engine: Any = client._backend
    look, take = engine._let_callers_rest, engine._desk.take
    events: list[tuple[str, Any]] = []
    late: list[Any] = []
    arrived = threading.Event()

    def look_and_let_one_arrive() -> bool:
        has_rested = look()
        events.append(("looked", has_rested))
        if len(events) == 2:  # the look after the operation, which found nothing
            late.append(sampling_client.sample(types.ModelInput.from_ints([1, 2]), 1, params))
            arrived.set()
        return has_rested

    def take_and_note(requests: Sequence[Any]) -> None:
        events.append(("took", len(requests)))
        take(requests)

    monkeypatch.setattr(engine, "_let_callers_rest", look_and_let_one_arrive)
    monkeypatch.setattr(engine._desk, "take", take_and_note)
    client.save_state("an-operation").result()
    assert arrived.wait(timeout=30)
    late[0].result(timeout=30)
    assert events[:2] == [("looked", False), ("looked", False)]
    taken = events.index(("took", 1))
    assert events[taken - 1] == ("looked", True)


def test_a_worker_that_breaks_leaves_nobody_waiting(tmp_path, tiny_model_dir, monkeypatch) -> None:
    """A defect in the worker itself ends every open request, and later ones, with an error."""
    service = mint.ServiceClient(home=str(tmp_path))
    client = service.create_sampling_client(base_model=str(tiny_model_dir))

    def broken_turn(snapshots) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(client._backend._desk, "turn", broken_turn)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    prompt, params = types.ModelInput.from_ints([1, 2]), types.SamplingParams(max_tokens=2)
    with pytest.raises(mint.MintError, match="the engine has stopped: RuntimeError"):
        client.sample(prompt, 1, params).result(timeout=10)
    with pytest.raises(mint.MintError, match="the engine has stopped"):
        client.compute_logprobs(prompt)


def test_a_program_that_ends_in_the_middle_of_work_exits_cleanly(tmp_path, tiny_model_dir) -> None:
    """The worker is let finish what it is at; cut off inside torch, it would abort the process."""
    code = (
        "import mint, sys; from mint import types;"
        "client = mint.ServiceClient(home=sys.argv[1]).create_sampling_client(base_model=sys.argv[2]);"
        "params = types.SamplingParams(max_tokens=400, seed=0, stop=[]);"
        "one = client.sample(types.ModelInput.from_ints([1]), 1, types.SamplingParams(max_tokens=1, seed=0));"
        "many = client.sample(types.ModelInput.from_ints([1, 2]), 64, params); one.result()"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(tiny_model_dir)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_a_program_that_ends_in_a_long_batch_abandons_it(tmp_path, tiny_model_dir) -> None:
    code = (
        "import mint, sys, time; from mint import types;"
        "client = mint.ServiceClient(home=sys.argv[1]).create_lora_training_client(sys.argv[2], rank=4);"
        "inputs = dict(target_tokens=[*range(2, 202)], weights=[1.0] * 200);"
        "prompt = types.ModelInput.from_ints([*range(1, 201)]);"
        "client.forward_backward([types.Datum(model_input=prompt, loss_fn_inputs=inputs)] * 20000, 'cross_entropy');"
        "time.sleep(1); print('end', flush=True)"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(tiny_model_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "end\n"
    started = time.monotonic()
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0 and "Traceback" not in errors, errors
    assert time.monotonic() - started < 30  # the whole batch takes a minute
