# SPDX-License-Identifier: Apache-2.0
"""The convex datasets of Chen and Lee (2020), encoded to the dimensions they print.

Their dimensions count a constant bias column, which is left to the model here.
"""

import io
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from armijo.cli._census import generated_census
from armijo_reproduction.datasets.files import DatasetError

ADULT_FEATURES = 123
Rows: TypeAlias = NDArray[np.float64] | NDArray[np.float32] | sparse.csr_array


class Table(NamedTuple):
    """Encoded rows: features in [0, 1], positions of the classes, names of features."""

    X: Rows
    y: NDArray[np.int64]
    feature_names: tuple[str, ...]


_BANK_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_BANK_LEVELS = {
    "job": (
        "admin.",
        "unemployed",
        "management",
        "housemaid",
        "entrepreneur",
        "student",
        "blue-collar",
        "self-employed",
        "retired",
        "technician",
        "services",
    ),
    "marital": ("single", "married"),
    "education": ("primary", "secondary", "tertiary"),
    "contact": ("telephone", "cellular"),
    "poutcome": ("other", "failure", "success"),
}

_ACS_CODES = ("MSP", "HISP", "RAC1P", "HOUSING_TYPE", "OWN_RENT", "INDP_CAT")
_ACS_ORDERED = ("SEX", "EDU", "DVET", "DREM", "DPHY", "DEYE", "DEAR")
_ACS_COLUMNS = ("SEX", *_ACS_CODES, "EDU", "DVET", "DREM", "DPHY", "DEYE", "DEAR")
_ACS_NUMBERS = {"AGEP": "0", "NOC": "0", "NPF": "1", "DENSITY": "0"}


def generated(contents: Sequence[bytes]) -> Table:
    """Build the synthetic census of the demo; there are no files to read."""
    return Table(*generated_census())


def adult(contents: Sequence[bytes]) -> Table:
    """Encode Adult from the binarized files ``a9a`` and ``a9a.t``, as CSR.

    The number of features is fixed, since ``a9a.t`` never uses the last one. They are
    named by their position in the files, which count from 1.

    Parameters
    ----------
    contents : sequence of bytes
        Training and test file, in the text format of LIBSVM.
    """
    X, y = zip(*(_libsvm(content) for content in contents), strict=True)
    names = tuple(f"x{j}" for j in range(1, ADULT_FEATURES + 1))
    rows = sparse.csr_array(sparse.vstack(X, format="csr"))
    return Table(rows, (np.concatenate(y) > 0).astype(np.int64), names)


def _libsvm(content: bytes) -> tuple[sparse.csr_matrix, NDArray[np.float64]]:
    """Read lines of the form ``label index:value index:value``."""
    return load_svmlight_file(
        io.BytesIO(content), n_features=ADULT_FEATURES, zero_based=False
    )


