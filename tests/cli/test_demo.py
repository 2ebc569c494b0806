# SPDX-License-Identifier: Apache-2.0
"""The demo: honest accuracies on rows held out, files that stay, and no false name."""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from armijo.accounting.ledger import read_ledger
from armijo.cli import _census as demo
from armijo.cli import main
from armijo.cli._census import generated_census_frame
from armijo.cli.fit import predict_table
from armijo.tables import encode, load_schema
from tests.cli.small import FILES

ROWS = 2000
LABELS = [f"private, epsilon {epsilon}" for epsilon in ("0.1", "0.5", "1")]


class Shown(NamedTuple):
    accuracies: dict[str, float]
    folder: Path


@pytest.fixture(scope="module")
def census():
    return generated_census_frame(ROWS)


@pytest.fixture(scope="module")
def shown(census, tmp_path_factory):
    """The result of one demo, and the budgets and records its callbacks saw."""
    folder = tmp_path_factory.mktemp("demo") / "new" / "folder"
    seen = {}

    def on_fit(epsilon):
        return seen.setdefault(epsilon, []).append

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "generated_census_frame", lambda: census)
        return Shown(demo.run_demo(folder, on_fit=on_fit), folder), seen


def test_accuracies_stand_side_by_side(shown):
    result, _ = shown
    assert list(result.accuracies) == ["majority class", *LABELS, "not private"]
    assert all(0 < accuracy < 1 for accuracy in result.accuracies.values())
    assert result.accuracies["not private"] > result.accuracies["majority class"]


def test_a_tenth_of_the_rows_is_held_out(shown, census):
    result, _ = shown
    train = pd.read_parquet(result.folder / "train.parquet")
    test = pd.read_parquet(result.folder / "test.parquet")
    assert (len(train), len(test)) == (ROWS - ROWS // 10, ROWS // 10)
    both = pd.concat([train, test])
    assert both.to_numpy().tolist() == census.to_numpy().tolist()


def test_accuracies_are_those_of_the_files(shown):
    result, _ = shown
    schema = load_schema(result.folder / "schema.toml")
    train = pd.read_parquet(result.folder / "train.parquet")
    test = pd.read_parquet(result.folder / "test.parquet")
    assert schema.n_rows == len(train)
    most = train["income"].mode()[0]
    assert result.accuracies["majority class"] == np.mean(test["income"] == most)
    for epsilon, label in zip(("0.1", "0.5", "1"), LABELS, strict=True):
        folder = result.folder / f"epsilon-{epsilon}"
        predicted = predict_table(folder, result.folder / "test.parquet")["prediction"]
        accuracy = np.mean(predicted.to_numpy() == test["income"].to_numpy())
        assert result.accuracies[label] == accuracy
    X, y = encode(train, schema)
    plain = LogisticRegression(C=1 / (1e-3 * len(train)), max_iter=300).fit(X, y)
    expected = plain.score(*encode(test, schema))
    assert result.accuracies["not private"] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_every_budget_leaves_a_whole_run(shown, epsilon):
    result, seen = shown
    folder = result.folder / f"epsilon-{epsilon:g}"
    names = {path.name for path in folder.iterdir()} - {"ledger.jsonl.lock"}
    assert names == FILES
    view = read_ledger(folder / "ledger.jsonl")
    assert (view.header["epsilon"], view.header["delta"]) == (epsilon, demo.DELTA)
    assert view.header["guarantee"] is True
    assert len(view.charges) == len(seen[epsilon]) > 5
    assert seen[epsilon][-1].epsilon <= epsilon


def test_a_demo_again_keeps_the_earlier_ledgers(census, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "generated_census_frame", lambda: census)
    monkeypatch.setattr(demo, "EPSILONS", (1.0,))
    path = tmp_path / "epsilon-1" / "ledger.jsonl"
    demo.run_demo(tmp_path, on_fit=lambda epsilon: lambda record: None)
    first = path.read_bytes()
    demo.run_demo(tmp_path, on_fit=lambda epsilon: lambda record: None)
    assert path.read_bytes() != first
    assert (path.parent / "earlier-1" / path.name).read_bytes() == first


def test_the_command_prints_the_accuracies_and_says_synthetic(
    monkeypatch, capsys, tmp_path
):
    accuracies = {"majority class": 0.75, LABELS[0]: 0.8125, "not private": 0.85}
    given = {}

    def run_demo(folder, *, on_fit):
        given.update(folder=folder, step=on_fit(0.5))
        return accuracies

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["armijo", "demo", "--out", str(tmp_path / "d")])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr().out
    assert not ended.value.code
    assert given["folder"] == tmp_path / "d" and callable(given["step"])
    rows = {tuple(line.replace("│", " ").split()) for line in out.splitlines()}
    for label, accuracy in accuracies.items():
        assert (*label.split(), f"{accuracy:.4f}") in rows
    assert "SYNTHETIC" in out
    assert "1e-06" in out and "epsilon-0.1/report.html" in out.replace("\n", "")
