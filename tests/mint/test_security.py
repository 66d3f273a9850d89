"""What somebody else wrote cannot leave its folder or run code: names, links, checkpoints and model folders."""

from __future__ import annotations

import json
import pickle
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import mint
from mint.checkpoint_archive import write_archive
from mint.checkpoint_manifest import Manifest, entry_of_bytes, json_bytes
from mint.checkpoint_path import CheckpointPath, check_name
from mint.checkpoint_store import CheckpointStore
from mint.errors import CheckpointError, InvalidRequest, MintError, NotFound, StorageError

LORA: dict[str, Any] = {"rank": 8, "alpha": 32, "train_attn": True, "train_mlp": True, "train_unembed": True}
FIELDS: dict[str, Any] = {"base_model": "mint-tiny", "lora": LORA, "step": 3}
PATH = "mint://run-1/weights/a"

HOSTILE_NAMES = [
    "", ".", "..", "...", "../a", "a/../b", "/etc/passwd", "//host/share", "a/b", "a\\b", "..\\a", "C:\\a", "C:a", "~",
    "~root", "$HOME", "%2e%2e", "%2e%2e%2fa", "a%00b", "a\0b", "a\nb", "a b", " a", "a ", "\u202egnp.a", "a\u200fb",
    "a\u200bb", "\ufeffa", "a\u2028b", "．．", "．．／a", "a／b", "a＼b", "a\u2215b", "a\u2044b", "\u2024\u2024",
    "\u2025",
    "e\u0301", "\u0301", "a\ud800", ".unfinished~a~0", ".lock", "-rf", "--help", "a~b", "a" * 161, "é" * 81, "*", "a;b",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_name_is_refused_wherever_a_name_goes_and_touches_nothing(name: str, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "home")
    uses: list[Callable[[], object]] = [
        lambda: check_name(name),
        lambda: store.writing(f"mint://{name}/weights/a", FIELDS).__enter__(),
        lambda: store.writing(f"mint://run-1/weights/{name}", FIELDS).__enter__(),
        lambda: store.writing(f"mint://run-1/{name}/a", FIELDS).__enter__(),
        lambda: CheckpointPath(name, "weights", "a"),
        lambda: store.run(name),
        lambda: store.delete(f"mint://run-1/weights/{name}"),
        lambda: store.verify(f"tinker://run-1/sampler_weights/{name}"),
        lambda: store.storage_bytes(name or ".."),
        lambda: store.checkpoints(name or ".."),
    ]
    for use in uses:
        with pytest.raises(InvalidRequest):
            use()
    assert list(tmp_path.iterdir()) == []


@given(name=st.text(min_size=1, max_size=12) | st.text("ab.．/\\%~- ⒈½ﬀ", min_size=1, max_size=6))
@example("..").via("the parent")
def test_a_name_that_is_accepted_is_one_folder_right_below_its_parent(name: str) -> None:
    try:
        check_name(name)
    except InvalidRequest:
        return
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        path = Path("/parent", unicodedata.normalize(form, name))
        assert path.parent == Path("/parent") and path.name not in ("", ".", "..") and "\0" not in str(path)
        assert "\\" not in path.name and ":" not in path.name and not path.name.startswith(("-", "~"))


def test_no_letter_or_digit_becomes_a_separator_on_any_file_system() -> None:
    """Some file systems fold names to a compatible form; no character that names may hold folds to a special one."""
    letters = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isalnum()]
    assert len(letters) > 100_000
    wrong = [c for c in letters if set(unicodedata.normalize("NFKC", c)) & set('/\\\0:%~*?"<>|')]
    assert wrong == []


def make_checkpoint(store: CheckpointStore, files: dict[str, bytes], **fields: Any) -> None:
    """A checkpoint as somebody else may hand it on: any content, all checksums right."""
    with store.writing(PATH, FIELDS) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
    if fields:
        entries = {name: entry_of_bytes(data) for name, data in files.items()}
        values = json.loads(Manifest.from_fields(FIELDS, entries).to_json())
        del values["manifest_sha256"]
        values |= fields
        data = json_bytes({**values, "manifest_sha256": entry_of_bytes(json_bytes(values)).sha256})
        (store.runs_folder / "run-1" / "weights" / "a" / "manifest.json").write_bytes(data)


@pytest.mark.parametrize("name", ["../b", "..", "/etc/hosts", "..\\b", "C:\\b", "a/b", ".b", "b\0", "．．／b", "-b"])
def test_a_manifest_cannot_name_a_file_elsewhere_nor_pass_one_on_in_an_archive(name: str, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "home")
    make_checkpoint(store, {})
    manifest = Manifest.from_fields(FIELDS, {name: entry_of_bytes(b"secret")})
    (store.runs_folder / "run-1" / "weights" / "a" / "manifest.json").write_bytes(manifest.to_json())
    for use in (store.verify, lambda path: store.read(path, name), lambda p: write_archive(store, p, tmp_path / "t")):
        with pytest.raises(CheckpointError, match="which is not a plain file name"):
            use(PATH)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_run_folder_that_is_a_link_is_not_listed_locked_or_cleaned_behind_the_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "weights" / ".unfinished~a~0123abcd").mkdir(parents=True)
    store = CheckpointStore(tmp_path / "home")
    store.runs_folder.mkdir(parents=True)
    (store.runs_folder / "run-1").symlink_to(outside)
    for use in (store.checkpoints, lambda: store.checkpoints("run-1"), lambda: store.storage_bytes("run-1")):
        with pytest.raises(CheckpointError, match="run-1 is a link that leaves"):
            use()
    assert [path.name for path in outside.rglob("*")] == ["weights", ".unfinished~a~0123abcd"]


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "home")
    make_checkpoint(store, {"data.bin": b"x"})
    lock = store.runs_folder / "run-1" / ".lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "made by the lock")
    with pytest.raises(StorageError, match=r"\.lock cannot be written: .*it is a symbolic link, which is not followed"):
        store.delete(PATH)
    assert not (tmp_path / "made by the lock").exists()


