# SPDX-License-Identifier: Apache-2.0
"""Published files as rows: tables in the published encodings, images as torch has them.

The convex datasets are encoded to the dimensions of Chen and Lee (2020), which count a
constant bias column that is left to the model here.  Images are float32 in [0, 1],
channels first.  Their formats are plain bytes: the idx files of MNIST, and the binary
version of CIFAR-10.  Its python version is a pickle, and unpickling runs what the file
says, so a download would have to be trusted before it could be looked at; it is not
supported.
"""

import io
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

from armijo.cli._census import generated_census
from armijo_reproduction.datasets.files import DatasetError

ADULT_FEATURES = 123
N_CLASSES = 10
CIFAR_SHAPE = (3, 32, 32)
SUBSET_TRAIN_PER_CLASS = 1_000
SUBSET_TEST_PER_CLASS = 200
Rows: TypeAlias = NDArray[np.float64] | NDArray[np.float32]


class Table(NamedTuple):
    """Encoded rows: features in [0, 1], positions of the classes, names of features."""

    X: Rows
    y: NDArray[np.int64]
    feature_names: tuple[str, ...]


_BANK_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_BANK_LEVELS = {
    "job": "admin. unemployed management housemaid entrepreneur student blue-collar "
    "self-employed retired technician services",
    "marital": "single married",
    "education": "primary secondary tertiary",
    "contact": "telephone cellular",
    "poutcome": "other failure success",
}
_ACS_CODES = ("MSP", "HISP", "RAC1P", "HOUSING_TYPE", "OWN_RENT", "INDP_CAT")
_ACS_ORDERED = ("SEX", "EDU", "DVET", "DREM", "DPHY", "DEYE", "DEAR")
_ACS_COLUMNS = ("SEX", *_ACS_CODES, "EDU", "DVET", "DREM", "DPHY", "DEYE", "DEAR")
_ACS_NUMBERS = {"AGEP": "0", "NOC": "0", "NPF": "1", "DENSITY": "0"}
_CIFAR_RECORD = 1 + math.prod(CIFAR_SHAPE)


def generated(contents: Sequence[bytes]) -> Table:
    """Build the synthetic census of the demo; there are no files to read."""
    return Table(*generated_census())


def adult(contents: Sequence[bytes]) -> Table:
    """Encode Adult from the LIBSVM files ``a9a`` and ``a9a.t``.

    The number of features is fixed, since ``a9a.t`` never uses the last one. They are
    named by their position in the files, which count from 1.
    """
    read = [
        load_svmlight_file(
            io.BytesIO(text), n_features=ADULT_FEATURES, zero_based=False
        )
        for text in contents
    ]
    names = tuple(f"x{j}" for j in range(1, ADULT_FEATURES + 1))
    X = np.concatenate([rows.toarray() for rows, _ in read])
    y = np.concatenate([labels for _, labels in read])
    return Table(X, (y > 0).astype(np.int64), names)


def bank_matrix(content: bytes) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Encode ``bank-full.csv`` as whole numbers, with the label in the last column.

    This is the encoding of Lee and Kifer (2018): one level of every category is a row
    of zeros, day and month become ``30 * month + day``, and ``pdays`` becomes an
    indicator of an earlier contact and the number of days, 0 without one.
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
    levels = _BANK_LEVELS[name].split()
    return {f"{name}={level}": frame[name] == level for level in levels}


def bank(contents: Sequence[bytes]) -> Table:
    """Encode Bank Marketing: `bank_matrix` with every column scaled to [0, 1]."""
    matrix, names = bank_matrix(contents[0])
    return Table(_min_max(matrix[:, :-1]), matrix[:, -1].astype(np.int64), names)


