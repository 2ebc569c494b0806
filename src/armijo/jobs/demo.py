# SPDX-License-Identifier: Apache-2.0
"""The main job from end to end: a census table, three budgets, honest accuracy.

Adult is used when it can be found or fetched, else a generated table that says so.  A
tenth of the rows is held out before training; accuracy is measured there only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from armijo import datasets
from armijo.errors import DatasetError
from armijo.jobs.fit import fit_table, predict_table
from armijo.optim.loop import StepRecord
from armijo.tables import Schema

EPSILONS = (0.1, 0.5, 1.0)
DELTA = 1e-6


@dataclass(frozen=True)
class DemoResult:
    """Accuracies on held-out rows, and where the reports are."""

    dataset: str
    generated: bool
    accuracies: dict[str, float]
    folder: Path


def find_census() -> tuple[datasets.Dataset, bool]:
    """Return Adult, or a generated table and True."""
    try:
        return datasets.load("adult"), False
    except DatasetError:
        return datasets.generated_census(), True


def run_demo(
    folder: Path, *, on_fit: Callable[[float], Callable[[StepRecord], object]]
) -> DemoResult:
    """Write the table and its schema, fit each budget, and measure held-out rows."""
    data, generated = find_census()
    train, test = datasets.folds(len(data.y), 10)[0]
    folder.mkdir(parents=True, exist_ok=True)
    frame = datasets.to_frame(data)
    frame.iloc[train].to_parquet(folder / "train.parquet", index=False)
    frame.iloc[test].to_parquet(folder / "test.parquet", index=False)
    public = {**datasets.to_schema(data), "n_rows": len(train), "reviewed": True}
    schema = folder / "schema.toml"
    schema.write_text(Schema.from_dict(public).to_toml(), encoding="utf-8")
    truth = np.asarray(data.classes)[data.y[test]]
    counts = np.bincount(data.y[train])
    accuracies = {"majority class": float(np.mean(data.y[test] == counts.argmax()))}
    for epsilon in EPSILONS:
        out = folder / f"epsilon-{epsilon:g}"
        fit_table(
            folder / "train.parquet",
            schema=schema,
            out=out,
            parameters={"epsilon": epsilon, "delta": DELTA},
            callback=on_fit(epsilon),
            overwrite=True,
        )
        predicted = predict_table(out, folder / "test.parquet")["prediction"]
        accuracies[f"private, epsilon {epsilon:g}"] = float(np.mean(predicted == truth))
    accuracies["not private"] = _not_private(data, train, test)
    return DemoResult(data.name, generated, accuracies, folder)


def _not_private(
    data: datasets.Dataset,
    train: NDArray[np.int64],
    test: NDArray[np.int64],
) -> float:
    """Return the accuracy of ordinary logistic regression with the same penalty."""
    from sklearn.linear_model import LogisticRegression

    plain = LogisticRegression(C=1 / (1e-3 * len(train)), max_iter=300)
    plain.fit(data.X[train], data.y[train])
    return float(plain.score(data.X[test], data.y[test]))
