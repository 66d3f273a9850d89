from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.checkpoint_path import KINDS, CheckpointPath, check_name
from mint.errors import InvalidRequest

names = st.text("abcXYZ019._-+=éß中", min_size=1, max_size=40).filter(lambda name: name[0] not in ".-")


@given(run_id=names, kind=st.sampled_from(KINDS), name=names)
def test_a_path_written_out_and_read_back_is_the_same(run_id: str, kind: str, name: str) -> None:
    path = CheckpointPath.parse(f"mint://{run_id}/{kind}/{name}")
    assert (path.run_id, path.kind, path.name) == (run_id, kind, name)
    assert CheckpointPath.parse(str(path)) == path


def test_tinker_paths_are_read_as_mint_paths() -> None:
    path = CheckpointPath.parse("tinker://run-1/sampler_weights/000100")
    assert str(path) == "mint://run-1/sampler_weights/000100"
    assert path.checkpoint_id == "sampler_weights/000100"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "-rf",
        "a/b",
        "a\\b",
        "/etc/passwd",
        "C:",
        "a b",
        "a\n",
        "a\x00b",
        "a\u202egnp",  # right-to-left override: shown as another name than it is
        "a\u200bb",  # zero-width space
        "ab~1",
        "e\u0301",  # e and a combining accent: the same on screen as the one-character é
        "\ud800",
        "x" * 161,
    ],
)
def test_names_that_could_leave_the_folder_or_mislead_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"checkpoint name"):
        check_name(name)


@given(st.text(max_size=20))
def test_an_accepted_name_is_one_plain_folder_name(name: str) -> None:
    try:
        check_name(name)
    except InvalidRequest:
        return
    assert name.isprintable() and name not in (".", "..")
    assert not set(name) & set('/\\:*?"<>|~ \0')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run/weights/a", "is not a checkpoint path"),
        ("http://run/weights/a", "is not a checkpoint path"),
        ("mint://run/weights", "2 parts"),
        ("mint://run/weights/a/b", "4 parts"),
        ("mint://run/../weights/a", "4 parts"),
        ("mint://run/weigths/a", "Did you mean 'weights'"),
        ("mint://../weights/a", "run id"),
        ("mint://run/weights/..", "checkpoint name"),
    ],
)
def test_a_bad_path_says_which_part_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        CheckpointPath.parse(text)
