"""Nothing that is read can run code: no eval, no pickle, no shell, and each exception has its reason here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.repository.source_tree import PACKAGES, ROOT, files_in, imported_modules, short, tree_of

CHECKED = files_in(*PACKAGES, "recipes", "benchmarks")

# Modules that read code from data, or run foreign programs.
FORBIDDEN_MODULES = {
    "pickle", "cPickle", "_pickle", "pickletools", "dill", "cloudpickle", "joblib", "jsonpickle", "shelve", "marshal",
    "yaml", "ruamel", "code", "codeop", "runpy", "imp", "pty", "subprocess", "multiprocessing", "ctypes", "commands",
}  # fmt: skip
FORBIDDEN_BUILTINS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {
    "os": {"system", "popen", "posix_spawn", "posix_spawnp", "startfile", "fork", "forkpty"},
    "torch": {"load", "compile_from_string"},
    "pandas": {"read_pickle"},
    "pd": {"read_pickle"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "importlib": {"import_module"},
    "importlib.util": {"spec_from_file_location"},
    "sympy": {"sympify", "parse_expr", "S"},
    "builtins": FORBIDDEN_BUILTINS,
}
FORBIDDEN_PREFIXES = {"os": ("exec", "spawn")}
FORBIDDEN_METHODS = {"__reduce__", "__reduce_ex__", "__setstate__", "__getstate__"}
# A keyword and the only value that it may have.
FIXED_KEYWORDS = {"shell": False, "trust_remote_code": False, "allow_pickle": False, "weights_only": True}

# (file or folder, what it does there) -> why that is safe. A folder ends with a slash and may be absent.
ALLOWED = {
    ("mint/__init__.py", "importlib.import_module"): "names of a table in the same file, imported on first use",
    ("envs/__init__.py", "importlib.import_module"): "names of a table in the same file, imported on first use",
    ("recipe/__init__.py", "importlib.import_module"): "names of a table in the same file, imported on first use",
    ("recipe/supervised/__init__.py", "importlib.import_module"): "names of a table in the same file",
    ("recipe/preference/__init__.py", "importlib.import_module"): "names of a table in the same file",
    ("recipe/preference/dpo/__init__.py", "importlib.import_module"): "names of a table in the same file",
    ("recipe/rl/__init__.py", "importlib.import_module"): "names of a table in the same file",
    ("recipe/metric_loggers.py", "importlib.import_module"): "two optional libraries, named in the same file",
    ("recipe/config_record.py", "importlib.import_module"): "modules of our own and of packages that the caller trusts",
    ("mint/sampling_client.py", "__reduce__"): "written for the user's own processes; this project unpickles nothing",
    **{
        ("envs/sandbox/", what): "runs programs of the model, confined: that is what a sandbox is for"
        for what in ("subprocess", "ctypes", "os.fork", "exec", "eval", "compile", "importlib.import_module")
    },
    ("envs/math_grading.py", "subprocess"): "starts our own math_worker.py, without a shell, and sends it JSON",
    ("envs/env_check.py", "pickle"): "reads back what it has just written from the user's own object",
    ("envs/env_target.py", "importlib.import_module"): "the user's own environment, named on the command line",
    ("envs/env_target.py", "importlib.util.spec_from_file_location"): "the same, named as a file",
    ("envs/judges.py", "__getstate__"): "leaves out what a copy in the user's own process makes anew",
    ("envs/tools.py", "__reduce__"): "a tool is pickled by the name of its function, for the user's own processes",
    ("mint/engine/host_memory.py", "ctypes"): "four settings of the C library's malloc",
    ("mint/engine/thread_teams.py", "ctypes"): "OpenMP's call that lets a thread's team go",
    ("benchmarks/speed/__main__.py", "subprocess"): "starts our own rows, one process each, without a shell",
    ("mint/engine/engine.py", "ctypes"): "asks our own worker thread to end when the interpreter does",
}


def uses_in(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """Each use of something forbidden: where, and its name as in ALLOWED."""
    found: list[tuple[ast.AST, str]] = []
    names_of = {"from_import": {}, "module": {}}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names_of["module"].update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module:
            names_of["from_import"].update({a.asname or a.name: (node.module, a.name) for a in node.names})
    for node in ast.walk(tree):
        for module in {name.split(".")[0] for name in imported_modules(node)} & FORBIDDEN_MODULES:
            found.append((node, module))
        if isinstance(node, ast.Name):
            if node.id in FORBIDDEN_BUILTINS:
                found.append((node, node.id))
            module, name = names_of["from_import"].get(node.id, ("", ""))
            if is_forbidden(module, name):
                found.append((node, f"{module}.{name}"))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            written = ast.unparse(node.value)
            module = names_of["module"].get(written, written)
            if is_forbidden(module, node.attr):
                found.append((node, f"{module}.{node.attr}"))
        elif isinstance(node, ast.FunctionDef) and node.name in FORBIDDEN_METHODS:
            found.append((node, node.name))
        elif isinstance(node, ast.keyword) and node.arg in FIXED_KEYWORDS:
            is_fixed = isinstance(node.value, ast.Constant) and node.value.value is FIXED_KEYWORDS[node.arg]
            if not is_fixed:
                found.append((node.value, f"{node.arg}={ast.unparse(node.value)}"))
    return found


def is_forbidden(module: str, name: str) -> bool:
    return name in FORBIDDEN_ATTRIBUTES.get(module, ()) or name.startswith(FORBIDDEN_PREFIXES.get(module, ("\0",)))


def allowed_by(path: Path, what: str) -> tuple[str, str] | None:
    """The entry of ALLOWED that covers this use."""
    name = short(path)
    return next(
        (
            (place, use)
            for place, use in ALLOWED
            if use == what and (name == place or (place.endswith("/") and name.startswith(place)))
        ),
        None,
    )


def test_no_file_runs_code_from_data_or_a_foreign_program() -> None:
    found = [
        f"{short(path, node)}: {what}"
        for path in CHECKED
        for node, what in uses_in(tree_of(path))
        if allowed_by(path, what) is None
    ]
    assert found == [], "see the top of this file; an exception needs a reason in ALLOWED"


def test_every_exception_is_still_needed() -> None:
    used = {allowed_by(path, what) for path in CHECKED for _, what in uses_in(tree_of(path))}
    existing = [(place, what) for place, what in ALLOWED if (ROOT / place).is_file()]
    assert [entry for entry in existing if entry not in used] == []


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import pickle", "pickle"),
        ("from pickle import loads", "pickle"),
        ("import numpy, yaml.constructor", "yaml"),
        ("def f():\n    import subprocess as s", "subprocess"),
        ("eval(text)", "eval"),
        ("run = exec", "exec"),
        ("import os\nos.system('ls')", "os.system"),
        ("import os as o\no.execvp('ls', [])", "os.execvp"),
        ("from os import popen as p\np('ls')", "os.popen"),
        ("import torch\ntorch.load('x')", "torch.load"),
        ("from importlib import import_module\nimport_module(name)", "importlib.import_module"),
        ("import importlib.util as u\nu.spec_from_file_location('a', 'b')", "importlib.util.spec_from_file_location"),
        ("Popen('ls', shell=True)", "shell=True"),
        ("np.load('x', allow_pickle=flag)", "allow_pickle=flag"),
        ("AutoModel.from_pretrained('x', trust_remote_code=True)", "trust_remote_code=True"),
        ("class A:\n    def __reduce__(self): ...", "__reduce__"),
    ],
)
def test_the_check_sees(code: str, what: str) -> None:
    assert what in [name for _, name in uses_in(ast.parse(code))]


def test_the_check_leaves_the_harmless_alone() -> None:
    code = (
        "import re, os\nre.compile('x')\nos.path.join('a')\nmodel.eval()\nf(trust_remote_code=False, weights_only=True)"
    )
    assert uses_in(ast.parse(code)) == []


def test_models_and_tokenizers_are_loaded_in_one_place_without_their_code() -> None:
    calls = [
        (path, node)
        for path in files_in(*PACKAGES, "recipes")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "from_pretrained"
    ]
    without = [
        short(path, node)
        for path, node in calls
        if "trust_remote_code" not in {keyword.arg for keyword in node.keywords}
        # These read JSON, and JSON and safetensors, and have no such argument.
        and ast.unparse(node.func) not in ("GenerationConfig.from_pretrained", "PeftModel.from_pretrained")
        and short(path) != "mint/builtin/make_model.py"  # reads what it has just written
    ]
    assert calls and without == []
