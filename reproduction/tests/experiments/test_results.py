# SPDX-License-Identifier: Apache-2.0
"""Result files are read back whole; means and errors against another computation."""

import json
import math
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo.errors import ArmijoError
from armijo_reproduction import Results, experiment, experiment_names
from armijo_reproduction.results import (
    BUILDS,
    build,
    difference,
    in_group,
    load_parts,
    mean_of,
    summarized,
    versions,
)
from reproduction.tests.experiments.fakes import curve, point

ACCURACY = st.floats(0.0, 1.0, allow_nan=False)
FAKES = {"convex": point, "networks": curve}


def written(folder, name, count):
    """Return results with some runs, and their keys."""
    wanted = experiment(name, fast=True)
    results = Results(folder, wanted, fast=True)
    keys = list(wanted.run_keys())[:count]
    for key in keys:
        results.append(key, FAKES[wanted.kind](wanted, key))
    return wanted, results, keys


def test_rows_are_read_back_as_they_were_written(tmp_path):
    wanted, results, keys = written(tmp_path, "logistic-adult", 5)
    table = results.table()
    assert results.path.name == "logistic-adult-fast.csv"
    for key, (_, row) in zip(keys, table.iterrows(), strict=True):
        assert row["accuracy"] == point(wanted, key)[0]["accuracy"]
        assert row["line"] == key.line and row["build"] == build()
    assert results.done() == {astuple(key) for key in keys}


def test_without_a_file_nothing_is_done(tmp_path):
    results = Results(tmp_path, experiment("mnist-mlp"))
    results.drop_partial()
    assert results.table().empty and results.done() == set()
    assert not results.path.exists()


def test_released_results_are_whole_under_new_names():
    """Their files keep the names that parameters had when they were written."""
    folder = Path(__file__).parents[3] / "docs" / "results" / "reproduction"
    for name in experiment_names():
        wanted = experiment(name)
        done = Results(folder, wanted).done()
        assert done == {astuple(key) for key in wanted.run_keys()}, name


def cuts(whole):
    """Return where a file is cut: around every end of a line, and here and there."""
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    near = {place + step for place in ends for step in (-1, 0, 1)}
    return sorted(near | set(range(0, len(whole), 61)))


@pytest.mark.parametrize("name", ["logistic-adult", "mnist-mlp"])
def test_a_file_cut_anywhere_goes_on_and_ends_the_same(tmp_path, name):
    """A kill may leave any part of a write, of curves also whole lines of it."""
    wanted, results, keys = written(tmp_path, name, 2)
    whole = results.path.read_bytes()
    seen = set()
    for cut in cuts(whole):
        results.path.write_bytes(whole[:cut])
        before = results.done()
        results.drop_partial()
        assert results.done() == before
        seen.add(len(before))
        for key in keys:
            if astuple(key) not in before:
                results.append(key, FAKES[wanted.kind](wanted, key))
        assert results.path.read_bytes() == whole
    assert seen == {0, 1, 2}


def test_whole_results_are_not_touched_by_mending(tmp_path):
    _, results, _ = written(tmp_path, "logistic-adult", 3)
    before = results.path.stat()
    results.drop_partial()
    assert results.path.stat().st_mtime_ns == before.st_mtime_ns
    assert results.path.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda text: text.replace("accuracy", "precision", 1), "expected the columns"),
        (lambda text: text.replace("8.0", "eight", 1), "eight"),
        (lambda text: "\n".join(text.split("\n")[:2]) + "\nadult,logistic\n", "line 3"),
        (lambda text: text.replace("\n", "\n\n", 1), "line 2"),
        (lambda text: "not results at all\n", "expected the columns"),
    ],
)
def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path, spoil, told):
    _, results, _ = written(tmp_path, "logistic-adult", 3)
    spoiled = spoil(results.path.read_text())
    results.path.write_text(spoiled)
    for ask in (results.table, results.done, results.drop_partial):
        with pytest.raises(ArmijoError, match="are damaged") as caught:
            ask()
        assert told in str(caught.value) and str(results.path) in str(caught.value)
    assert results.path.read_text() == spoiled