def bank_matrix(content: bytes) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Encode ``bank-full.csv`` as whole numbers, with the label in the last column.

    This is the encoding of Lee and Kifer (2018): one level of every category is a row
    of zeros, day and month become ``30 * month + day``, and ``pdays`` becomes an
    indicator of an earlier contact and the number of days, 0 without one.

    Parameters
    ----------
    content : bytes
        The text of the table, with semicolons between the cells.

    Returns
    -------
    matrix : ndarray of shape (n_rows, 33)
        Unscaled features and, last, 1 for "yes".
    feature_names : tuple of str
        Names of the 32 features.
    """
    frame = pd.read_csv(io.BytesIO(content), sep=";")
    month = frame["month"].map({name: i for i, name in enumerate(_BANK_MONTHS, 1)})
    earlier = frame["pdays"] != -1
    columns = {
        "age": frame["age"],
        **_bank_indicators(frame, "job"),
        **_bank_indicators(frame, "marital"),
        **_bank_indicators(frame, "education"),
        "default": frame["default"] == "yes",
        "balance": frame["balance"],
        "housing": frame["housing"] == "yes",
        "loan": frame["loan"] == "yes",
        **_bank_indicators(frame, "contact"),
        "date": 30 * month + frame["day"],
        "duration": frame["duration"],
        "campaign": frame["campaign"],
        "contacted_before": earlier,
        "pdays": frame["pdays"].where(earlier, 0),
        "previous": frame["previous"],
        **_bank_indicators(frame, "poutcome"),
    }
    values = [*columns.values(), frame["y"] == "yes"]
    matrix = np.column_stack([np.asarray(v, dtype=np.int32) for v in values])
    return matrix, tuple(columns)


def _bank_indicators(frame: pd.DataFrame, name: str) -> dict[str, pd.Series]:
    """Return one indicator per listed level; the level left out is all zeros."""
    return {f"{name}={level}": frame[name] == level for level in _BANK_LEVELS[name]}


def bank(contents: Sequence[bytes]) -> Table:
    """Encode Bank Marketing: `bank_matrix` with every column scaled to [0, 1].

    Parameters
    ----------
    contents : sequence of bytes
        The text of ``bank-full.csv``.
    """
    matrix, names = bank_matrix(contents[0])
    return Table(_min_max(matrix[:, :-1]), matrix[:, -1].astype(np.int64), names)


def encoded_census(contents: Sequence[bytes]) -> Table:
    """Read a census table in the encoding of Lee and Kifer (2018), label last.

    The release names no columns, so they are called by their position from 0.

    Parameters
    ----------
    contents : sequence of bytes
        Numbers with spaces between them, one row per line, without a header.
    """
    frame = pd.read_csv(io.BytesIO(contents[0]), sep=r"\s+", header=None)
    values = frame.to_numpy(dtype=np.float64)
    labels = values[:, -1]
    if not np.isfinite(values).all() or not np.isin(labels, (0, 1)).all():
        raise DatasetError(
            "Expected rows of numbers that end in a label 0 or 1, got others."
        )
    names = tuple(f"c{j}" for j in range(values.shape[1] - 1))
    return Table(_min_max(values[:, :-1]), labels.astype(np.int64), names)


def acs(contents: Sequence[bytes]) -> Table:
    """Encode the national excerpts of the American Community Survey in 57 columns.

    Kept are persons of 16 years or more with an income; the label says whether it is
    above the median of the kept rows. Two-valued and ordered codes take one column.

    Parameters
    ----------
    contents : sequence of bytes
        The tables of 2018 and 2019.
    """
    return _acs(contents, one_column=_ACS_ORDERED)


def acs_one_hot(contents: Sequence[bytes]) -> Table:
    """Encode the same rows as `acs` with an indicator per level, in 79 columns.

    Parameters
    ----------
    contents : sequence of bytes
        The tables of 2018 and 2019.
    """
    return _acs(contents, one_column=())


def _acs(contents: Sequence[bytes], *, one_column: tuple[str, ...]) -> Table:
    """Select the rows and encode them; "N" means that a question does not apply."""
    frame = pd.concat(
        [
            pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
            for content in contents
        ],
        ignore_index=True,
    )
    income = pd.to_numeric(frame["PINCP"].where(frame["PINCP"] != "N", "0"))
    kept = (frame["AGEP"].astype(int) >= 16) & (income > 0)
    frame, income = frame[kept], income[kept].to_numpy()
    columns: dict[str, NDArray[np.float64]] = {}
    for name in _ACS_COLUMNS:
        if name in one_column:
            columns[name] = _numbers(frame[name], "0")
        else:
            columns |= _indicators(frame[name])
    for name, substitute in _ACS_NUMBERS.items():
        columns[name] = _numbers(frame[name], substitute)
    X = _min_max(np.column_stack(list(columns.values())))
    return Table(X, (income > np.median(income)).astype(np.int64), tuple(columns))


def _numbers(series: pd.Series, substitute: str) -> NDArray[np.float64]:
    """Return a column as numbers, with a substitute for "N"."""
    return series.where(series != "N", substitute).to_numpy(dtype=np.float64)


def _indicators(series: pd.Series) -> dict[str, NDArray[np.float64]]:
    """Return one indicator per level that occurs, "N" last."""
    levels = sorted(
        series.unique(), key=lambda level: (level == "N", len(level), level)
    )
    return {
        f"{series.name}={level}": (series == level).to_numpy(dtype=np.float64)
        for level in levels
    }


def _min_max(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Scale every column to [0, 1]; a constant column becomes zero."""
    X = np.array(values, dtype=np.float64, order="C")
    low = X.min(axis=0)
    spread = X.max(axis=0) - low
    X -= low
    X /= np.where(spread > 0, spread, 1.0)
    return X
