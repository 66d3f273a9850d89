"""What the documents say is true: paths exist, commands parse and cheap ones run, examples work, quotes are exact."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from mint.cli import main as mint_command
from tests.repository.source_tree import CODE_FOLDERS, PACKAGES, ROOT, files_in, short, tree_of

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def blocks(path: Path, language: str) -> list[str]:
    """The fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """The shell commands of all documents, chains taken apart, comments left out."""
    found: list[str] = []
    for path in DOCUMENTS:
        for block in blocks(path, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                found += [part.strip() for part in line.split("#")[0].split("&&") if part.strip()]
    return list(dict.fromkeys(found))


def marked_command(name: str) -> str:
    """The README's command after `<!-- command: name -->`."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    match = re.search(rf"<!-- command: {name} -->\n```bash\n(.*)\n```\n", readme)
    assert match, f"README.md has no command marked {name!r}"
    return match.group(1)


def tree_in_readme() -> list[str]:
    """The paths of the README's file tree; folders end with a slash."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    match = re.search(r"<!-- file tree -->\n```text\n(.*?)```", readme, re.DOTALL)
    assert match, "README.md has no marked file tree"
    paths: list[str] = []
    folders: list[str] = []
    for line in match.group(1).splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        folders = [*folders[:depth], name]
        paths.append("".join(folders))
    return paths


def test_the_readmes_tree_is_the_tree() -> None:
    files = {short(path) for path in files_in(*PACKAGES, "recipes") if path.name != "__init__.py"}
    listed = tree_in_readme()
    assert len(listed) == len(set(listed))
    assert files - set(listed) == set(), "add these to the file tree in README.md"
    assert {path for path in listed if not (ROOT / path).exists()} == set(), "drop these from README.md"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_named_files_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    missing = [target for target in links if target and not (path.parent / target).exists()]
    named = re.findall(r"`((?:docs|tests|recipes|[.]ci|" + "|".join(PACKAGES) + r")/[\w./-]*)`", text)
    missing += [name for name in named if not (ROOT / name).exists() and not (ROOT / "recipe" / name).exists()]
    assert missing == []


def test_the_readmes_two_commands_set_up_the_same_way() -> None:
    start = "python -m venv .venv && . .venv/bin/activate && pip install -c constraints.txt -e "
    assert marked_command("run") == start + ". && python recipes/rlhf_pipeline.py"
    assert marked_command("test") == start + "'.[dev]' && pytest -n 2 --dist loadfile"


def test_ci_runs_the_readmes_test_command() -> None:
    shown = subprocess.run([ROOT / ".ci" / "run", "--show"], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == marked_command("test") + "\n"


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("python recipes/")])
def test_a_documented_recipe_command_names_settings_that_exist(command: str, tmp_path: Path) -> None:
    """`--help` builds the config from the arguments: it warns of what does not fit, and trains nothing."""
    script, *arguments = shlex.split(command)[1:]
    if not arguments:
        assert (ROOT / script).is_file()
        return
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MINT_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments, "--help"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode == 0 and "WARNING" not in output and "Arguments:" in output, output
    for argument in (argument for argument in arguments if "=" in argument):  # a bare word names a preset
        name, _, value = argument.partition("=")
        row = re.search(rf"^\s+{re.escape(name)}\s.*from command line.*$", output, re.MULTILINE)
        assert row and value.rpartition(":")[2] in row.group(), f"{argument} does not show in the settings"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("mint ")])
def test_a_documented_mint_command_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINT_HOME", str(tmp_path))
    assert mint_command(shlex.split(command)[1:]) == 0


def test_documented_modules_and_markers_exist() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert module == "venv" or find_spec(module), f"python -m {module}: no such module"
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    markers = {line.split(":")[0] for line in config["tool"]["pytest"]["ini_options"]["markers"]}
    assert set(re.findall(r"pytest -m (\w+)", text)) <= markers


@pytest.mark.parametrize("name", ["README.md", "docs/api.md"])
def test_python_examples_run(name: str, tmp_path: Path) -> None:
    program = "\n".join(blocks(ROOT / name, "python"))
    assert program or name == "README.md"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MINT_HOME": str(tmp_path)}
    environment.pop("MINT_BASE_URL", None)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr


def texts_in_code() -> list[str]:
    """Every piece of text that the packages may print, f-strings taken apart at their values."""
    trees = [tree_of(path) for path in files_in(*PACKAGES)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_messages_are_quoted_as_the_code_writes_them() -> None:
    document = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quotes = re.findall(r"^\*\*`([^`]+)`", document, re.MULTILINE)
    assert len(quotes) > 15
    texts = texts_in_code()
    for quote in quotes:
        pieces = [piece.strip(" ,;") for piece in quote.split("...")]
        for piece in (piece for piece in pieces if len(piece) > 2):
            assert any(piece in text for text in texts), f"no code writes {piece!r}, quoted as {quote!r}"


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    places = re.compile("|".join(["/" + "work/", "/" + "tmp/", "/home/[a-z]", "/Users/[a-z]"]))
    files = [
        *files_in(*CODE_FOLDERS),
        *DOCUMENTS,
        ROOT / "constraints.txt",
        ROOT / "pyproject.toml",
        ROOT / ".ci" / "run",
    ]
    found = [short(path) for path in files if places.search(path.read_text(encoding="utf-8"))]
    assert found == []