def test_builds_are_noted_once_beside_the_rows(tmp_path):
    _, results, _ = written(tmp_path, "logistic-adult", 1)
    earlier = {"0badc0de": {"armijo": "0.0.1"}}
    (tmp_path / BUILDS).write_text(json.dumps(earlier))
    results.note_build()
    results.note_build()
    noted = json.loads((tmp_path / BUILDS).read_text())
    assert noted == {**earlier, build(): versions()}
    assert {"armijo", "torch", "python", "source"} <= set(versions())


def rows(values):
    """Return a table of folds by repeats."""
    return pd.DataFrame(
        [
            {"fold": fold, "repeat": repeat, "accuracy": value}
            for fold, repeats in enumerate(values)
            for repeat, value in enumerate(repeats)
        ]
    )


@given(st.lists(st.lists(ACCURACY, min_size=2, max_size=2), min_size=2, max_size=6))
def test_the_standard_error_is_that_of_the_fold_means(values):
    found = mean_of(rows(values), "accuracy")
    means = np.mean(values, axis=1)
    assert found.value == pytest.approx(means.mean())
    assert found.error == pytest.approx(means.std(ddof=1) / math.sqrt(len(means)))
    assert found.runs == 2 * len(values)


@given(st.lists(ACCURACY, min_size=2, max_size=6))
def test_one_fold_has_the_error_of_its_repeats(values):
    found = mean_of(rows([values]), "accuracy")
    expected = np.std(values, ddof=1) / math.sqrt(len(values))
    assert found.error == pytest.approx(expected)


def test_one_run_has_no_error_and_shows_none():
    found = mean_of(rows([[0.8]]), "accuracy")
    assert found.value == 0.8 and math.isnan(found.error)
    assert str(found) == "0.8000"


def test_groups_are_kept_apart():
    table = pd.concat([rows([[0.1], [0.3]]).assign(line="a"), rows([[0.9]])])
    found = summarized(table.fillna({"line": "b"}), "accuracy", ["line"])
    assert found["line"].tolist() == ["a", "b"]
    assert found["value"].tolist() == pytest.approx([0.2, 0.9])


@given(
    st.lists(st.tuples(ACCURACY, ACCURACY), min_size=2, max_size=8),
    st.floats(-0.5, 0.5),
)
def test_differences_are_paired_by_fold(pairs, shift):
    """What a fold adds to both sides is not noise of the difference."""
    first, second = ([[pair[side]] for pair in pairs] for side in (0, 1))
    plain = difference(rows(first), rows(second), "accuracy")
    moved = [
        [[values[0] + shift * fold] for fold, values in enumerate(side)]
        for side in (first, second)
    ]
    shifted = difference(rows(moved[0]), rows(moved[1]), "accuracy")
    assert shifted.value == pytest.approx(plain.value, abs=1e-9)
    assert shifted.error == pytest.approx(plain.error, abs=1e-9)
    gaps = [pair[0] - pair[1] for pair in pairs]
    expected = np.std(gaps, ddof=1) / math.sqrt(len(gaps))
    assert plain.error == pytest.approx(expected, abs=1e-12)


def test_folds_that_only_one_side_has_run_do_not_count():
    found = difference(rows([[0.5], [0.6], [0.9]]), rows([[0.4], [0.4]]), "accuracy")
    assert found.runs == 2 and found.value == pytest.approx(0.15)
    nothing = difference(rows([[0.5]]), rows([[0.4]]).iloc[:0], "accuracy")
    assert nothing.runs == 0 and math.isnan(nothing.value)


def test_parts_come_in_the_order_of_the_paper(fakes):
    parts = load_parts(fakes, fast=True)
    names = [part.experiment.name for part in parts]
    assert names[:2] == ["armijo-slope", "step-shrink"]
    assert len(in_group(parts, "hyper-parameters")) == 6


def test_no_results_yet(tmp_path):
    with pytest.raises(ArmijoError, match=r"no results in .* run NAME"):
        load_parts(tmp_path)


def test_a_curve_counts_its_time_once(parts):
    network = in_group(parts, "networks")[0]
    # The synthetic curves end after ten seconds; there are four lines.
    assert 3600 * network.run_counts()[2] == pytest.approx(40.0)
    convex = in_group(parts, "evaluations")[0]
    assert 3600 * convex.run_counts()[2] == pytest.approx(0.5 * len(convex.table))
