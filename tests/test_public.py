# SPDX-License-Identifier: Apache-2.0
"""The public names: visible to everybody, imported late, each with a useful repr."""

import ast
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import armijo
import armijo.accounting

ROOT = Path(__file__).parents[1]
PROMISED = {
    "Budget",
    "Guarantee",
    "Neighboring",
    "PlannedAccountant",
    "PrivacyFilter",
    "PrivacyStatement",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "Solution",
    "StepRecord",
    "Trainer",
    "blank_rows",
    "solve",
    "train",
}
BUDGET = armijo.Budget(epsilon=1.0, delta=1e-5)


def modules_after(code: str) -> set[str]:
    """Return what is imported once a new interpreter has run some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return set(done.stdout.split())


def test_dir_names_what_is_public():
    assert set(dir(armijo)) >= PROMISED
    for name in dir(armijo):
        assert getattr(armijo, name) is not None
    with pytest.raises(AttributeError, match="learning_rate"):
        armijo.learning_rate  # noqa: B018


def test_type_checkers_see_the_same_names():
    stub = ast.parse((ROOT / "src/armijo/__init__.pyi").read_text())
    imported = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    aliases = [alias for node in imported for alias in node.names]
    # Without "as" a checker takes an import in a stub for a private one.
    assert all(alias.name == alias.asname for alias in aliases)
    assert {alias.name for alias in aliases} == set(dir(armijo))


def test_the_stub_is_part_of_the_package():
    assert '"*.pyi"' in (ROOT / "pyproject.toml").read_text()


def test_accounting_does_without_tensors_and_tables():
    found = pkgutil.iter_modules(armijo.accounting.__path__, "armijo.accounting.")
    names = ["armijo.accounting", *(module.name for module in found)]
    code = f"import {', '.join(names)}; armijo.Budget; armijo.PrivacyFilter"
    assert not modules_after(code) & {"torch", "pandas", "sklearn", "matplotlib"}


def test_the_package_alone_imports_nothing_heavy():
    loaded = modules_after("import armijo; dir(armijo)")
    assert not loaded & {"torch", "pandas", "sklearn", "scipy", "numpy"}


def paths():
    """Yield the text of README, pages and examples, of code blocks only on pages."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield (
            path.name,
            "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.S)),
        )
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield path.name, path.read_text()


PAGES = dict(paths())


@pytest.mark.parametrize("name", PAGES)
def test_a_public_name_has_one_import_path(name):
    imports = re.findall(r"^from (armijo\.\S+) import (.+)$", PAGES[name], re.M)
    public = set(dir(armijo))
    deeper = [
        (module, word)
        for module, words in imports
        for word in re.findall(r"\w+", words)
        if word in public
    ]
    assert deeper == []


def solved() -> armijo.Solution:
    X, y = np.array([[0.0], [1.0]] * 50), np.array([-1.0, 1.0] * 50)
    return armijo.solve(X, y, method="sgd", budget=BUDGET)


def trainer() -> armijo.Trainer:
    return armijo.Trainer(
        nn.Linear(2, 2),
        nn.CrossEntropyLoss(reduction="none"),
        (torch.rand(20, 2), torch.arange(20) % 2),
        BUDGET,
        method="sgd",
        steps=3,
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (solved, ("w of 2 numbers", "50 batches", "epsilon=1", "zero-out")),
        (lambda: solved().privacy, ("epsilon=1", "delta=1e-05", "charges=50")),
        (trainer, ("Linear", "Budget(epsilon=1.0", "steps=3", "steps_made=0")),
        (lambda: trainer().privacy, ("epsilon=1", "charges=0")),
        (lambda: armijo.PrivacyFilter(BUDGET), ("PrivacyFilter(Budget(", "charges=0")),
        (lambda: trainer().accountant, ("PlannedAccountant(Budget(", "charges=0")),
        (lambda: armijo.PrivateLinearSVC(budget=BUDGET), ("budget=Budget(",)),
        (lambda: armijo.StepRecord(update=3), ("update=3",)),
        (lambda: BUDGET, ("epsilon=1.0",)),
    ],
)
def test_a_repr_says_public_settings_in_few_words(make, words):
    told = repr(make())
    assert all(word in told for word in words), told
    assert " object at 0x" not in told and len(told) < 400


def test_every_public_class_has_a_repr_of_its_own():
    classes = [
        one for one in map(armijo.__getattr__, dir(armijo)) if inspect.isclass(one)
    ]
    assert len(classes) >= 10
    plain = [one for one in classes if one.__repr__ is object.__repr__]
    assert plain == []


def test_a_training_and_its_class_take_the_same_arguments():
    function = inspect.signature(armijo.train).parameters
    assert list(function)[:4] == ["model", "loss", "dataset", "budget"]
    assert function == inspect.signature(armijo.Trainer).parameters


def test_the_words_of_train_are_complete():
    text = inspect.getdoc(armijo.train)
    for name in inspect.signature(armijo.train).parameters:
        assert re.search(rf"^(?:\w+, )*{name}(?:, \w+)* : \S", text, re.M), name
    for part in ("Parameters", "Returns", "Raises", "Examples"):
        assert f"\n{part}\n---" in text
    assert ">>> run = armijo.train(" in text


def test_modules_of_public_names_exist():
    for name in dir(armijo):
        there = getattr(armijo, name)
        assert inspect.ismodule(there) or import_module(there.__module__)
