# SPDX-License-Identifier: Apache-2.0
"""The demo: honest accuracies on rows held out, files that stay, and no false name."""

import io
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
from armijo.cli._census import (
    generated_census,
    generated_census_frame,
    generated_census_schema,
)
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
    monkeypatch.setattr(demo, "generated_census_frame", lambda: census.head(400))
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


@pytest.fixture(scope="module")
def whole_census():
    return generated_census()


def test_shape_and_range(whole_census):
    assert whole_census.X.shape == (48_842, 123)
    assert whole_census.X.dtype == np.float64 and whole_census.y.dtype == np.int64
    assert whole_census.X.min() == 0 and whole_census.X.max() == 1
    assert set(whole_census.y) == {0, 1}


def test_majority_and_accuracy_are_those_of_a_census(whole_census):
    train, test = slice(0, -4_884), slice(-4_884, None)
    model = LogisticRegression(tol=1e-3, max_iter=200)
    model.fit(whole_census.X[train], whole_census.y[train])
    accuracy = model.score(whole_census.X[test], whole_census.y[test])
    assert 0.75 < 1 - whole_census.y.mean() < 0.775
    assert 0.82 < accuracy < 0.86


def test_categories_are_one_hot_groups_that_all_occur(whole_census):
    groups = [name.split("=")[0] for name in whole_census.feature_names]
    for name in {group for group in groups if groups.count(group) > 1}:
        block = whole_census.X[:, [group == name for group in groups]]
        assert (block.sum(axis=1) == 1).all() and (block.sum(axis=0) > 0).all()
    assert [g for g in groups if groups.count(g) == 1] == [
        "age",
        "hours_per_week",
        "weeks_per_year",
    ]


@pytest.mark.parametrize("through_csv", [False, True])
def test_the_schema_encodes_the_frame_to_the_same_rows(through_csv):
    frame = generated_census_frame(500, seed=3)
    if through_csv:
        frame = pd.read_csv(io.StringIO(frame.to_csv(index=False)))
    schema = generated_census_schema(500)
    X, y = encode(frame, schema)
    census = generated_census(500, seed=3)
    assert np.array_equal(X, census.X) and np.array_equal(y, census.y)
    assert schema.feature_names == census.feature_names
    assert schema.classes == ("low", "high") and schema.n_rows == 500


def test_numbers_are_scaled_by_their_bounds_and_levels_have_indicators():
    frame, census = generated_census_frame(500), generated_census(500)
    columns = dict(zip(census.feature_names, census.X.T, strict=True))
    assert np.array_equal(columns["age"], (frame["age"] - 17) / (90 - 17))
    assert np.array_equal(columns["sex=female"], frame["sex"] == "female")
    assert np.array_equal(census.y, frame["income"] == "high")


def test_the_seed_decides():
    first, again, other = (generated_census_frame(50, seed=s) for s in (1, 1, 2))
    assert first.equals(again) and not first.equals(other)


def test_rows_do_not_change_from_release_to_release():
    frame = generated_census_frame(4)
    assert frame["age"].tolist() == [48, 53, 36, 23]
    assert frame["birthplace"].tolist() == [f"place 0{i}" for i in (1, 2, 1, 1)]


@pytest.mark.parametrize("arguments", [{"n_rows": 0}, {"seed": -1}, {"n_rows": 1.5}])
def test_impossible_sizes_are_refused(arguments):
    with pytest.raises(ValueError, match="Expected"):
        generated_census_frame(**arguments)
