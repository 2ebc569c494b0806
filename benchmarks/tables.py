# SPDX-License-Identifier: Apache-2.0
"""Accuracy on tables as people have them: AUC, accuracy and log loss by budget.

``python -m benchmarks.tables`` fits every method on 80/20 splits of every table, adds a
line to ``docs/results/tables.csv`` for each, and prints means; lines that are there
already are not measured again.  Tables lie in the folder ``tables`` of ``ARMIJO_DATA``,
or in ``../shared/data``.  DP-EBM needs the package ``interpret-core``.

Bounds, where a method gets them, are the extremes of the whole table rounded outward to
two digits, and levels are those of the whole table: they stand in for a public schema.
"""

import argparse
import csv
import math
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from armijo import Budget, PrivateLogisticRegression
from armijo.accounting.budget import Neighboring
from armijo.data.coded import CategoryColumn, CodedRows, CodedTable, NumericColumn
from armijo.methods import additive
from armijo.methods.additive import Additive
from armijo.objectives.additive import AdditiveObjective
from armijo.training.run import Run

Array = NDArray[Any]

RESULTS = Path(__file__).parents[1] / "docs/results/tables.csv"
DELTA = 1e-6
EPSILONS = (0.1, 0.5, 1.0, 4.0)
MOST_ROWS, MOST_TEST_ROWS = 100_000, 30_000
SMALL = "compas spambase higgs7500 htru2 oulad credit_default electricity bike".split()
TABLES = (*SMALL, "bank-full", "acs", "heart2020")
FIELDS = ("table", "method", "epsilon", "split", "auc", "accuracy", "log_loss")
LEAKS = ["PINCP_DECILE", "POVPIP", "PWGTP", "WGTP"]  # of acs: the target, or weights


def data_folder() -> Path:
    """Return the folder of the tables."""
    beside = Path(__file__).parents[1] / "../shared/data"
    folder = Path(os.environ.get("ARMIJO_DATA", beside))
    if not folder.is_dir():
        raise SystemExit(
            f"No folder {folder}; set ARMIJO_DATA to the one with tables/."
        )
    return folder


def read(name: str) -> tuple[pd.DataFrame, Array]:
    """Return the columns of a table and its label, zero or one."""
    folder = data_folder()
    if name == "bank-full":
        frame = pd.read_csv(folder / "bank/bank-full.csv.gz", sep=";")
        return frame.drop(columns="y"), (frame["y"] == "yes").to_numpy(float)
    if name == "acs":
        paths = (folder / "ipums-us-substitute-acs").glob("national*.csv.gz")
        frame = pd.concat([pd.read_csv(path, na_values="N") for path in sorted(paths)])
        frame = frame[frame["PINCP"].notna()].drop(columns=LEAKS)
        income, frame = frame["PINCP"], frame.drop(columns="PINCP")
        numbers = ["AGEP", "NOC", "NPF", "DENSITY"]
        frame = frame.astype({c: "str" for c in frame.columns if c not in numbers})
        return frame, (income > income.median()).to_numpy(float)
    frame = pd.read_parquet(folder / f"tables/{name}.parquet")
    target = frame.iloc[:, -1]
    if target.nunique() > 2:  # a number
        target = target > target.median()
    return frame.iloc[:, :-1], target.to_numpy(float)


def outward(number: float, *, up: bool) -> float:
    """Return a number rounded outward to two digits, as a person would write it."""
    if number == 0:
        return 0.0
    digit = 10.0 ** (math.floor(math.log10(abs(number))) - 1)
    rounded = math.ceil if up else math.floor
    return rounded(number / digit + (-1e-9 if up else 1e-9)) * digit


@dataclass(frozen=True)
class Table:
    """A table as each method takes it."""

    name: str
    frame: pd.DataFrame
    label: Array
    coded: CodedTable
    scaled: Array

    @classmethod
    def of(cls, name: str) -> "Table":
        """Read and code a table."""
        frame, label = read(name)
        columns: list[NumericColumn | CategoryColumn] = []
        cells, scaled = [], []
        for column in frame:
            values = frame[column]
            if pd.api.types.is_numeric_dtype(values):
                numbers = values.to_numpy(float)
                low = outward(float(np.nanmin(numbers)), up=False)
                high = outward(float(np.nanmax(numbers)), up=True)
                high = high if high > low else low + 1
                columns.append(NumericColumn(name=str(column), low=low, high=high))
                cells.append(numbers)
                unit = np.clip((numbers - low) / (high - low), 0, 1)
                scaled.append(np.nan_to_num(unit)[:, None])
            else:
                levels = pd.Categorical(values)
                size = len(levels.categories)
                columns.append(CategoryColumn(name=str(column), n_levels=size))
                cells.append(levels.codes.astype(np.int64))
                scaled.append(np.eye(size + 1)[levels.codes][:, :size])
        coded = CodedTable(tuple(columns), tuple(cells))
        return cls(name, frame, label, coded, np.concatenate(scaled, axis=1))

    def split(self, number: int) -> tuple[Array, Array]:
        """Return the rows for training and for testing."""
        order = np.random.default_rng(1000 + number).permutation(len(self.label))
        fifth = len(order) // 5
        return order[fifth:][:MOST_ROWS], order[:fifth][:MOST_TEST_ROWS]


