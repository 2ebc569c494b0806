# SPDX-License-Identifier: Apache-2.0
"""The main job from end to end: a census table, three budgets, honest accuracy.

The table is synthetic and says so.  A tenth of the rows is held out before training;
accuracy is measured there only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from armijo.cli._census import (
    TARGET,
    generated_census_frame,
    generated_census_schema,
)
from armijo.cli.fit import fit_table, predict_table
from armijo.methods.base import StepRecord
from armijo.tables import Schema, encode

EPSILONS = (0.1, 0.5, 1.0)
DELTA = 1e-6


@dataclass(frozen=True)
class DemoResult:
    """Accuracies on held-out rows, and where the reports are."""

    accuracies: dict[str, float]
    folder: Path


def run_demo(
    folder: Path, *, on_fit: Callable[[float], Callable[[StepRecord], object]]
) -> DemoResult:
    """Write the table and its schema, fit each budget, and measure held-out rows."""
    frame = generated_census_frame()
    # The rows are drawn independently, so that the last ones are as good as any.
    n_train = len(frame) - len(frame) // 10
    train, test = frame.iloc[:n_train], frame.iloc[n_train:]
    schema = Schema.from_dict(generated_census_schema(n_train))
    folder.mkdir(parents=True, exist_ok=True)
    train.to_parquet(folder / "train.parquet", index=False)
    test.to_parquet(folder / "test.parquet", index=False)
    (folder / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
    truth = test[TARGET].to_numpy()
    majority = train[TARGET].mode()[0]
    accuracies = {"majority class": float(np.mean(truth == majority))}
    for epsilon in EPSILONS:
        out = folder / f"epsilon-{epsilon:g}"
        fit_table(
            folder / "train.parquet",
            schema=folder / "schema.toml",
            out=out,
            parameters={"epsilon": epsilon, "delta": DELTA},
            callback=on_fit(epsilon),
            overwrite=True,
        )
        predicted = predict_table(out, folder / "test.parquet")["prediction"]
        accuracies[f"private, epsilon {epsilon:g}"] = float(np.mean(predicted == truth))
    accuracies["not private"] = _not_private(train, test, schema)
    return DemoResult(accuracies, folder)


def _not_private(train: pd.DataFrame, test: pd.DataFrame, schema: Schema) -> float:
    """Return the accuracy of ordinary logistic regression with the same penalty."""
    from sklearn.linear_model import LogisticRegression

    plain = LogisticRegression(C=1 / (1e-3 * len(train)), max_iter=300)
    plain.fit(*encode(train, schema))
    return float(plain.score(*encode(test, schema)))
