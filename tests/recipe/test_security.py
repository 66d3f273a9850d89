"""A run's folder made by somebody else: its config runs no code, and its files lead nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mint.errors import InvalidRequest, StorageError
from recipe import journal
from recipe.config_record import config_to_json, load_config
from recipe.run_log import RunLog
from recipe.supervised.data import ListSFTDatasetBuilder
from recipe.supervised.train import Config


def good_record(log_path: Path) -> dict[str, Any]:
    return config_to_json(Config(log_path=str(log_path), dataset_builder=ListSFTDatasetBuilder(conversations=[])))


def write(folder: Path, record: object) -> None:
    (folder / "config.json").write_text(record if isinstance(record, str) else json.dumps(record))


def test_the_config_of_a_run_comes_back(tmp_path: Path) -> None:
    write(tmp_path, good_record(tmp_path))
    assert load_config(tmp_path, Config).log_path == str(tmp_path)


# A field whose factory is called with recorded arguments, a leaf, an "enum" that is called with a value, a class.
HOSTILE_VALUES: list[dict[str, Any]] = [
    {"dataset_builder": {"$import": "os:system"}, "dataset_builder.command": "touch TRACE"},
    {"dataset_builder": {"$import": "posix:system"}, "dataset_builder.command": "touch TRACE"},
    {"dataset_builder": {"$import": "builtins:exec"}, "dataset_builder.source": "open('TRACE', 'w')"},
    {"dataset_builder": {"$import": "os:system", "value": "touch TRACE"}},
    {"dataset_builder": {"$import": "builtins:open", "value": "TRACE"}},
    {"dataset_builder": {"$import": "pathlib:Path.touch", "value": "TRACE"}},
    {"dataset_builder": {"$import": "subprocess:Popen"}, "dataset_builder.args": ["touch", "TRACE"]},
    {"dataset_builder": {"$import": "recipe.journal:os.mkdir"}, "dataset_builder.path": "TRACE"},
    {"dataset_builder": {"$import": "recipe.run_log:Path.mkdir", "value": "TRACE"}},
    {"dataset_builder": {"$import": "recipe.journal:append_line"}, "dataset_builder.path": "TRACE"},
    {"dataset_builder": {"$import": "mint.atomic_files:check_writable"}, "dataset_builder.folder": "TRACE"},
    {"dataset_builder": {"$import": "recipe.run_log:FolderLock"}, "dataset_builder.folder": "TRACE"},
    {"dataset_builder": {"$import": "mint.atomic_files.__builtins__:eval"}},
    {"dataset_builder": {"$import": "mint.errors:__loader__"}},
    {"dataset_builder": {"$import": "evil"}},
    {"dataset_builder": {"$import": "evil:anything"}},
    {"dataset_builder": {"$import": ".evil:x"}},
    {"dataset_builder": {"$import": ["os", "system"]}},
    {"dataset_builder.conversations": [{"$tuple": [{"$import": "os:system", "value": "touch TRACE"}]}]},
]


@pytest.mark.parametrize("values", HOSTILE_VALUES)
def test_a_hostile_value_is_refused_by_its_field_and_calls_and_imports_nothing(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    (tmp_path / "evil.py").write_text(f"open({str(trace)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    record = good_record(tmp_path)
    record["values"] = {**record["values"], **json.loads(json.dumps(values).replace("TRACE", str(trace)))}
    write(tmp_path, record)
    with pytest.raises(InvalidRequest, match=r"config\.json: dataset_builder"):
        load_config(tmp_path, Config)
    assert not trace.exists()


@pytest.mark.parametrize(
    "config_class", ["os:system", "evil:Config", "recipe.journal:append_line", "builtins:dict", "recipe.run_log:RunLog"]
)
def test_the_class_of_a_config_must_be_a_config_class(config_class: str, tmp_path: Path) -> None:
    write(tmp_path, {"config_class": {"$import": config_class}, "values": {"command": f"touch {tmp_path}/trace"}})
    with pytest.raises(InvalidRequest, match=r"config\.json: config_class"):
        load_config(tmp_path, Config)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config_class": 1, "values": {}}', "[" * 50_000, '"x"', "null"])
def test_a_config_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    write(tmp_path, text)
    with pytest.raises(InvalidRequest, match=r"config\.json: "):
        load_config(tmp_path, Config)


def test_a_damaged_config_does_not_stop_a_run_from_going_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = Config(log_path=str(tmp_path), dataset_builder=ListSFTDatasetBuilder(conversations=[]))
    write(tmp_path, '{"values": ')
    RunLog(tmp_path, config=config, resume_step=0).close()
    assert "config.json is damaged" in caplog.text
    assert load_config(tmp_path, Config) == config


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "metrics.jsonl.partial", "config.json.partial"])
def test_a_link_in_a_run_folder_does_not_direct_writing_to_another_file(name: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text('{"step": 0}\n')
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(precious)
    config = Config(log_path=str(run), dataset_builder=ListSFTDatasetBuilder(conversations=[]))
    try:
        with RunLog(run, config=config) as log:
            log.metrics({"loss": 1.0}, step=0)
    except StorageError as error:
        assert "it is a symbolic link, which is not followed" in str(error)
    assert precious.read_text() == '{"step": 0}\n'


def test_a_journal_that_is_a_link_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("{}\n")
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match=r"a\.jsonl cannot be written: .*symbolic link, which is not followed"):
        journal.append_line(tmp_path / "a.jsonl", {"x": 1})
    assert (tmp_path / "precious").read_text() == "{}\n"
