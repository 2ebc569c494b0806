# SPDX-License-Identifier: Apache-2.0
"""The runner: only what is missing, one at a time, and nothing lost by a kill."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from armijo.errors import ArmijoError
from armijo_reproduction import Results, experiment, reproduce, runner, runs
from armijo_reproduction.runner import best_settings
from armijo_reproduction.spec import KEY
from reproduction.tests.experiments.fakes import write_fakes

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
