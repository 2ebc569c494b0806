# SPDX-License-Identifier: Apache-2.0
"""The demo: a synthetic census table, three budgets, honest accuracy.

No row describes a person. One hidden number per row, its "standing" z ~ N(0, 1), tilts
what the row is like, and the label is drawn from a logistic model of what can be seen:

    P(level j) ~ weight_j exp(tilt z p_j),  p_j in [-1, 1] the place of level j in order
    P(y = 1) = 1 / (1 + exp(-(intercept + sum of the effects of the row)))

Majority and accuracy are near those of Adult: about 0.76, and 0.84 without privacy.  A
tenth of the rows is held out before training; accuracy is measured there only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, ndtri
from sklearn.linear_model import LogisticRegression

from armijo import _validate
from armijo.cli.fit import fit_table, predict_table
from armijo.methods.base import StepRecord
from armijo.tables import Categorical, Column, Label, Numeric, Schema, encode

EPSILONS, DELTA = (0.1, 0.5, 1.0), 1e-6
"""The budgets of the demo."""
CENSUS_ROWS = 48_842
TARGET = "income"
CLASSES = ("low", "high")
_INTERCEPT = -3.2
_Drawn: TypeAlias = tuple[NDArray[Any], NDArray[np.float64]]
# Part of the seed, so that other uses of the same small seed draw other numbers.
_PURPOSE = 0x63656E737573


def _uniform(bits: np.random.PCG64, *shape: int) -> NDArray[np.float64]:
    """Return numbers inside (0, 1), the same in every release of NumPy.

    The raw stream of a bit generator never changes (NEP 19), unlike the methods of a
    generator. Half a unit is added so that neither 0 nor 1 can occur.
    """
    raw = bits.random_raw(math.prod(shape)) >> np.uint64(12)
    return (raw.astype(np.float64) + 0.5).reshape(shape) * 2.0**-52


@dataclass(frozen=True)
class _Number:
    """A whole number between bounds: center + spread (z / 2 + noise), clamped."""

    name: str
    low: int
    high: int
    center: float
    spread: float
    effect: float

    def column(self) -> Column:
        return Numeric(self.name, self.low, self.high)

    def draw(self, bits: np.random.PCG64, standing: NDArray[np.float64]) -> _Drawn:
        noise = ndtri(_uniform(bits, len(standing)))
        free = self.center + self.spread * (0.5 * standing + noise)
        values = np.clip(np.rint(free), self.low, self.high).astype(np.int64)
        return values, self.effect * (values - self.center) / (self.high - self.low)


@dataclass(frozen=True)
class _Category:
    """A category; weights fall as 1 / rank^decay, or stay equal for decay 0."""

    name: str
    levels: tuple[str, ...]
    decay: float
    tilt: float
    effect: float

    def column(self) -> Column:
        return Categorical(self.name, self.levels)

    def draw(self, bits: np.random.PCG64, standing: NDArray[np.float64]) -> _Drawn:
        # The largest of log-weights with standard Gumbel noise falls on a level with a
        # probability proportional to its weight.
        places = np.linspace(-1.0, 1.0, len(self.levels))
        log_weights = -self.decay * np.log(np.arange(1, len(self.levels) + 1))
        gumbel = -np.log(-np.log(_uniform(bits, len(standing), len(self.levels))))
        tilt = self.tilt * standing[:, None] * places
        codes = np.argmax(log_weights + tilt + gumbel, axis=1)
        return np.asarray(self.levels)[codes], self.effect * places[codes]


def _codes(prefix: str, count: int) -> tuple[str, ...]:
    """Return levels that claim no meaning, such as ``"place 01"``."""
    return tuple(f"{prefix} {number:02d}" for number in range(1, count + 1))


_COLUMNS: tuple[_Number | _Category, ...] = (
    _Number("age", 17, 90, 39.0, 13.0, 2.1),
    _Number("hours_per_week", 1, 99, 40.0, 11.0, 2.1),
    _Number("weeks_per_year", 0, 52, 44.0, 12.0, 0.7),
    _Category("employer", _codes("employer", 8), 1.5, 0.3, 0.3),
    _Category("schooling", _codes("grade", 16), 0.0, 1.5, 1.4),
    _Category(
        "marital_status",
        (
            "married",
            "never married",
            "divorced",
            "widowed",
            "separated",
            "registered partnership",
            "spouse absent",
        ),
        1.2,
        -0.5,
        -1.3,
    ),
    _Category("occupation", _codes("occupation", 14), 0.0, 1.0, 1.0),
    _Category(
        "household_role",
        ("reference person", "partner", "child", "parent", "other kin", "no kin"),
        0.8,
        -0.3,
        -0.55,
    ),
    _Category(
        "housing",
        ("owned", "mortgaged", "rented", "rent free", "institution"),
        0.6,
        -0.4,
        -0.35,
    ),
    _Category(
        "commute", ("car", "train", "bus", "bicycle", "foot", "none"), 1.0, 0.0, -0.15
    ),
    _Category("sex", ("male", "female"), 0.5, -0.1, -0.3),
    _Category("language", _codes("language", 10), 2.0, 0.0, -0.15),
    _Category("industry", _codes("industry", 18), 0.3, 0.4, 0.35),
    _Category("birthplace", _codes("place", 28), 2.0, -0.1, -0.2),
)


def generated_census_frame(n_rows: int = CENSUS_ROWS, seed: int = 0) -> pd.DataFrame:
    """Return raw values: 3 columns of numbers, 11 of categories, the label ``income``.

    The seed is public, as the rows belong to nobody.

    >>> generated_census_frame(3)[["age", "sex", "income"]].shape
    (3, 3)
    """
    _validate.at_least(1, n_rows=n_rows)
    _validate.at_least(0, seed=seed)
    bits = np.random.PCG64([_PURPOSE, seed])
    standing = ndtri(_uniform(bits, n_rows))
    score = np.full(n_rows, _INTERCEPT)
    cells: dict[str, NDArray[Any]] = {}
    for column in _COLUMNS:
        cells[column.name], effect = column.draw(bits, standing)
        score += effect
    positive = _uniform(bits, n_rows) < expit(score)
    return pd.DataFrame({**cells, TARGET: np.where(positive, *CLASSES[::-1])})


def generated_census_schema(n_rows: int = CENSUS_ROWS) -> Schema:
    """Return the public description of the table."""
    return Schema(
        columns=(*(column.column() for column in _COLUMNS), Label(TARGET, CLASSES)),
        target=TARGET,
        n_rows=n_rows,
        reviewed=True,  # nothing in it was read from rows of people
    )


class Census(NamedTuple):
    """The encoded rows: features in [0, 1], positions of the classes, names."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    feature_names: tuple[str, ...]


def generated_census(n_rows: int = CENSUS_ROWS, seed: int = 0) -> Census:
    """Return the table encoded in 123 columns."""
    schema = generated_census_schema(n_rows)
    X, y = encode(generated_census_frame(n_rows, seed), schema)
    return Census(X, np.asarray(y), schema.feature_names)


def run_demo(
    folder: Path, *, on_fit: Callable[[float], Callable[[StepRecord], object]]
) -> dict[str, float]:
    """Write the table and its schema, fit each budget, return held-out accuracies."""
    frame = generated_census_frame()
    # The rows are drawn independently, so that the last ones are as good as any.
    n_train = len(frame) - len(frame) // 10
    train, test = frame.iloc[:n_train], frame.iloc[n_train:]
    schema = generated_census_schema(n_train)
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
    # Ordinary logistic regression with the same penalty.
    plain = LogisticRegression(C=1 / (1e-3 * len(train)), max_iter=300)
    plain.fit(*encode(train, schema))
    accuracies["not private"] = float(plain.score(*encode(test, schema)))
    return accuracies