Fitted = Callable[[Table, Array, Array, float, int], Array]
"""Probabilities of the test rows, from training rows, a budget and a seed."""


def ours(
    *, bounds: bool = False, recalibrate: bool = True, warm: bool = True, **kw: Any
) -> Fitted:
    """Return the additive method, with public bounds or without, or parts of it."""

    def fitted(t: Table, train: Array, test: Array, epsilon: float, seed: int) -> Array:
        columns = t.coded.columns
        if not bounds:
            columns = tuple(
                replace(c, low=None, high=None) if isinstance(c, NumericColumn) else c
                for c in columns
            )
        table = CodedTable(columns, t.coded.cells)
        cold = mock.patch.object(additive, "LARGEST_START", 0.0)
        with nullcontext() if warm else cold:
            run = Run(
                AdditiveObjective(columns=columns),
                CodedRows(table[train], 2 * t.label[train] - 1),
                Additive(**kw),
                Budget(epsilon=epsilon, delta=DELTA),
                n_rows=len(train),
                relation=Neighboring.ZERO_OUT,
                seed=seed,
            )
            run.complete()
        state = run.state if recalibrate else replace(run.state, calibration=None)
        return np.asarray(expit(run.method.model(state).scores(table[test])))

    return fitted


def auto(t: Table, train: Array, test: Array, epsilon: float, seed: int) -> Array:
    """Fit a line through min-max and one-hot columns."""
    model = PrivateLogisticRegression(
        epsilon=epsilon,
        delta=DELTA,
        method="auto",
        classes=[0.0, 1.0],
        n_rows=len(train),
        random_state=seed,
    )
    model.fit(t.scaled[train], t.label[train])
    return np.asarray(model.predict_proba(t.scaled[test])[:, 1])


def dp_ebm(t: Table, train: Array, test: Array, epsilon: float, seed: int) -> Array:
    """Fit interpret's private boosting with public bounds and levels."""
    from interpret.privacy import DPExplainableBoostingClassifier

    numbers = [isinstance(c, NumericColumn) for c in t.coded.columns]
    frame = pd.DataFrame(
        {
            c.name: np.nan_to_num(cells) if numeric else cells.astype(str)
            for c, cells, numeric in zip(
                t.coded.columns, t.coded.cells, numbers, strict=True
            )
        }
    )
    model = DPExplainableBoostingClassifier(
        feature_types=["continuous" if numeric else "nominal" for numeric in numbers],
        privacy_bounds={
            c.name: (c.low, c.high)
            for c in t.coded.columns
            if isinstance(c, NumericColumn)
        },
        epsilon=epsilon,
        delta=DELTA,
        n_jobs=1,
        random_state=seed,
    )
    model.fit(frame.iloc[train], t.label[train].astype(int))
    return np.asarray(model.predict_proba(frame.iloc[test])[:, 1])


def logistic(t: Table, train: Array, test: Array, epsilon: float, seed: int) -> Array:
    """Fit scikit-learn's logistic regression, which is not private."""
    model = LogisticRegression(max_iter=1000).fit(t.scaled[train], t.label[train])
    return np.asarray(model.predict_proba(t.scaled[test])[:, 1])


def boosting(t: Table, train: Array, test: Array, epsilon: float, seed: int) -> Array:
    """Fit scikit-learn's gradient boosting, which is not private."""
    kinds = t.coded.columns
    categories = [isinstance(c, CategoryColumn) and c.n_levels < 255 for c in kinds]
    cells = np.column_stack([np.asarray(c, dtype=float) for c in t.coded.cells])
    model = HistGradientBoostingClassifier(
        categorical_features=categories, random_state=seed
    )
    model.fit(cells[train], t.label[train])
    return np.asarray(model.predict_proba(cells[test])[:, 1])


