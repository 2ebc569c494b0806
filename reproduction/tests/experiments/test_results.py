# SPDX-License-Identifier: Apache-2.0
"""Result files: what was written is read back, what was cut short is not."""

import json
from dataclasses import astuple
from pathlib import Path

import pytest

from armijo.errors import ArmijoError
from armijo_reproduction import Results, experiment, experiment_names
from armijo_reproduction.results import BUILDS, build, versions
from reproduction.tests.experiments.fakes import curve, point

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
