"""The pipeline in processes of its own, killed or interrupted wherever it is and started again; what it leaves behind.

    python -m tests.recipes.killing HOME RUN_FOLDER MOMENT NUM_LINES NUM_CALLS SIGNAL SCRIPT ARGUMENTS...

runs a script that signals itself at a moment that cannot be hit from outside: see `_die_at`.
"""

from __future__ import annotations

import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = REPOSITORY / "recipes" / "rlhf_pipeline.py"
STAGES = ("sft", "preference", "rl")
WRITTEN_ONCE = ("stage_manifest.json", "reply_endings.json", "report_card.json")

WRITING = "writing a checkpoint"
SEALED = "checkpoint sealed, not recorded"
ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Kill:
    """When to kill: once metrics.jsonl of all stages have `num_lines` lines together, and then

    moment None: `seconds` after that and after the process has begun with the stages (with num_lines 0: after its
    start), from outside, whatever it is doing.
    Otherwise: the process itself, before the `num_calls`-th of those calls that reach the disk (fsync, rename) at which
    its folders show that moment; ELSEWHERE counts every call.
    """

    num_lines: int
    moment: str | None = None
    num_calls: int = 1
    seconds: float = 0.0
    number: signal.Signals = signal.SIGKILL


def random_kills(seed: int, number: int, num_lines: int) -> list[Kill]:
    """Kills spread over a run that writes `num_lines` lines, half of them at chosen moments of the disk."""
    rng = random.Random(seed)
    kills: list[Kill] = []
    for i, at in enumerate(sorted(rng.randint(0, num_lines) for _ in range(number))):
        moment = rng.choice((WRITING, SEALED, ELSEWHERE)) if i % 2 else None
        num_calls = rng.randint(1, 40 if moment == ELSEWHERE else 4)
        kills.append(Kill(at, moment, num_calls, seconds=rng.uniform(0.0, 1.5)))
    return kills


