# SPDX-License-Identifier: Apache-2.0
"""Bands of the fast versions on synthetic data: what a working method stays in.

``python -m reproduction.tests.experiments.bands [NAME...]`` measures all of them again,
or some, in a few minutes, and writes ``bands.json``.  Do that when a fast version or a
method was changed on purpose, and look at the difference.

A band is the mean of a few runs with other noise, plus and minus a margin: four times
the standard deviation of these runs, but no less than ``MARGINS``.  The objective is
measured on the training rows and hardly moves with the noise, so that its band tells a
method that stays at its start from one that learns, where accuracies are alike; where
single runs with much noise go astray, it ends below the objective of learning nothing.
"""

import json
import math
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pandas as pd

from armijo_reproduction import Results, experiment, experiment_names, reproduce, runner

PATH = Path(__file__).with_name("bands.json")
REPEATS = 3
MARGINS = {
    "convex": {"accuracy": 0.03, "objective": 0.03},
    "networks": {"accuracy": 0.10, "objective": 0.10, "spent": 0.02},
}
KEYS = ["dataset", "model", "line", "setting"]
TOO_SHORT = ("DP-Adam", "cnn_cifar", "|majority|")
"""What learns nothing, or not yet in a fast version: it is seen to run and to spend."""


def _top(column: str, key: str) -> float:
    """Return what no band of a column exceeds."""
    if column == "objective" and not any(slow in key for slow in TOO_SHORT):
        untrained = {"svm": 1.0, "logistic": math.log(2.0)}
        return 0.98 * untrained.get(key.split("|")[1], math.log(10.0))
    return 1.0 if column == "accuracy" else math.inf


def last_rows(name: str, folder: Path) -> pd.DataFrame:
    """Return the last row of each run of a fast version."""
    wanted = experiment(name, fast=True)
    table = Results(folder, wanted, fast=True).table()
    return table.groupby([*KEYS, "repeat"], sort=False).last().reset_index()


def in_this_process() -> "patch":
    """Let the runner compute in this process, which spares the start of others."""
    return patch.object(runner, "_pool", lambda jobs: ThreadPoolExecutor(1))


def run_fast(name: str, folder: Path) -> pd.DataFrame:
    """Run a fast version, and first those whose best settings it takes."""
    with in_this_process():
        for series in experiment(name, fast=True).series:
            if series.best_of is not None:
                reproduce(series.best_of, folder=folder, fast=True, synthetic=True)
        reproduce(name, folder=folder, fast=True, synthetic=True)
    return last_rows(name, folder)


def bands_of(rows: pd.DataFrame, kind: str) -> dict[str, dict[str, list[float]]]:
    """Return the bands of every line and setting."""
    found: dict[str, dict[str, list[float]]] = {}
    for key, part in rows.groupby(KEYS, sort=False):
        bands = {}
        for column, least in MARGINS[kind].items():
            values = part[column].dropna()
            if len(values):
                spread = 0.0 if len(values) == 1 else float(values.std())
                margin = max(least, 4.0 * spread)
                low, high = float(values.mean()) - margin, float(values.mean()) + margin
                top = _top(column, "|".join(key))
                bands[column] = [round(max(0.0, low), 4), round(min(top, high), 4)]
        found["|".join(key)] = bands
    return found


def outside(rows: pd.DataFrame, bands: dict[str, dict[str, list[float]]]) -> list[str]:
    """Name every value of the rows that is outside its band, or has none."""
    wrong = []
    for row in rows.to_dict("records"):
        name = "|".join(row[key] for key in KEYS)
        if name not in bands:
            wrong.append(f"{name} has no band")
            continue
        for column, (low, high) in bands[name].items():
            if not low <= row[column] <= high:
                wrong.append(f"{name}: {column} {row[column]} not in [{low}, {high}]")
    return wrong


def stored() -> dict[str, dict[str, dict[str, list[float]]]]:
    """Read the stored bands of all experiments."""
    return json.loads(PATH.read_text(encoding="utf-8"))


def measured(
    names: Sequence[str], folder: Path
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Run fast versions with a few repeats, and return their bands."""

    def repeated(name: str, *, fast: bool = False):
        return replace(experiment(name, fast=fast), repeats=REPEATS)

    found = {}
    with patch.object(runner, "experiment", repeated):
        for name in names:
            found[name] = bands_of(run_fast(name, folder), repeated(name).kind)
            print(name, flush=True)
    return found


def main(names: Sequence[str]) -> None:
    """Measure bands of some experiments, or of all, beside the stored ones."""
    with tempfile.TemporaryDirectory() as folder:
        new = measured(names or experiment_names(), Path(folder))
    bands = {**(stored() if names else {}), **new}
    ordered = {name: bands[name] for name in experiment_names() if name in bands}
    PATH.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
