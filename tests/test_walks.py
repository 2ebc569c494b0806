# SPDX-License-Identifier: Apache-2.0
"""How many files of the package a reader has to open to follow one call."""

import os
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

import armijo
from armijo import PrivateLogisticRegression
from armijo.cli import main
from tests.cli.small import write_small

PACKAGE = os.path.dirname(armijo.__file__)


def walked(call: Callable[[], object]) -> set[str]:
    """Return the files of the package in which a call runs a function."""
    files: set[str] = set()

    def note(frame, event, argument):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE) and name.endswith(".py"):
            if frame.f_code.co_name != "<module>":
                files.add(os.path.relpath(name, PACKAGE))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def test_a_fit():
    X = np.random.default_rng(0).uniform(size=(500, 3))
    y = (X[:, 0] > 0.5).astype(int)
    model = PrivateLogisticRegression(classes=[0, 1], n_rows=500)
    files = walked(lambda: model.fit(X, y))
    assert "training/run.py" in files
    # Four tell what rows are: a table, or numbers in memory, in a stream, with workers.
    assert len(files) <= 29, sorted(files)


def test_a_training():
    inputs = torch.rand(500, 3)
    labels = (inputs[:, 0] > 0.5).long()
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    loss = nn.CrossEntropyLoss(reduction="none")
    given = {"epsilon": 1.0, "delta": 1e-5, "steps": 6}
    train = armijo.train  # imported now: the body of a class is no call
    files = walked(lambda: train(model, loss, (inputs, labels), **given))
    assert "training/run.py" in files
    assert len(files) <= 30, sorted(files)


def test_a_fit_of_a_table(tmp_path, monkeypatch):
    small = write_small(tmp_path)
    words = f"armijo fit {small.csv} --schema {small.schema} --out {tmp_path / 'run'}"
    monkeypatch.setattr(sys, "argv", f"{words} --epsilon 1 --delta 1e-5".split())

    def call() -> None:
        try:
            main()
        except SystemExit as ended:
            assert not ended.code

    files = walked(call)
    assert "training/run.py" in files
    # What a cell is, a column, a schema, a frame and a table's code: a file for each.
    assert len(files) <= 51, sorted(files)
