# SPDX-License-Identifier: Apache-2.0
"""The rules of the tree itself: layers, headers and no trace of a machine."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path for top in ("src", "reproduction/src") for path in (ROOT / top).rglob("*.py")
)
SPDX = "# SPDX-License-Identifier: Apache-2.0"

FOLDERS = (".ci", "benchmarks", "docs", "examples", "reproduction", "src", "tests")
TEXT_ENDINGS = {"", ".cfg", ".ini", ".json", ".md", ".py", ".toml", ".txt", ".yaml"}
TEXT_ENDINGS |= {".yml", ".jinja", ".html", ".css", ".sh"}
# A path counts where it begins, so that the middle of a web address does not. One
# letter of each host is in brackets, so that this file does not name it.
MACHINE_PATH = re.compile(
    r"(?<![\w.~/-])/(?:home|mnt|opt|private|root|srv|tmp|Users|work)\b(?!\.)"
    r"|\b[A-Z]:\\Users"
)
REGISTRY = re.compile(
    r"pyp[i]\.(?:org|python)|pythonhoste[d]|download\.pytorc[h]|artifactor[y]"
    r"|anacond[a]\.org|index-ur[l]|trusted-hos[t]",
    re.IGNORECASE,
)


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _traces(text: str) -> list[str]:
    """Return every machine path and registry host that the text names."""
    return [m.group() for rule in (MACHINE_PATH, REGISTRY) for m in rule.finditer(text)]


def _project_files() -> Iterator[Path]:
    """Yield the text files that belong to the project, not what tools left behind."""
    # In a worktree .git is a file, and names the folder of the repository.
    tops = [p for p in ROOT.iterdir() if p.is_file() and p.name != ".git"]
    below = [path for name in FOLDERS for path in (ROOT / name).rglob("*")]
    for path in tops + below:
        generated = "__pycache__" in path.parts or path.name == "latest.json"
        egg = any(part.endswith(".egg-info") for part in path.parts)
        if path.is_file() and path.suffix in TEXT_ENDINGS and not (generated or egg):
            yield path


def _lint_imports(source_root: Path, config: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of ``config`` on the package found under ``source_root``."""
    code = (
        "import sys; from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(config_filename=sys.argv[1], no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(config)],
        cwd=source_root,
        env={**os.environ, "PYTHONPATH": str(source_root)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the sources that a test may spoil."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignore)
    return tmp_path / "src"


def test_sources_are_found():
    assert "src/armijo/_validate.py" in {_relative(path) for path in SOURCES}


def test_import_contracts_are_kept():
    result = _lint_imports(ROOT / "src", ROOT / "pyproject.toml")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("accounting/__init__.py", "import torch", "Accounting"),
        ("accounting/__init__.py", "import pandas.core", "Accounting"),
        ("accounting/__init__.py", "import armijo.data", "Upper layers"),
        ("errors.py", "import armijo._validate", "Upper layers"),
        ("undeclared.py", "", "Upper layers"),
    ],
)
def test_a_planted_import_breaks_the_contracts(tree, module, line, broken):
    with (tree / "armijo" / module).open("a") as file:
        file.write(f"\n{line}\n")
    result = _lint_imports(tree, ROOT / "pyproject.toml")
    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(rf"^{broken}.* BROKEN$", result.stdout, re.MULTILINE)


def test_every_source_file_starts_with_the_license_line():
    missing = [
        _relative(path) for path in SOURCES if not path.read_text().startswith(SPDX)
    ]
    assert missing == []


def test_project_files_are_found():
    names = {_relative(path) for path in _project_files()}
    assert {"Makefile", "constraints.txt", ".ci/run", "docs/index.md"} <= names


def test_no_file_names_a_machine_path_or_a_registry():
    found = {_relative(path): _traces(path.read_text()) for path in _project_files()}
    assert {name: traces for name, traces in found.items() if traces} == {}


@pytest.mark.parametrize(
    "parts",
    [
        ("see /", "home/someone/x"),
        ("'/", "tmp'"),
        ("--extra-", "index", "-url"),
        ("https://pypi", ".org/simple"),
        ("C:", "\\Users\\someone"),
    ],
)
def test_a_planted_trace_is_found(parts):
    assert _traces("".join(parts))


@pytest.mark.parametrize(
    "text", ["#!/usr/bin/env bash", "https://example.com/home/work", "../shared/tmp"]
)
def test_harmless_text_is_no_trace(text):
    assert _traces(text) == []
