"""pyproject.toml and constraints.txt say what the code needs, all of it and in a form that works anywhere."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repository.source_tree import PACKAGES, ROOT, files_in, imported_modules, short, tree_of


def project() -> dict[str, Any]:
    """The [project] table of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def declared(*extras: str) -> dict[str, Requirement]:
    """The dependencies by name, those of the extras included."""
    lines = project()["dependencies"] + [line for extra in extras for line in project()["optional-dependencies"][extra]]
    return {canonicalize_name(requirement.name): requirement for requirement in map(Requirement, lines)}


def pinned() -> dict[str, str]:
    """The versions in constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def third_party_imports(*folders: str) -> dict[str, str]:
    """Distribution of each library that code in these folders imports, with one place that does."""
    distributions = packages_distributions()
    found: dict[str, str] = {}
    for path in files_in(*folders):
        for node in ast.walk(tree_of(path)):
            for module in imported_modules(node):
                top = module.split(".")[0]
                if top not in sys.stdlib_module_names and top not in (*PACKAGES, "benchmarks", "tests"):
                    for name in distributions.get(top, [top])[:1]:
                        found[canonicalize_name(name)] = short(path, node)
    return found


def test_every_library_that_the_packages_import_is_declared() -> None:
    known = declared(*(extra for extra in project()["optional-dependencies"] if extra != "dev"))
    undeclared = {name: place for name, place in third_party_imports(*PACKAGES).items() if name not in known}
    assert undeclared == {}, "add it to [project] dependencies, or to an extra that its users install"


def test_every_library_that_recipes_and_tests_import_is_declared() -> None:
    known = {*declared("dev"), "packaging"}  # packaging comes with pytest
    used = third_party_imports("recipes", "tests")
    assert {name: place for name, place in used.items() if name not in known} == {}, "add it to the extra dev"


def test_every_declared_library_is_imported() -> None:
    unused = declared().keys() - third_party_imports(*PACKAGES).keys()
    assert unused == set(), "drop it"


def test_constraints_are_plain_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 40
    wrong = [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)]
    assert wrong == [], "name==version: no addresses, paths, markers or local versions (+cpu)"
    assert pins == sorted(pins, key=str.lower), "keep them sorted"


def test_every_dependency_is_pinned_within_its_range() -> None:
    pins = {canonicalize_name(name): version for name, version in pinned().items()}
    for name, requirement in declared("dev").items():
        assert name in pins, f"{name}: record the tested version in constraints.txt"
        assert requirement.specifier.contains(pins[name]), f"{name}=={pins[name]} is outside {requirement}"


def test_what_the_dependencies_need_is_pinned_too() -> None:
    """Followed through the metadata of what is installed, for this platform."""
    pins = {canonicalize_name(name) for name in pinned()}
    pending, seen = [requirement for requirement in declared("dev").values()], set[str]()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for line in requires(name) or [] if name not in seen else []:
            needed = Requirement(line)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in {"", *requirement.extras}
            ):
                pending.append(needed)
        seen.add(name)
    assert {name for name in seen - pins if not name.startswith(("nvidia-", "cuda-", "triton"))} == set()


@pytest.mark.parametrize("field", ["readme", "license-files"])
def test_files_that_the_metadata_names_exist(field: str) -> None:
    value = project()[field]
    for name in [value] if isinstance(value, str) else value:
        assert (ROOT / name).is_file()
