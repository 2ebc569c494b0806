# SPDX-License-Identifier: Apache-2.0
"""Accuracy of every method by ten-fold cross-validation, as a table.

``python -m benchmarks.accuracy run`` computes the missing cells and appends them to
``docs/results/accuracy.csv`` as they come; ``python -m benchmarks.accuracy table``
writes ``docs/accuracy.md``.  The tables are public, so the runs are seeded and carry no
guarantee; accounting and noise are those of a private run.
"""

import csv
import sys
import time
import warnings
from itertools import product
from pathlib import Path

import pandas as pd
import torch

from armijo_reproduction import datasets
from armijo.errors import PrivacyLeakWarning
from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression
from armijo_reproduction.accuracy_rows import (
    CHEAPEST_FIRST,
    PROTOTYPES,
    VARIANTS,
    parameters_of,
    wanted,
)

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "accuracy.csv"
TABLE = Path(__file__).parent.parent / "docs" / "accuracy.md"
DATASETS = ("adult", "bank", "ipums-br")
MODELS = {"logistic": PrivateLogisticRegression, "svm": PrivateLinearSVC}
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
FOLDS = 10
KEY = ("dataset", "model", "variant", "epsilon", "fold")


def run(part: int = 0, parts: int = 1) -> None:
    """Compute the cells that are missing, this process's share of them."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", PrivacyLeakWarning)
    done = set()
    if RESULTS.exists():
        done = set(pd.read_csv(RESULTS)[list(KEY)].itertuples(index=False, name=None))
    loaded = {name: datasets.load(name) for name in DATASETS}
    cells = [
        cell
        for variant in CHEAPEST_FIRST
        for cell in product(range(FOLDS), EPSILONS, MODELS, (variant,), DATASETS)
        if wanted(variant, cell[4], cell[2], cell[1], cell[0])
    ]
    for number, (fold, epsilon, model, variant, name) in enumerate(cells):
        key = (name, model, variant, epsilon, fold)
        if number % parts == part and key not in done:
            _append([*key, *_cell(loaded[name], model, variant, epsilon, fold)])


def _cell(
    data: datasets.Dataset, model: str, variant: str, epsilon: float, fold: int
) -> list[float]:
    """Fit one fold; return accuracy, batches and seconds."""
    train, test = list(datasets.folds(len(data.y), FOLDS, seed=0))[fold]
    start = time.perf_counter()
    estimator = MODELS[model](
        **parameters_of(variant, model, EPSILONS.index(epsilon)),
        epsilon=epsilon,
        delta=1e-8,
        classes=[0, 1],
        n_rows=len(train),
        random_state=fold,
    ).fit(data.X[train], data.y[train])
    seconds = time.perf_counter() - start
    accuracy = estimator.score(data.X[test], data.y[test])
    return [round(accuracy, 5), estimator.n_iter_, round(seconds, 2)]


def _append(row: list[object]) -> None:
    """Add one row at once, so that a kill loses at most the cell in progress."""
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow([*KEY, "accuracy", "batches", "seconds"])
        writer.writerow(row)


def table() -> None:
    """Write the page from the results."""
    results = pd.read_csv(RESULTS)
    grouped = results.groupby(list(KEY[:4]))["accuracy"].agg(["mean", "sem", "count"])
    lines = [Path(__file__).with_name("accuracy_intro.md").read_text()]
    for name, model in product(DATASETS, MODELS):
        lines += [f"\n## {name}, {model}\n", "| | " + " | ".join(map(str, EPSILONS))]
        lines[-1] += " |"
        lines.append("|---" * (len(EPSILONS) + 1) + "|")
        for variant in VARIANTS:
            lines += _lines_of(grouped, name, model, variant)
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lines_of(grouped: pd.DataFrame, name: str, model: str, variant: str) -> list[str]:
    """Return the line of a variant, and under it what was measured before."""
    shown = []
    for epsilon in EPSILONS:
        key = (name, model, variant, epsilon)
        cell = grouped.loc[key] if key in grouped.index else None
        shown.append("" if cell is None else f"{cell['mean']:.4f} ± {cell['sem']:.4f}")
    if not any(shown):
        return []
    lines = [f"| {variant} | " + " | ".join(shown) + " |"]
    goal = PROTOTYPES.get((name, model, variant))
    if goal:
        figures = " | ".join("" if value is None else f"{value:.3f}" for value in goal)
        lines.append(f"| *{variant}, prototype* | {figures} |")
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(*map(int, sys.argv[2:4]))
    else:
        table()
