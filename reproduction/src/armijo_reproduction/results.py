# SPDX-License-Identifier: Apache-2.0
"""Results as rows of a CSV file, and their means, standard errors and differences.

Rows are written as they come: a kill loses only what runs.  Beside them
``builds.json`` says by which versions each row was made.  The runs of one fold share
their rows of data, so they count as one: the standard error is that of the fold means.
Where only one fold was run it is that of the repeats, and nothing for a single run.
"""

import csv
import io
import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from hashlib import blake2b
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd

from armijo._files import replace_file
from armijo.errors import ArmijoError
from armijo_reproduction.spec import (
    KEY,
    PUBLISHED,
    RELEASED_NAMES,
    Experiment,
    RunKey,
    experiment,
    experiment_names,
    renamed,
)

CONVEX = (
    *("accuracy", "objective", "gradients", "objectives", "batches", "updates"),
    *("seconds", "build"),
)
NETWORKS = (
    *("iteration", "accuracy", "objective", "spent", "printed", "step_size"),
    *("seconds", "build"),
)
COLUMNS = {"convex": (*KEY, *CONVEX), "networks": (*KEY, *NETWORKS)}
TEXTS = ("line", "setting", "dataset", "model", "build")
BUILDS = "builds.json"
GIVEN = ["dataset", "model", "line", "epsilon", "setting"]
"""What a figure tells apart; folds and repeats are averaged."""


class Results:
    """The rows of one experiment in a folder; a fast version has a file of its own."""

    def __init__(self, folder: Path, wanted: Experiment, *, fast: bool = False) -> None:
        self.path = Path(folder) / f"{wanted.name}{'-fast' if fast else ''}.csv"
        self._columns = COLUMNS[wanted.kind]
        self._steps = wanted.steps if wanted.kind == "networks" else None

    def table(self) -> pd.DataFrame:
        """Return the rows of whole runs: what a kill cut short is left out."""
        rows = self._whole()
        return rows[self._finished(rows)].reset_index(drop=True)

    def _whole(self) -> pd.DataFrame:
        """Read every line that has its end."""
        whole = _whole_lines(self.path)
        if not whole:
            return pd.DataFrame(columns=list(self._columns))
        try:
            # As text first: Python's own reading of a number is exact.
            rows = pd.read_csv(io.BytesIO(whole), dtype=str, skip_blank_lines=False)
            self._check(rows, len(whole.splitlines()))
            numbers: dict[str, type] = {
                name: int if name in ("fold", "repeat") else float
                for name in self._columns
                if name not in TEXTS
            }
            return rows.assign(
                setting=[renamed(text, RELEASED_NAMES) for text in rows["setting"]],
                **{k: rows[k].map(kind).astype(kind) for k, kind in numbers.items()},
            )
        except (ValueError, OverflowError, ArmijoError) as error:
            raise ArmijoError(
                f"The results in {self.path} are damaged: {str(error).strip()}. "
                "Mend or remove what is wrong: runs without a line are made again."
            ) from error

    def _check(self, rows: pd.DataFrame, lines: int) -> None:
        """Refuse other columns than ours, and lines that lack a value or a row."""
        if tuple(rows.columns) != self._columns:
            raise ArmijoError(
                f"expected the columns {', '.join(self._columns)}, got "
                f"{', '.join(map(str, rows.columns))}"
            )
        lacking = rows[[*KEY, "accuracy", "seconds", "build"]].isna().any(axis=1)
        if lacking.any():
            raise ArmijoError(f"line {int(lacking.argmax()) + 2} lacks a value")
        if len(rows) != lines - 1 or not isinstance(rows.index, pd.RangeIndex):
            raise ArmijoError("a line holds a quote or a comma too many")

    def _finished(self, rows: pd.DataFrame) -> "pd.Series[bool]":
        """Say of each row whether its run has all rows: a curve ends at the last."""
        if self._steps is None or rows.empty:
            return pd.Series(True, index=rows.index)
        last = rows.groupby(list(KEY))["iteration"].transform("max")
        return last >= self._steps

    def done(self) -> set[tuple[Any, ...]]:
        """Return the keys of the runs that have their rows."""
        return set(self.table()[list(KEY)].itertuples(index=False, name=None))

    def append(self, run: RunKey, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the rows of a run in one write."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        if not self.path.exists():
            writer.writeheader()
        writer.writerows({**asdict(run), **row, "build": build()} for row in rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(text.getvalue().encode())

    def drop_partial(self) -> None:
        """Remove what a kill cut short, so that appended lines begin a line."""
        if not self.path.exists():
            return
        header, *lines = _whole_lines(self.path).splitlines(keepends=True) or [b""]
        finished = self._finished(self._whole())
        kept = header + b"".join(
            line for line, whole in zip(lines, finished, strict=True) if whole
        )
        if not kept:
            self.path.unlink()
        elif kept != self.path.read_bytes():
            replace_file(self.path, kept)

    def note_build(self) -> None:
        """Write down the versions of this build, once."""
        path = self.path.with_name(BUILDS)
        try:
            known = dict(json.loads(path.read_bytes()).items()) if path.exists() else {}
        except (ValueError, AttributeError, RecursionError) as error:
            raise ArmijoError(
                f"The file {path} is damaged: {error}. Remove it: the versions of the "
                "builds before this one are then not known any more."
            ) from error
        if build() not in known:
            path.parent.mkdir(parents=True, exist_ok=True)
            known[build()] = versions()
            replace_file(path, (json.dumps(known, indent=1) + "\n").encode())


def _whole_lines(path: Path) -> bytes:
    """Return the content up to the last end of a line, empty without a file."""
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]


@cache
def versions() -> dict[str, str]:
    """Return what made a result: versions, and a digest of the source."""
    digest = blake2b(digest_size=6)
    for root in (Path(str(files(name))) for name in ("armijo", "armijo_reproduction")):
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root).as_posix()
            digest.update(name.encode() + path.read_bytes())
    names = ("armijo", "numpy", "scipy", "torch", "dp-accounting")
    return {
        **{name: version(name) for name in names},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "source": digest.hexdigest(),
    }