@pytest.mark.parametrize("inner", ["run-1", "run-1/weights", "run-1/weights/a", "run-1/weights/a/data.bin"])
def test_a_link_that_leads_in_a_circle_is_refused(inner: str, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "home")
    make_checkpoint(store, {"data.bin": b"x"})
    place = store.runs_folder / inner
    place.rename(tmp_path / "aside")
    place.symlink_to(place)
    with pytest.raises(CheckpointError, match="is a link that leaves|data.bin is missing"):
        store.verify(PATH)


class Payload:
    """Leaves a file where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def deep(depth: int = 100_000) -> bytes:
    return b"[" * depth + b"]" * depth


CONTENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # Files in the place of those of a good checkpoint, and fields of the manifest.
    "a pickle as weights": ({"adapter_model.safetensors": "pickle"}, {}),
    "a pickle as optimizer": ({"optimizer.safetensors": "pickle"}, {}),
    "no weights": ({"adapter_model.safetensors": safetensors.torch.save({})}, {}),
    "weights of other names": ({"adapter_model.safetensors": safetensors.torch.save({"x": torch.ones(2)})}, {}),
    "an optimizer of other names": ({"optimizer.safetensors": safetensors.torch.save({"x": torch.ones(2)})}, {}),
    "an optimizer of another size": (
        {
            "optimizer.safetensors": safetensors.torch.save(
                {"first_moment": torch.ones(2), "second_moment": torch.ones(2), "num_steps": torch.ones(1)}
            )
        },
        {},
    ),
    "a huge header": ({"adapter_model.safetensors": (2**60).to_bytes(8, "little") + b"{}"}, {}),
    "an empty file": ({"adapter_model.safetensors": b""}, {}),
    "random state that is a list": ({"rng.json": b"[]"}, {}),
    "random state without keys": ({"rng.json": b"{}"}, {}),
    "random state of text": ({"rng.json": b'{"seed": "x", "num_snapshots": "y"}'}, {}),
    "random state nested too deep": ({"rng.json": deep()}, {}),
    "a rank of text": ({}, {"lora": {"rank": "2"}}),
    "a negative rank": ({}, {"lora": {"rank": -1}}),
    "another rank": ({}, {"lora": {"rank": 3}}),
    "a base model that is no model": ({}, {"base_model": "../../etc"}),
    "a switch of text": ({}, {"lora": {"train_mlp": "yes"}}),
}


@pytest.mark.parametrize("hostile", CONTENTS)
def test_a_hostile_checkpoint_with_right_checksums_is_refused_and_the_engine_goes_on(
    hostile: str, service: mint.ServiceClient, mint_home: Path, tiny_model_dir: Path, tmp_path: Path
) -> None:
    client = service.create_lora_training_client(str(tiny_model_dir), rank=2, seed=1)
    good = mint_home / "runs" / client.model_id / "weights" / "good"
    client.save_state("good").result()
    manifest = json.loads((good / "manifest.json").read_text())
    files = {file.name: file.read_bytes() for file in good.iterdir() if file.name != "manifest.json"}
    changed, fields = CONTENTS[hostile]
    for name, data in changed.items():
        files[name] = pickle.dumps(Payload(tmp_path / "trace")) if data == "pickle" else data
    service.create_training_client_from_state_with_optimizer(f"mint://{client.model_id}/weights/good")
    own = {"base_model": manifest["base_model"], "lora": manifest["lora"]}
    if "lora" in fields:
        fields = {**fields, "lora": {**manifest["lora"], **fields["lora"]}}
    make_checkpoint(CheckpointStore(mint_home), files, **{**own, **fields})
    with pytest.raises(MintError):
        service.create_training_client_from_state_with_optimizer(PATH)
    assert not (tmp_path / "trace").exists()
    assert client.get_info().model_id == client.model_id
    client.save_state("after").result()


def test_code_that_comes_with_a_model_is_never_run(
    service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder, trace = tmp_path / "model", tmp_path / "trace"
    folder.mkdir()
    for file in tiny_model_dir.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    code = f"import pathlib\npathlib.Path({str(trace)!r}).touch()\nfrom transformers import *\n"
    (folder / "evil.py").write_text(code + "class Evil(Qwen3Config): pass\n")
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads((folder / name).read_text())
        kinds = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}
        model_type = {"model_type": "evil"} if name == "config.json" else {"tokenizer_class": "Evil"}
        (folder / name).write_text(json.dumps({**values, **model_type, "auto_map": kinds}))
    with pytest.raises((NotFound, InvalidRequest)):
        service.create_lora_training_client(str(folder), rank=2)
    assert not trace.exists()


def test_weights_in_a_pickle_are_not_read(service: mint.ServiceClient, tiny_model_dir: Path, tmp_path: Path) -> None:
    folder, trace = tmp_path / "model", tmp_path / "trace"
    folder.mkdir()
    for file in tiny_model_dir.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(trace)))
    with pytest.raises(NotFound, match=r"could not be loaded: .*safetensors"):
        service.create_lora_training_client(str(folder), rank=2)
    assert not trace.exists()
