# SPDX-License-Identifier: Apache-2.0
"""Means and standard errors of result files, and paired differences of series.

The runs of one fold share their rows, so they count as one: the standard error is that
of the fold means.  Where only one fold was run it is that of the repeats, and nothing
for a single run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pandas as pd

from armijo.errors import ArmijoError
from armijo_reproduction.figures_style import PRINTED
from armijo_reproduction.results import Results
from armijo_reproduction.spec import Experiment, experiment, experiment_names

GIVEN = ["dataset", "model", "line", "epsilon", "setting"]
"""What a figure tells apart; folds and repeats are averaged."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """An experiment with the rows that are there."""

    experiment: Experiment
    table: pd.DataFrame

    @cached_property
    def accuracies(self) -> pd.DataFrame:
        """Return the mean accuracy by data set, model and budget, of line and fold."""
        keys = ["dataset", "model", "epsilon", "line", "fold"]
        means = self.table.groupby(keys)["accuracy"].mean()
        return means.unstack(["line", "fold"])


def by_accounting(parts: Sequence[Part], *, printed: bool) -> list[Part]:
    """Return the series under the printed analysis, or else all others.

    Parts without results of such series are left out.
    """
    kept = []
    for part in parts:
        rows = part.table[part.table["line"].str.endswith(PRINTED) == printed]
        series = part.experiment.series
        labels = tuple(s for s in series if s.label.endswith(PRINTED) == printed)
        if len(rows):
            wanted = replace(part.experiment, series=labels)
            kept.append(Part(experiment=wanted, table=rows))
    return kept


def load_parts(folder: Path, *, fast: bool = False) -> tuple[Part, ...]:
    """Return all experiments that have results in a folder, in the paper's order."""
    parts = (
        Part(experiment=each, table=Results(folder, each, fast=fast).table())
        for each in (experiment(name, fast=fast) for name in experiment_names())
    )
    found = tuple(part for part in parts if not part.table.empty)
    if not found:
        raise ArmijoError(
            f"There are no results in {folder}; `python -m armijo_reproduction run "
            f"NAME --results {folder}{' --fast' if fast else ''}` makes some, and "
            "`python -m armijo_reproduction list` names them all."
        )
    return found


def in_group(parts: Sequence[Part], *groups: str) -> list[Part]:
    """Return the parts of one figure."""
    return [part for part in parts if part.experiment.group in groups]


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error (NaN for a single run) and the number of runs.

    >>> str(Mean(0.84316, 0.0012, 10)), str(Mean(0.84316, float("nan"), 1))
    ('0.8432 ± 0.0012', '0.8432')
    """

    value: float
    error: float
    runs: int

    def __str__(self) -> str:
        return self.rounded(4)

    def rounded(self, digits: int) -> str:
        """Return the mean, and its error if there is one, with so many digits."""
        text = f"{self.value:.{digits}f}"
        if math.isnan(self.error):
            return text
        return f"{text} ± {self.error:.{digits}f}"


def summarized(table: pd.DataFrame, column: str, by: Sequence[str]) -> pd.DataFrame:
    """Return ``value``, ``error`` and ``runs`` for every combination of ``by``.

    >>> rows = pd.DataFrame({"line": ["a", "a", "b"], "fold": [0, 1, 0],
    ...                      "accuracy": [0.7, 0.9, 0.5]})
    >>> summarized(rows, "accuracy", ["line"])["value"].tolist()
    [0.8, 0.5]
    """
    runs = table.groupby(list(by))[column]
    folds = table.groupby([*by, "fold"])[column].mean().groupby(list(by))
    several = folds.count() > 1
    error = (folds.std() / np.sqrt(folds.count())).where(
        several, runs.std() / np.sqrt(runs.count())
    )
    found = pd.DataFrame({"value": folds.mean(), "error": error, "runs": runs.count()})
    return found.reset_index()


def mean_of(rows: pd.DataFrame, column: str) -> Mean:
    """Return mean and standard error of a column over folds, or over repeats.

    >>> rows = pd.DataFrame({"fold": [0, 0, 1, 1], "accuracy": [0.7, 0.9, 0.9, 0.9]})
    >>> mean_of(rows, "accuracy")
    Mean(value=0.85, error=0.05, runs=4)
    """
    found = summarized(rows.assign(all=0), column, ["all"]).iloc[0]
    return Mean(float(found["value"]), float(found["error"]), int(found["runs"]))


@dataclass(frozen=True)
class PairedDiff(Mean):
    """The mean difference of two series, with the difference on each fold."""

    folds: Mapping[int, float] = field(default_factory=dict)


def paired_diff(folds: Mapping[int, float]) -> PairedDiff:
    """Return the mean of differences by fold; those of folds not run are left out.

    >>> paired_diff({0: 0.1, 1: 0.2, 2: float("nan")})
    PairedDiff(value=0.15, error=0.05, runs=2, folds={0: 0.1, 1: 0.2})
    """
    known = {fold: diff for fold, diff in folds.items() if not math.isnan(diff)}
    count = len(known)
    value = fmean(known.values()) if known else math.nan
    error = stdev(known.values()) / math.sqrt(count) if count > 1 else math.nan
    return PairedDiff(value, error, count, known)


def difference(first: pd.DataFrame, second: pd.DataFrame, column: str) -> PairedDiff:
    """Return the mean of first minus second on the folds that both have run.

    >>> a = pd.DataFrame({"fold": [0, 1, 2], "accuracy": [0.8, 0.9, 0.7]})
    >>> b = pd.DataFrame({"fold": [0, 1], "accuracy": [0.7, 0.8]})
    >>> difference(a, b, "accuracy").value
    0.1
    """
    ours, theirs = (each.groupby("fold")[column].mean() for each in (first, second))
    return paired_diff((ours - theirs).to_dict())


def seconds_of(part: Part) -> float:
    """Return the processor time of all runs; a curve counts its time from its start."""
    runs = part.table.groupby([*GIVEN, "fold", "repeat"])["seconds"]
    return float(runs.max().sum())
