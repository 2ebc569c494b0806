# SPDX-License-Identifier: Apache-2.0
"""Accuracy of every method by ten-fold cross-validation, as a table.

From the root of the repository, ``python -m armijo_reproduction.accuracy run`` makes
the missing runs and appends them to ``docs/results/accuracy.csv`` as they come; with
``table`` instead it writes ``docs/accuracy.md``.  The tables are public, so the runs
are seeded and carry no guarantee; accounting and noise are those of a private
run.  ``accuracy.toml`` has the variants and what was measured before.
"""

import math
import sys
import time
import tomllib
import warnings
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from armijo.errors import PrivacyLeakWarning
from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression
from armijo.registry import make_method
from armijo_reproduction import datasets

RESULTS = Path("docs", "results", "accuracy.csv")
TABLE = Path("docs", "accuracy.md")
DATASETS = ("adult", "bank", "ipums-br")
ESTIMATOR = ("method", "loss", "max_batches", "l2", "accounting")
"""What is a parameter of the estimator: the rest are options of the method."""

MODELS = {"logistic": PrivateLogisticRegression, "svm": PrivateLinearSVC}
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
FOLDS, FEW_FOLDS = 10, 3
KEY = ("dataset", "model", "variant", "epsilon", "fold")
FILES = files("armijo_reproduction")
SPEC: dict[str, Any] = tomllib.loads((FILES / "accuracy.toml").read_text("utf-8"))
VARIANTS: dict[str, dict[str, Any]] = SPEC["variants"]
CHEAPEST_FIRST = [*(v for v in VARIANTS if v not in SPEC["dear"]), *SPEC["dear"]]


def prototype(dataset: str, model: str, variant: str) -> list[float] | None:
    """Return what was measured before, by budget."""
    return SPEC["prototypes"].get(dataset, {}).get(model, {}).get(variant)


def wanted(variant: str, dataset: str, model: str, epsilon: float, fold: int) -> bool:
    """Say whether a run is made: where there is a figure to compare, or none."""
    if VARIANTS[variant]["method"] in ("blsgd", "blgd"):
        return True
    if variant in SPEC["one_budget"] and epsilon != EPSILONS[-1]:
        return False
    if prototype(dataset, model, variant) is not None:
        return True
    new = variant in SPEC["without_prototype"] and model == "logistic"
    return new and fold < FEW_FOLDS


def parameters_of(variant: str, model: str, budget_number: int) -> dict[str, Any]:
    """Return the parameters of the estimator."""
    chosen = SPEC["by_epsilon"].get(variant, {})
    by_epsilon = {name: values[budget_number] for name, values in chosen.items()}
    # On the hinge itself precise searches stop early, see Bank in the page.
    loss = {"loss": "huber"} if chosen and model == "svm" else {}
    own = {**VARIANTS[variant], **by_epsilon, **loss}
    estimator = {name: own.pop(name) for name in ESTIMATOR if name in own}
    options = {**own.pop("options", {}), **own}
    return {**estimator, "method": make_method(estimator["method"], options)}


def run(part: int = 0, parts: int = 1) -> None:
    """Make the runs that are missing, this process's share of them."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", PrivacyLeakWarning)
    done = set()
    if RESULTS.exists():
        done = set(pd.read_csv(RESULTS)[list(KEY)].itertuples(index=False, name=None))
    loaded = {name: datasets.load(name) for name in DATASETS}
    runs = [
        run
        for variant in CHEAPEST_FIRST
        for run in product(range(FOLDS), EPSILONS, MODELS, (variant,), DATASETS)
        if wanted(variant, run[4], run[2], run[1], run[0])
    ]
    for number, (fold, epsilon, model, variant, name) in enumerate(runs):
        key = (name, model, variant, epsilon, fold)
        if number % parts == part and key not in done:
            _append([*key, *_measured(loaded[name], model, variant, epsilon, fold)])


def _measured(
    data: datasets.Dataset, model: str, variant: str, epsilon: float, fold: int
) -> list[float]:
    """Fit one fold; return accuracy, batches and seconds."""
    train, test = datasets.folds(len(data.y), FOLDS, seed=0)[fold]
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
    """Add one row at once, so that a kill loses at most the run in progress."""
    columns = [*KEY, "accuracy", "batches", "seconds"]
    table = pd.DataFrame([row], columns=columns)
    table.to_csv(RESULTS, mode="a", header=not RESULTS.exists(), index=False)


def table() -> str:
    """Return the page made from the results."""
    results = pd.read_csv(RESULTS)
    means = results.groupby(list(KEY[:4]))["accuracy"].agg(["mean", "sem"])
    lines = [(FILES / "accuracy_intro.md").read_text("utf-8")]
    for name, model in product(DATASETS, MODELS):
        lines += [
            f"\n## {name}, {model}\n",
            "| | " + " | ".join(map(str, EPSILONS)) + " |",
        ]
        lines.append("|---" * (len(EPSILONS) + 1) + "|")
        for variant in VARIANTS:
            lines += _lines_of(means, name, model, variant)
    return "\n".join(lines) + "\n"


def _lines_of(means: pd.DataFrame, name: str, model: str, variant: str) -> list[str]:
    """Return the line of a variant, and under it what was measured before."""
    keys = [(name, model, variant, epsilon) for epsilon in EPSILONS]
    if not any(key in means.index for key in keys):
        return []
    texts = means.apply(lambda row: f"{row['mean']:.4f} ± {row['sem']:.4f}", axis=1)
    lines = [f"| {variant} | " + " | ".join(texts.get(key, "") for key in keys) + " |"]
    if goal := prototype(name, model, variant):
        figures = " | ".join("" if math.isnan(x) else f"{x:.3f}" for x in goal)
        lines.append(f"| *{variant}, prototype* | {figures} |")
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(*map(int, sys.argv[2:4]))
    else:
        TABLE.write_text(table(), encoding="utf-8")