PRIVATE: dict[str, Fitted] = {
    "ours": ours(),
    "ours-bounds": ours(bounds=True),
    "auto": auto,
    "dp-ebm": dp_ebm,
}
NOT_PRIVATE: dict[str, Fitted] = {"logistic": logistic, "boosting": boosting}
PARTS: dict[str, Fitted] = {
    "line": ours(basis="line"),
    "no-pairs": ours(pairs=False),
    "not-recalibrated": ours(recalibrate=False),
    "cold-intercept": ours(warm=False),
}
METHODS = {**PRIVATE, **NOT_PRIVATE, **PARTS}


def measured(path: Path) -> set[tuple[str, ...]]:
    """Return what a file of results has already."""
    if not path.exists():
        return set()
    with path.open() as lines:
        return {
            tuple(line[name] for name in FIELDS[:4]) for line in csv.DictReader(lines)
        }


def settings(args: argparse.Namespace) -> Iterator[tuple[str, str, float, int]]:
    """Yield tables, methods, budgets and splits, table by table."""
    for table in args.tables:
        for method in args.methods:
            for epsilon in [math.inf] if method in NOT_PRIVATE else args.epsilons:
                for split in range(args.splits):
                    yield table, method, epsilon, split


def measure(args: argparse.Namespace) -> None:
    """Fit what is not in the file yet."""
    done = measured(args.out)
    held: Table | None = None
    if not args.out.exists():
        args.out.write_text(",".join(FIELDS) + "\n")
    for name, method, epsilon, split in settings(args):
        if (name, method, f"{epsilon:g}", str(split)) in done:
            continue
        if held is None or held.name != name:
            held = Table.of(name)
        train, test = held.split(split)
        begun, seed = time.perf_counter(), zlib.crc32(f"{name}{split}".encode())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            p = METHODS[method](held, train, test, epsilon, seed % 2**31)
        p, y = np.clip(p, 1e-7, 1 - 1e-7), held.label[test]
        scores = roc_auc_score(y, p), accuracy_score(y, p > 0.5), log_loss(y, p)
        with args.out.open("a", newline="") as out:
            figures = [f"{score:.5f}" for score in scores]
            csv.writer(out, lineterminator="\n").writerow(
                [name, method, f"{epsilon:g}", split, *figures]
            )
        seconds = time.perf_counter() - begun
        print(name, method, epsilon, split, *figures, f"{seconds:.1f} s", flush=True)


def summary(path: Path) -> str:
    """Return means by table, and over the tables that every method has."""
    lines = pd.read_csv(path)
    parts = []
    for figure in FIELDS[4:]:
        means = lines.pivot_table(
            index=["epsilon", "table"], columns="method", values=figure
        )
        parts.append(f"{figure}\n{means.round(4).to_string()}")
        common = means.groupby("epsilon").mean()
        parts.append(f"{figure}, mean over tables\n{common.round(4).to_string()}")
    return "\n\n".join(parts)


SLACK = {"auc": 0.005, "accuracy": 0.003, "log_loss": 0.01}
TIE = 0.001


def exceptions(path: Path) -> str:
    """Return where ours is behind auto or DP-EBM, by paired differences of splits.

    A line for each mean behind by more than the slack and two standard errors, and in
    how many settings ours is best by AUC.
    """
    lines = pd.read_csv(path)
    lines = lines[lines["method"].isin(["ours", "auto", "dp-ebm"])]
    parts, best = [], []
    for figure, slack in SLACK.items():
        sign = -1 if figure == "log_loss" else 1
        wide = sign * lines.pivot_table(
            index=["table", "epsilon", "split"], columns="method", values=figure
        )
        wide = wide.dropna()
        for other in ("auto", "dp-ebm"):
            behind = (wide[other] - wide["ours"]).groupby(["table", "epsilon"])
            for (table, epsilon), gap in behind:
                error = gap.std(ddof=1) / math.sqrt(len(gap))
                if gap.mean() > slack + 2 * error:
                    parts.append(
                        f"{figure}: {table} at {epsilon:g}, {gap.mean():.4f} behind "
                        f"{other} (standard error {error:.4f}, {len(gap)} splits)"
                    )
        if figure == "auc":
            means = wide.groupby(["table", "epsilon"]).mean()
            best = (
                means["ours"] >= means[["auto", "dp-ebm"]].max(axis=1) - TIE
            ).tolist()
    return "\n".join([*parts, f"best by AUC in {sum(best)} of {len(best)} settings"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--methods", nargs="+", default=[*PRIVATE, *NOT_PRIVATE])
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    measure(args)
    print(summary(args.out), exceptions(args.out), sep="\n\n")


if __name__ == "__main__":
    main()
