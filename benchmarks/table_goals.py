# SPDX-License-Identifier: Apache-2.0
"""Regression, natural units and time of the additive method.

``python -m benchmarks.table_goals regression units time`` prints a line for each figure
of docs/tables.md that ``benchmarks.tables`` does not make.  Times are processor time,
the two fits in turns, as a ratio.
"""

import sys
import time
import warnings
from unittest.mock import patch

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from armijo import PrivateClassifier, PrivateLogisticRegression, PrivateRegressor
from armijo.data import integer_rows
from benchmarks.tables import DELTA, Table, data_folder

SPLITS = 5
TURNS = 5
NO_NOISE = 1e4  # epsilon at which noise is next to nothing


def scaled(model: object) -> object:
    """Return a model on standardized numbers and one-hot categories."""
    numbers = make_column_selector(dtype_include="number")
    others = make_column_selector(dtype_exclude="number")
    one_hot = OneHotEncoder(handle_unknown="ignore")
    columns = make_column_transformer((StandardScaler(), numbers), (one_hot, others))
    return make_pipeline(columns, model)


def regression() -> None:
    """Print R2 on bike: private, almost without noise, and of ridge."""
    frame = pd.read_parquet(data_folder() / "tables/bike.parquet")
    X, y = frame.iloc[:, :-1], frame.iloc[:, -1].to_numpy(float)
    found = []
    for split in range(SPLITS):
        order = np.random.default_rng(1000 + split).permutation(len(y))
        test, train = np.split(order, [len(y) // 5])
        models = [
            PrivateRegressor(epsilon=epsilon, delta=DELTA, random_state=split)
            for epsilon in (0.1, 1.0, 4.0, NO_NOISE)
        ]
        found.append(
            [
                model.fit(X.iloc[train], y[train]).score(X.iloc[test], y[test])
                for model in (*models, scaled(Ridge()))
            ]
        )
    names = ("epsilon 0.1", "epsilon 1", "epsilon 4", "no noise", "ridge")
    for name, scores in zip(names, np.transpose(found), strict=True):
        error = scores.std(ddof=1) / np.sqrt(SPLITS)
        print(f"bike, {name}: R2 {scores.mean():.4f} (standard error {error:.4f})")


def people(rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return ages, incomes in dollars, hours and sexes, and a label: 0.6 are false."""
    draw = np.random.default_rng(seed)
    age = draw.integers(18, 80, rows)
    income = np.exp(draw.normal(10.6, 0.7, rows)).round()
    hours = np.clip(draw.normal(40, 10, rows), 1, 99).round()
    sex = draw.choice(["female", "male"], rows)
    score = (age - 49) / 18 + (np.log(income) - 10.6) / 0.7 + (hours - 40) / 20
    score += 0.5 * (sex == "male") + draw.logistic(size=rows)
    frame = pd.DataFrame({"age": age, "income": income, "hours": hours})
    frame["sex"] = pd.array(sex, dtype="str")
    return frame, score > np.quantile(score, 0.6)


def units() -> None:
    """Print accuracy on natural units without bounds, and of scikit-learn."""
    for seed in range(3):
        X, y = people(20_000, seed)
        test, train = slice(0, 4000), slice(4000, None)
        private = PrivateClassifier(epsilon=1, delta=DELTA, random_state=seed)
        ours, theirs = (
            model.fit(X[train], y[train]).score(X[test], y[test])
            for model in (private, scaled(LogisticRegression()))
        )
        print(f"natural units, table {seed}: {ours:.4f}, scikit-learn {theirs:.4f}")


def timing() -> None:
    """Print processor time on bank-full over that of auto on its scaled columns.

    Features are held, and once more computed at each pass, as if they did not fit.
    """
    table = Table.of("bank-full")
    settings = {"epsilon": 1.0, "delta": DELTA, "classes": [0.0, 1.0]}
    single, products = (
        PrivateClassifier(**settings, pairs=pairs) for pairs in (False, True)
    )
    free = integer_rows.free_memory
    fits = {
        "auto": (PrivateLogisticRegression(**settings), table.scaled, free),
        "single columns": (single, table.frame, free),
        "with products": (products, table.frame, free),
        "single columns, computed": (single, table.frame, lambda: 0),
        "with products, computed": (products, table.frame, lambda: 0),
    }
    times: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(TURNS):
        for name, (model, X, memory) in fits.items():
            begun = time.process_time()
            with patch.object(integer_rows, "free_memory", memory):
                model.fit(X, table.label)
            times[name].append(time.process_time() - begun)
    base = float(np.median(times["auto"]))
    for name, seconds in times.items():
        middle = float(np.median(seconds))
        print(f"bank-full, {name}: {middle:.2f} s, {middle / base:.2f} of auto")


def main() -> None:
    """Print what was asked for."""
    made = {"regression": regression, "units": units, "time": timing}
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or made:
        made[name]()


if __name__ == "__main__":
    main()
