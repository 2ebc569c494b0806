# SPDX-License-Identifier: Apache-2.0
"""Accuracy of DP-BLSGD and DP-BLGD by ten-fold cross-validation, as a table.

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

from armijo import datasets
from armijo.errors import PrivacyLeakWarning
from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "accuracy.csv"
TABLE = Path(__file__).parent.parent / "docs" / "accuracy.md"
DATASETS = ("adult", "bank", "ipums-br")
MODELS = {"logistic": PrivateLogisticRegression, "svm": PrivateLinearSVC}
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
FOLDS = 10
VARIANTS = {
    "blsgd": {"method": "blsgd"},
    "blgd": {"method": "blgd"},
    "blsgd-calibrated": {"method": "blsgd", "search_form": "difference"},
    "blgd-calibrated": {
        "method": "blgd",
        "search_form": "difference",
        "subtract_noise": True,
    },
}
STEPS = {  # expected steps of the calibrated variants, one for each epsilon
    "blsgd-calibrated": (60, 60, 100, 200, 200, 200),
    "blgd-calibrated": (40, 40, 70, 120, 120, 120),
}
KEY = ("dataset", "model", "variant", "epsilon", "fold")
# Prototype rows of the specification: the figures to reach, logistic then SVM.
PROTOTYPES = {
    ("adult", "logistic", "blgd"): (0.809, 0.828, 0.837, 0.840, 0.838, 0.807),
    ("adult", "logistic", "blsgd"): (0.779, 0.813, 0.828, 0.836, 0.838, 0.842),
    ("bank", "logistic", "blgd"): (0.889, 0.898, 0.898, 0.897, 0.898, 0.898),
    ("bank", "logistic", "blsgd"): (0.868, 0.886, 0.898, 0.899, 0.899, 0.900),
    ("ipums-br", "logistic", "blgd"): (0.679, 0.736, 0.752, 0.756, 0.760, 0.761),
    ("ipums-br", "logistic", "blsgd"): (0.707, 0.737, 0.757, 0.768, 0.770, 0.770),
    ("adult", "svm", "blgd"): (0.822, 0.831, 0.833, 0.837, 0.826, 0.784),
    ("ipums-br", "svm", "blgd"): (0.695, 0.741, 0.729, 0.758, 0.760, 0.762),
}


def run(part: int = 0, parts: int = 1) -> None:
    """Compute the cells that are missing, this process's share of them."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", PrivacyLeakWarning)
    done = set()
    if RESULTS.exists():
        done = set(pd.read_csv(RESULTS)[list(KEY)].itertuples(index=False, name=None))
    loaded = {name: datasets.load(name) for name in DATASETS}
    cells = product(range(FOLDS), EPSILONS, MODELS, VARIANTS, DATASETS)
    for number, (fold, epsilon, model, variant, name) in enumerate(cells):
        key = (name, model, variant, epsilon, fold)
        if number % parts == part and key not in done:
            _append([*key, *_cell(loaded[name], model, variant, epsilon, fold)])


def _cell(
    data: datasets.Dataset, model: str, variant: str, epsilon: float, fold: int
) -> list[float]:
    """Fit one fold; return accuracy, batches and seconds."""
    train, test = list(datasets.folds(len(data.y), FOLDS, seed=0))[fold]
    steps = None
    if variant in STEPS:
        steps = STEPS[variant][EPSILONS.index(epsilon)]
    start = time.perf_counter()
    estimator = MODELS[model](
        expected_steps=steps,
        epsilon=epsilon,
        delta=1e-8,
        classes=[0, 1],
        n_rows=len(train),
        random_state=fold,
        **VARIANTS[variant],
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
            cells = [grouped.loc[(name, model, variant, e)] for e in EPSILONS]
            shown = [f"{c['mean']:.4f} ± {c['sem']:.4f}" for c in cells]
            lines.append(f"| {variant} | " + " | ".join(shown) + " |")
            goal = PROTOTYPES.get((name, model, variant))
            if goal:
                figures = " | ".join(f"{value:.3f}" for value in goal)
                lines.append(f"| *{variant}, prototype* | {figures} |")
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(*map(int, sys.argv[2:4]))
    else:
        table()
