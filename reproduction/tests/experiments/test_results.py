# SPDX-License-Identifier: Apache-2.0
"""Result files are read back whole; means and errors against another computation."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from armijo.errors import ArmijoError
from armijo_reproduction import (
    Results,
    experiment,
    experiment_names,
    reproduce,
    runner,
    runs,
)
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
from armijo_reproduction.runner import best_settings
from armijo_reproduction.spec import KEY
from reproduction.tests.experiments.fakes import curve, point, write_fakes

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


NAME = "logistic-adult"


def keys(folder, name=NAME):
    """Return the key of every row of a fast result file, in its order."""
    table = Results(folder, experiment(name, fast=True), fast=True).table()
    return list(table[list(KEY)].itertuples(index=False, name=None))


def run(folder, name=NAME, **options):
    return reproduce(name, folder=folder, fast=True, synthetic=True, **options)


def test_all_runs_are_run_once_and_then_none(tmp_path, synthetic_runs):
    every = [astuple(key) for key in experiment(NAME, fast=True).run_keys()]
    first = run(tmp_path)
    assert first.new == len(every) and first.waiting == 0
    # Two that end at the same time are written in any order.
    assert sorted(keys(tmp_path)) == sorted(every)
    assert run(tmp_path).new == 0
    assert sorted(astuple(key) for key, _ in synthetic_runs) == sorted(every)


def test_only_missing_runs_are_run(tmp_path, synthetic_runs):
    run(tmp_path)
    path = tmp_path / f"{NAME}-fast.csv"
    lines = path.read_text().splitlines(keepends=True)
    gone = (3, 7)
    missing = [keys(tmp_path)[i - 1] for i in gone]
    path.write_text("".join(line for i, line in enumerate(lines) if i not in gone))
    del synthetic_runs[:]
    assert run(tmp_path).new == 2
    every = [astuple(key) for key in experiment(NAME, fast=True).run_keys()]
    assert sorted(astuple(key) for key, _ in synthetic_runs) == sorted(missing)
    assert sorted(keys(tmp_path)) == sorted(every)


def test_runs_get_the_parameters_of_their_line_and_setting(tmp_path, synthetic_runs):
    run(tmp_path, "zero-tuning-grid")
    run(tmp_path, "logistic-adult")
    options = {(key.line, key.setting): given for key, given in synthetic_runs}
    assert options["ObjPert", "-"] == {"data_norm": 1.0}
    assert options["DP-SGD", "max_grad_norm=3.0 steps=20 step_size=1.0"] == {
        "max_grad_norm": 3.0,
        "steps": 20,
        "step_size": 1.0,
    }


def test_a_second_runner_is_refused(tmp_path, synthetic_runs):
    path = tmp_path / f"{NAME}-fast.csv"
    with FileLock(f"{path}.lock"):
        with pytest.raises(ArmijoError, match="Another process is writing"):
            run(tmp_path)
        assert run(tmp_path, "svm-adult").new > 0
    assert not path.exists() and run(tmp_path).new > 0


def test_a_deadline_starts_no_more_runs(tmp_path, synthetic_runs, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    fake = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr(runner, "time", fake)

    def progress(done, total, last):
        clock.now = 1.5 * done

    outcome = run(tmp_path, deadline=4.0, progress=progress)
    # Two runs are in work ahead of the one that is waited for.
    assert 3 <= outcome.new <= 5
    assert len(keys(tmp_path)) == outcome.new
    left = run(tmp_path).new
    assert left + outcome.new == len(list(experiment(NAME, fast=True).run_keys()))


def test_progress_counts_what_was_done_before(tmp_path, synthetic_runs):
    total = len(list(experiment(NAME, fast=True).run_keys()))
    run(tmp_path)
    calls = []
    run(tmp_path, progress=lambda *call: calls.append(call))
    assert calls == [(total, total, None)]
    path = tmp_path / f"{NAME}-fast.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    del calls[:]
    run(tmp_path, progress=lambda *call: calls.append(call))
    assert [done for done, _, _ in calls] == [total - 2, total - 1, total]
    assert calls[0][2] is None and calls[1][2].fold == 0


def test_only_the_last_point_of_a_curve_has_all_test_images(monkeypatch):
    sizes = []
    monkeypatch.setattr(
        runs, "_measured", lambda _, X, y: sizes.append(len(y)) or (0, 0)
    )
    wanted = replace(
        experiment("mnist-mlp", fast=True), rows=40, steps=2, evaluate_every=1
    )
    wanted = replace(wanted, sampling_prob=1.0, quick=3, measured=5)
    *_, key = (k for k in wanted.run_keys() if "non-private" in k.line)
    rows = runs.run_network(wanted, key, {}, synthetic=True)
    assert sizes == [3, 5, 40, 5]
    assert [row["iteration"] for row in rows] == [1, 2]


def test_hindsight_takes_the_setting_with_the_best_mean(tmp_path):
    grid = experiment("zero-tuning-grid", fast=True)
    results = Results(tmp_path, grid, fast=True)
    chosen = "max_grad_norm=1.0 steps=20 step_size=1.0"
    row = dict.fromkeys(("gradients", "objectives", "batches", "updates"), 1)
    run_keys = list(grid.run_keys())
    for key in run_keys[:-1]:
        accuracy = 0.9 if key.setting == chosen else 0.8
        results.append(
            key, [{**row, "accuracy": accuracy, "objective": 0.4, "seconds": 1.0}]
        )
    assert best_settings(grid.name, tmp_path, fast=True) == {}  # one key is missing
    results.append(
        run_keys[-1], [{**row, "accuracy": 0.85, "objective": 0.4, "seconds": 1.0}]
    )
    found = best_settings(grid.name, tmp_path, fast=True)
    assert found == {("adult", "logistic", grid.epsilons[0]): grid.options_of(chosen)}


def test_hindsight_looks_at_the_ends_of_curves(tmp_path):
    grid = experiment("zero-tuning-networks-grid", fast=True)
    results = Results(tmp_path, grid, fast=True)
    chosen = "step_size=2.0"
    for key in grid.run_keys():
        late = key.setting == chosen
        results.append(
            key,
            [
                {"iteration": 30, "accuracy": 0.1 if late else 0.8, "seconds": 1.0},
                {"iteration": 60, "accuracy": 0.7 if late else 0.6, "seconds": 2.0},
            ],
        )
    (found,) = best_settings(grid.name, tmp_path, fast=True).values()
    assert found == grid.options_of(chosen)


def test_hindsight_waits_for_its_grid_and_then_uses_it(tmp_path, synthetic_runs):
    first = run(tmp_path, "zero-tuning")
    assert (first.new, first.waiting) == (1, 2)
    assert [key.line for key, _ in synthetic_runs] == ["auto"]
    write_fakes(tmp_path, names=["zero-tuning-grid", "zero-tuning-objpert"])
    assert run(tmp_path, "zero-tuning").new == 2
    options = {key.line: given for key, given in synthetic_runs}
    key = ("adult", "logistic", experiment("zero-tuning", fast=True).epsilons[0])
    for line, grid in (
        ("DP-SGD (hindsight)", "zero-tuning-grid"),
        ("ObjPert (hindsight)", "zero-tuning-objpert"),
    ):
        best = best_settings(grid, tmp_path, fast=True)[key]
        assert best and best.items() <= options[line].items()


def children(pid):
    """Return the processes that a process has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


def gone(pid):
    """Say whether a process has ended; a zombie waits only to be reaped."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        )
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(true, seconds=120):
    """Wait for something to become true."""
    for _ in range(20 * seconds):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_killed_runner_loses_no_key_and_leaves_no_process(tmp_path, synthetic_runs):
    code = (
        "import sys; from pathlib import Path\n"
        "from armijo_reproduction import reproduce\n"
        "if __name__ == '__main__':\n"
        f"    reproduce({NAME!r}, folder=Path(sys.argv[1]), fast=True, synthetic=True)"
    )
    path = tmp_path / f"{NAME}-fast.csv"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.DEVNULL
    ) as process:
        until(lambda: path.exists() and path.read_bytes().count(b"\n") > 3)
        started = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
    before = path.read_bytes()
    kept = before[: before.rfind(b"\n") + 1]
    every = [astuple(key) for key in experiment(NAME, fast=True).run_keys()]
    done = kept.count(b"\n") - 1
    assert started and 0 < done < len(every)
    until(lambda: all(map(gone, started)))
    assert run(tmp_path).new == len(every) - done
    assert path.read_bytes().startswith(kept)
    assert sorted(keys(tmp_path)) == sorted(every)
