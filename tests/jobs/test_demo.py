# SPDX-License-Identifier: Apache-2.0
"""The demo: honest accuracies on rows held out, files that stay, and no false name."""

import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from armijo import datasets
from armijo.cli import main
from armijo.errors import DatasetError
from armijo.jobs import demo
from armijo.jobs.fit import predict_table
from armijo.privacy.ledger import read_ledger
from armijo.tables import encode, load_schema
from tests.jobs.conftest import FILES

ROWS = 2000
LABELS = [f"private, epsilon {epsilon}" for epsilon in ("0.1", "0.5", "1")]


@pytest.fixture(scope="module")
def census():
    return datasets.generated_census(n_rows=ROWS)


@pytest.fixture(scope="module")
def shown(census, tmp_path_factory):
    """The result of one demo, and the budgets and records its callbacks saw."""
    folder = tmp_path_factory.mktemp("demo") / "new" / "folder"
    seen = {}

    def on_fit(epsilon):
        return seen.setdefault(epsilon, []).append

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "find_census", lambda: (census, True))
        return demo.run_demo(folder, on_fit=on_fit), seen


def test_accuracies_stand_side_by_side(shown):
    result, _ = shown
    assert list(result.accuracies) == ["majority class", *LABELS, "not private"]
    assert all(0 < accuracy < 1 for accuracy in result.accuracies.values())
    assert result.accuracies["not private"] > result.accuracies["majority class"]
    assert (result.dataset, result.generated) == ("generated-census", True)


def test_a_tenth_of_the_rows_is_held_out(shown, census):
    result, _ = shown
    train = pd.read_parquet(result.folder / "train.parquet")
    test = pd.read_parquet(result.folder / "test.parquet")
    assert (len(train), len(test)) == (ROWS - ROWS // 10, ROWS // 10)
    both = pd.concat([train, test]).sort_values(list(train.columns))
    whole = datasets.to_frame(census).sort_values(list(train.columns))
    assert both.to_numpy().tolist() == whole.to_numpy().tolist()


def test_accuracies_are_those_of_the_files(shown):
    result, _ = shown
    schema = load_schema(result.folder / "schema.toml")
    train = pd.read_parquet(result.folder / "train.parquet")
    test = pd.read_parquet(result.folder / "test.parquet")
    assert schema.n_rows == len(train)
    most = train["label"].mode()[0]
    assert result.accuracies["majority class"] == np.mean(test["label"] == most)
    for epsilon, label in zip(("0.1", "0.5", "1"), LABELS, strict=True):
        folder = result.folder / f"epsilon-{epsilon}"
        predicted = predict_table(folder, result.folder / "test.parquet")["prediction"]
        accuracy = np.mean(predicted.to_numpy() == test["label"].to_numpy())
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
    monkeypatch.setattr(demo, "find_census", lambda: (census, True))
    monkeypatch.setattr(demo, "EPSILONS", (1.0,))
    path = tmp_path / "epsilon-1" / "ledger.jsonl"
    demo.run_demo(tmp_path, on_fit=lambda epsilon: lambda record: None)
    first = path.read_bytes()
    demo.run_demo(tmp_path, on_fit=lambda epsilon: lambda record: None)
    assert path.read_bytes() != first
    assert (path.parent / "earlier-1" / path.name).read_bytes() == first


def test_adult_is_taken_when_it_is_there(monkeypatch):
    found = object()
    asked = []
    monkeypatch.setattr(datasets, "load", lambda name: asked.append(name) or found)
    monkeypatch.setattr(datasets, "generated_census", lambda: pytest.fail("not asked"))
    assert demo.find_census() == (found, False)
    assert asked == ["adult"]


def test_a_generated_table_stands_in_for_adult(monkeypatch, census):
    def missing(name):
        raise DatasetError(f"{name} is neither here nor can it be fetched")

    monkeypatch.setattr(datasets, "load", missing)
    monkeypatch.setattr(datasets, "generated_census", lambda: census)
    assert demo.find_census() == (census, True)


@pytest.mark.parametrize("generated", [True, False])
def test_the_command_prints_the_accuracies_and_says_generated_when_it_is(
    monkeypatch, capsys, tmp_path, generated
):
    accuracies = {"majority class": 0.75, LABELS[0]: 0.8125, "not private": 0.85}
    given = {}

    def run_demo(folder, *, on_fit):
        given.update(folder=folder, step=on_fit(0.5))
        return demo.DemoResult("census", generated, accuracies, folder)

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
    assert ("GENERATED" in out) == generated
    assert "1e-06" in out and "epsilon-0.1/report.html" in out.replace("\n", "")
