# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the documentation runs, page by page, on a small table."""

import importlib
import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import armijo
from armijo.cli import app
from armijo_reproduction import datasets

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = {
    path.relative_to(ROOT).as_posix(): BLOCK.findall(path.read_text(encoding="utf-8"))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
SIGNED = {"docs/methods.md", "docs/extending.md"}  # labels -1 and +1, as solve takes
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def names(page):
    """Return what the pages speak of without making it."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(600, 4))
    y = (X[:, 0] > 0.5).astype(int)
    return {
        "X": X,
        "y": 2.0 * y - 1.0 if page in SIGNED else y,
        "torch": torch,
        "nn": nn,
        "model": nn.Sequential(nn.Flatten(), nn.Linear(16, 10)),
        "images": torch.rand(300, 1, 4, 4),
        "labels": torch.arange(300) % 10,
        "__name__": "documentation",
    }


@pytest.mark.filterwarnings("ignore::armijo.errors.PrivacyLeakWarning")
@pytest.mark.filterwarnings("ignore::armijo.errors.ModelWarning")  # few rows
@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if blocks])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("Agg")
    space = {}
    for block in PAGES[page]:
        space |= names(page)  # a page may call two things a model
        exec(compile(_small(block), page, "exec"), space)
    plt.close("all")


def _small(block):
    """Say how many rows there are here, where a page names a published number."""
    return re.sub(r"(?<=n_rows=)[0-9_]+", "300", block)


def test_pages_without_code_are_known():
    """A page whose blocks the pattern does not find would pass unseen."""
    marked = {page for page in PAGES if "```python" in (ROOT / page).read_text("utf-8")}
    assert marked == {page for page, blocks in PAGES.items() if blocks}
    assert {"README.md", "docs/index.md", "docs/extending.md"} <= marked


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_explains_itself(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mnist.py", ["--steps", "3"]),
        ("frozen_backbone.py", ["--steps", "3", "--public-steps", "3"]),
    ],
)
def test_an_example_runs(name, words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)  # data are looked for beside the folder, too
    if not (datasets.available("mnist") and datasets.available("fashion-mnist")):
        pytest.skip("needs MNIST and Fashion-MNIST; set ARMIJO_DATA")
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert "-differentially private under" in capsys.readouterr().out


def reference():
    """Return the modules of the reference, each with the names that it lists."""
    text = (ROOT / "docs" / "api.md").read_text()
    blocks = re.findall(r"^::: (\S+)\n((?: +.*\n)*)", text, re.M)
    return {module: re.findall(r"- (\w+)$", more, re.M) for module, more in blocks}


def test_the_reference_has_few_places():
    pages = reference()
    public = "accounting methods baselines audit extend networks".split()
    assert {f"armijo.{name}" for name in public} <= set(pages)
    assert len(pages) <= 14
    for page, listed in pages.items():
        module = importlib.import_module(page)
        assert set(listed) <= set(dir(module)), page
    assert set(pages["armijo.accounting"]) == set(dir(armijo.accounting))


def test_every_public_name_is_in_the_reference():
    shown = set()
    for page, listed in reference().items():
        module = importlib.import_module(page)
        shown |= set(listed or getattr(module, "__all__", vars(module)))
    modules = {name for name in dir(armijo) if inspect.ismodule(getattr(armijo, name))}
    assert set(dir(armijo)) - modules - shown == set()
    assert set(importlib.import_module("armijo.extend").__all__) - shown == set()


def test_the_pictures_are_drawn_by_their_script(tmp_path, monkeypatch):
    drawing = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    for name in ("search", "run"):
        drawing[f"{name}_picture"](tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").read_text().count("<path") > 20


@pytest.mark.slow
def test_the_example_of_several_processes_runs(tmp_path):
    command = ["--nproc-per-node", "2", "examples/train_torchrun.py", "--steps", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "-differentially private under" in done.stdout


COMMAND = re.compile(r"^\$ armijo (.*?)(?:\s+#.*)?$", re.MULTILINE)
COMMANDS = {
    page: [shlex.split(line) for line in COMMAND.findall((ROOT / page).read_text())]
    for page in PAGES
}
LONG = ("audit",)
SHORT = [
    page
    for page, lines in COMMANDS.items()
    if any(words[0] not in LONG for words in lines)
]


def people(path: Path, rows: int) -> None:
    """Write a table of the kind that the pages speak of."""
    rng = np.random.default_rng(rows)
    age, hours = rng.integers(18, 90, rows), rng.integers(1, 80, rows)
    frame = pd.DataFrame(
        {"age": age, "hours": hours, "sex": rng.choice(["f", "m"], rows)}
    )
    frame["income"] = np.where(age + hours > 90, "high", "low")
    frame.to_csv(path, index=False)


def called(words: list[str]) -> None:
    """Run a command in this process; an edited schema is reviewed and has bounds."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output, done.exception)
    if words[0] == "schema":
        path = Path(words[words.index("--out") + 1])
        draft = path.read_text(encoding="utf-8")
        draft = draft.replace("reviewed = false", "reviewed = true")
        bounds = 'kind = "numeric"\nlow = 0\nhigh = 120'
        path.write_text(draft.replace('kind = "numeric"', bounds))


@pytest.mark.parametrize("page", SHORT)
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    people(tmp_path / "people.csv", 500)
    people(tmp_path / "new-people.csv", 20)
    for words in COMMANDS[page]:
        if words[0] not in LONG:
            called(words)


def shortened(words: list[str]) -> list[str]:
    """Return a long command with fewer trials."""
    few = re.sub(r"--trials \d+", "", " ".join(words)).replace("--fast", "").split()
    named = [] if "--method" in few else ["--method", "blsgd"]
    return [*few, *named, "--trials", "40"]


@pytest.mark.slow
def test_the_long_commands_of_the_pages_run_when_shortened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [words for page in COMMANDS.values() for words in page if words[0] in LONG]
    asked = {tuple(shortened(words)) for words in lines}
    assert {words[0] for words in asked} == set(LONG)
    for words in sorted(asked):
        called(list(words))


def test_every_command_with_a_page_of_its_own_is_seen():
    """A pattern that finds nothing would pass unseen."""
    assert {"README.md", "docs/cli.md", "docs/quickstart.md"} <= set(SHORT)
    assert sum(map(len, COMMANDS.values())) > 20