@cache
def build() -> str:
    """Return a short name of the versions that are at work."""
    text = json.dumps(versions(), sort_keys=True)
    return blake2b(text.encode(), digest_size=4).hexdigest()


def at_the_end(table: pd.DataFrame) -> pd.DataFrame:
    """Return the last rows of curves; all rows where there are none."""
    if "iteration" not in table:
        return table
    return table[table["iteration"] == table["iteration"].max()]


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

    def of(self, **values: object) -> pd.DataFrame:
        """Return the rows that have some values, such as ``line="auto"``."""
        rows = self.table
        for column, value in values.items():
            rows = rows[rows[column] == value]
        return rows

    def run_counts(self) -> tuple[int, int, float]:
        """Return runs done, runs in all, and hours; curves count from their start."""
        runs = self.table.groupby(list(KEY))["seconds"].max()
        total = sum(1 for _ in self.experiment.run_keys())
        return len(runs), total, float(runs.sum()) / 3600


def by_accounting(parts: Sequence[Part], *, published: bool) -> list[Part]:
    """Return the series under the analysis as published, or else all others.

    Parts without results of such series are left out.
    """
    kept = []
    for part in parts:
        rows = part.table[part.table["line"].str.endswith(PUBLISHED) == published]
        series = part.experiment.series
        labels = tuple(s for s in series if s.label.endswith(PUBLISHED) == published)
        if len(rows):
            wanted = replace(part.experiment, series=labels)
            kept.append(Part(experiment=wanted, table=rows))
    return kept


def load_parts(folder: Path, *, fast: bool = False) -> tuple[Part, ...]:
    """Return all experiments that have results in a folder, in the paper's order."""
    parts = (
        Part(experiment=wanted, table=Results(folder, wanted, fast=fast).table())
        for wanted in (experiment(name, fast=fast) for name in experiment_names())
    )
    with_rows = tuple(part for part in parts if not part.table.empty)
    if not with_rows:
        raise ArmijoError(
            f"There are no results in {folder}; `python -m armijo_reproduction run "
            f"NAME --results {folder}{' --fast' if fast else ''}` makes some, and "
            "`python -m armijo_reproduction list` names them all."
        )
    return with_rows


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
        return text if math.isnan(self.error) else f"{text} ± {self.error:.{digits}f}"

    def signed(self) -> str:
        """Return a difference with its sign."""
        return f"+{self}" if self.value >= 0 else str(self)


def summarized(table: pd.DataFrame, column: str, by: Sequence[str]) -> pd.DataFrame:
    """Return ``value``, ``error`` and ``runs`` for every combination of ``by``."""
    runs = table.groupby(list(by))[column]
    folds = table.groupby([*by, "fold"])[column].mean().groupby(list(by))
    error = (folds.std() / np.sqrt(folds.count())).where(
        folds.count() > 1, runs.std() / np.sqrt(runs.count())
    )
    means = pd.DataFrame({"value": folds.mean(), "error": error, "runs": runs.count()})
    return means.reset_index()


def mean_of(rows: pd.DataFrame, column: str) -> Mean:
    """Return mean and standard error of a column over folds, or over repeats."""
    mean = summarized(rows.assign(all=0), column, ["all"]).iloc[0]
    return Mean(float(mean["value"]), float(mean["error"]), int(mean["runs"]))


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
    """Return the mean of first minus second on the folds that both have run."""
    ours, theirs = (rows.groupby("fold")[column].mean() for rows in (first, second))
    return paired_diff((ours - theirs).to_dict())