@dataclass(frozen=True)
class Pipeline:
    """One run of the pipeline: its folder, its storage, its settings."""

    folder: Path
    home: Path
    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, kill: Kill | None = None) -> subprocess.Popen[str]:
        """The command in a process group of its own; what it prints goes to `printed.txt` beside its folder."""
        environment = {**os.environ, "MINT_HOME": str(self.home), "OMP_NUM_THREADS": "1", **self.environment}
        environment.pop("MINT_BASE_URL", None)
        command = [str(RECIPE), f"log_path={self.folder}", *self.arguments]
        if kill is not None and kill.moment is not None:
            moment = [kill.moment, str(kill.num_lines), str(kill.num_calls), kill.number.name]
            command = ["-m", "tests.recipes.killing", str(self.home), str(self.folder), *moment, *command]
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.printed.open("a") as printed:
            return subprocess.Popen(
                [sys.executable, *command], cwd=REPOSITORY, env=environment, text=True, start_new_session=True,
                stdout=printed, stderr=subprocess.STDOUT, preexec_fn=_default_signals,
            )  # fmt: skip

    @property
    def printed(self) -> Path:
        """What all its processes have printed."""
        return self.folder.with_name(f"{self.folder.name}.printed.txt")

    def finish(self, process: subprocess.Popen[str] | None = None) -> None:
        """Let it run to its end, which must be a good one."""
        status = (process or self.start()).wait(timeout=600)
        assert status == 0, f"status {status}:\n{self.printed.read_text()[-5000:]}"

    def run_killed(self, kill: Kill) -> str | None:
        """Start it and kill it; where the kill landed, or None when it had come to its end before."""
        unfinished, sealed, finished = self._unfinished(), self._sealed(), self.finished_files()
        num_begun = self._num_begun() + (kill.num_lines > 0)
        process = self.start(kill)
        if kill.moment is None:
            while process.poll() is None and (self.num_lines() < kill.num_lines or self._num_begun() < num_begun):
                time.sleep(0.002)
            time.sleep(kill.seconds)
            if process.poll() is None:
                os.killpg(process.pid, kill.number)
        status = process.wait(timeout=600)
        assert status in (0, -kill.number), f"status {status}:\n{self.printed.read_text()[-5000:]}"
        assert finished.items() <= self.finished_files().items(), "a stage that had finished was written to again"
        if status == 0:
            return None
        moment = moment_of(self._unfinished() - unfinished, self._sealed() - sealed - self._recorded())
        return f"{self.stage()}: {moment}"

    def stage(self) -> str:
        """The stage that is not finished, or "comparison" when all are."""
        return next((stage for stage in STAGES if not self._is_finished(stage)), "comparison")

    def finished_files(self) -> dict[Path, tuple[int, bytes]]:
        """The files of the stages that have finished: when each was written, and its content."""
        files = (file for stage in STAGES if self._is_finished(stage) for file in (self.folder / stage).rglob("*"))
        return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files if file.is_file()}

    def num_lines(self) -> int:
        """Lines in metrics.jsonl of all stages."""
        files = [self.folder / stage / "metrics.jsonl" for stage in STAGES]
        return sum(file.read_bytes().count(b"\n") for file in files if file.exists())

    def moment(self) -> Callable[[], str]:
        """What its folders show now, counting what appears after this call."""
        unfinished, sealed = self._unfinished(), self._sealed()
        return lambda: moment_of(self._unfinished() - unfinished, self._sealed() - sealed - self._recorded())

    def outcome(self) -> dict[str, bytes]:
        """Every file that a run leaves behind, by name. Left out: what is measured in seconds, the names that storage
        draws for training runs, and the checkpoint that a process started from (a manifest's parent)."""
        files = {"summary.json": _json(_without(json.loads((self.folder / "summary.json").read_text()), "seconds"))}
        files["gates.json"] = (self.folder / "gates.json").read_bytes()
        members = [f"preference/members/{folder.name}" for folder in self.folder.glob("preference/members/*")]
        for stage in (*STAGES, *members):
            folder = self.folder / stage
            records = _lines(folder / "checkpoints.jsonl")
            timeless = [
                {key: value for key, value in line.items() if not key.startswith("time/")}
                for line in _lines(folder / "metrics.jsonl")
            ]
            files |= {f"{stage}/metrics.jsonl": _json(timeless), f"{stage}/checkpoints.jsonl": _json(records)}
            files |= {f"{stage}/{file.name}": file.read_bytes() for file in sorted(folder.glob("rollouts/*"))}
            measured = sorted([*folder.glob("yardstick*.json*"), *folder.glob("disagreements.jsonl")])
            files |= {f"{stage}/{file.name}": _json(file.read_text()) for file in measured}
            once = (folder / name for name in WRITTEN_ONCE)
            files |= {f"{stage}/{file.name}": _json(json.loads(file.read_text())) for file in once if file.exists()}
            for path in (record[key] for record in records for key in ("state_path", "sampler_path")):
                checkpoint = self.home / "runs" / path.removeprefix("mint://")
                for file in sorted(checkpoint.iterdir()):
                    content = file.read_bytes()
                    if file.name == "manifest.json":
                        content = _json(_without(json.loads(content), "parent", "manifest_sha256"))
                    files[f"{stage}/{checkpoint.parent.name}/{checkpoint.name}/{file.name}"] = content
        return files

    def _num_begun(self) -> int:
        """How many of its processes have come to the stages."""
        return self.printed.read_text().count("Stage 1 of 3") if self.printed.exists() else 0

    def _unfinished(self) -> set[Path]:
        return set(self.home.glob("runs/*/*/.*~*"))

    def _sealed(self) -> set[str]:
        folders = (manifest.parent for manifest in self.home.glob("runs/*/*/*/manifest.json"))
        return {f"mint://{folder.relative_to(self.home / 'runs')}" for folder in folders if "~" not in folder.name}

    def _recorded(self) -> set[str]:
        lines = [line for stage in STAGES for line in _lines(self.folder / stage / "checkpoints.jsonl")]
        return {line[key] for line in lines for key in ("state_path", "sampler_path")}

    def _is_finished(self, stage: str) -> bool:
        manifest = self.folder / stage / "stage_manifest.json"
        return manifest.exists() and json.loads(manifest.read_text())["state_path"] is not None


def moment_of(unfinished: set[Path], unrecorded: set[str]) -> str:
    """What new folders say about the process that made them."""
    return WRITING if unfinished else SEALED if unrecorded else ELSEWHERE


def differences(found: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    """Names of the files that only one of two outcomes has, or that differ."""
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def _lines(file: Path) -> list[dict]:
    if not file.exists():
        return []
    *lines, rest = file.read_text().split("\n")  # a rest without line end is a record that was being written
    del rest
    return [json.loads(line) for line in lines]


def _without(values: dict, *names: str) -> dict:
    return {name: value for name, value in values.items() if name not in names}


def _json(value: object) -> bytes:
    return re.sub(r"mint://[0-9a-f]{16}/", "mint://RUN/", json.dumps(value)).encode()


def _default_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # pytest may have been started with it ignored


def _die_at(pipeline: Pipeline, kill: Kill) -> None:
    """Make the calls that reach the disk deadly, as `kill` says."""
    moment, num_calls = pipeline.moment(), 0

    def deadly(call: Callable) -> Callable:
        def counted(*args, **kwargs):
            nonlocal num_calls
            if pipeline.num_lines() >= kill.num_lines and kill.moment in (ELSEWHERE, moment()):
                num_calls += 1
                if num_calls == kill.num_calls:
                    os.kill(os.getpid(), kill.number)
            return call(*args, **kwargs)

        return counted

    os.fsync, os.rename, os.replace = deadly(os.fsync), deadly(os.rename), deadly(os.replace)


def _main() -> None:
    home, folder, moment, num_lines, num_calls, number, *command = sys.argv[1:]
    kill = Kill(int(num_lines), moment, int(num_calls), number=signal.Signals[number])
    _die_at(Pipeline(Path(folder), Path(home), ()), kill)
    sys.argv = command
    sys.path[0] = str(REPOSITORY / "recipes")
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    _main()
