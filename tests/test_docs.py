# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the documentation runs, page by page, on a small table."""

import re
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

from armijo import datasets

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
    if not (datasets.available("mnist") and datasets.available("fashion-mnist")):
        pytest.skip("needs MNIST and Fashion-MNIST; set ARMIJO_DATA")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert "-differentially private under" in capsys.readouterr().out