def encoded_census(contents: Sequence[bytes]) -> Table:
    """Read a census table in the encoding of Lee and Kifer (2018), label last.

    The release names no columns, so they are called by their position from 0.
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


def acs(
    contents: Sequence[bytes], *, one_column: Sequence[str] = _ACS_ORDERED
) -> Table:
    """Encode the national excerpts of the American Community Survey in 57 columns.

    Kept are persons of 16 years or more with an income; the label says whether it is
    above the median of the kept rows. Two-valued and ordered codes take one column; "N"
    means that a question does not apply.
    """
    tables = (
        pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
        for content in contents
    )
    frame = pd.concat(tables, ignore_index=True)
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


def acs_one_hot(contents: Sequence[bytes]) -> Table:
    """Encode the same rows as `acs` with an indicator per level, in 79 columns."""
    return acs(contents, one_column=())


def _numbers(series: pd.Series, substitute: str) -> NDArray[np.float64]:
    return series.where(series != "N", substitute).to_numpy(dtype=np.float64)


def _indicators(series: pd.Series) -> dict[str, NDArray[np.float64]]:
    """Return one indicator per level that occurs, "N" last."""
    levels = sorted(series.unique(), key=lambda text: (text == "N", len(text), text))
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


def mnist(contents: Sequence[bytes]) -> Table:
    """Read MNIST, or a dataset in its format: images and labels, first for training."""
    parts = [idx(content) for content in contents]
    images, labels = parts[::2], parts[1::2]
    for pixels, digits in zip(images, labels, strict=True):
        if pixels.ndim != 3 or digits.ndim != 1 or len(pixels) != len(digits):
            raise DatasetError(
                "Expected images of two dimensions and one label for each, got arrays "
                f"of shapes {pixels.shape} and {digits.shape}."
            )
    pixels = np.concatenate(images)[:, np.newaxis]
    return _images(pixels, np.concatenate(labels))


def idx(content: bytes) -> NDArray[np.uint8]:
    """Return a read-only view of an array of bytes in the idx format.

    The header is two zeros, the type of the values, the number of dimensions, and each
    dimension as a big-endian number of 32 bits; the values follow in row-major order
    (LeCun, Cortes and Burges 1998).

    >>> idx(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9]))
    array([[7, 8, 9]], dtype=uint8)
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, 8]):
        raise DatasetError(
            "Expected an idx file of unsigned bytes, which starts with 00 00 08, got "
            f"{content[:4].hex(' ') or 'nothing'}."
        )
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DatasetError(f"Expected a header of {start} bytes, got {len(content)}.")
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise DatasetError(
            f"Expected {start + math.prod(shape)} bytes for an idx file of shape "
            f"{tuple(shape)}, got {len(content)}."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def cifar(contents: Sequence[bytes]) -> Table:
    """Read CIFAR-10, or a part of it, from the batches of its binary version.

    Records are a label and the red, green and blue pixels, each in row-major order
    (Krizhevsky 2009).
    """
    records = np.concatenate([_cifar_records(content) for content in contents])
    return _images(records[:, 1:].reshape(-1, *CIFAR_SHAPE), records[:, 0])


def cifar_subset(contents: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Cut the first training and test records of every class from the batches.

    The batches are those for training, and the one for testing last.
    """
    *train, test = (_cifar_records(content) for content in contents)
    return (
        _first_of_each(np.concatenate(train), SUBSET_TRAIN_PER_CLASS),
        _first_of_each(test, SUBSET_TEST_PER_CLASS),
    )


def _first_of_each(records: NDArray[np.uint8], count: int) -> bytes:
    """Return the first records of every class, in the order they have."""
    firsts = [np.flatnonzero(records[:, 0] == c)[:count] for c in range(N_CLASSES)]
    return records[np.sort(np.concatenate(firsts))].tobytes()


def _cifar_records(content: bytes) -> NDArray[np.uint8]:
    """Return one row per record, the label first."""
    if not content or len(content) % _CIFAR_RECORD:
        raise DatasetError(
            f"Expected records of {_CIFAR_RECORD} bytes, got {len(content)} bytes."
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, _CIFAR_RECORD)


def _images(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Table:
    """Scale pixels to [0, 1] and check the labels."""
    if labels.max(initial=0) >= N_CLASSES:
        raise DatasetError(
            f"Expected labels from 0 to {N_CLASSES - 1}, got {labels.max()}."
        )
    X = pixels.astype(np.float32, order="C")
    X /= 255
    return Table(X, labels.astype(np.int64), ())
