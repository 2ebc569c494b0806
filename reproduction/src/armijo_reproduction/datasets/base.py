# SPDX-License-Identifier: Apache-2.0
"""A dataset in memory, and the public facts by which it is listed and checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from armijo import _validate
from armijo_reproduction.datasets.files import DataFile
from armijo.errors import DatasetError

LABEL = "label"
DenseRows: TypeAlias = NDArray[np.float64] | NDArray[np.float32]
Rows: TypeAlias = DenseRows | sparse.csr_array


class Table(NamedTuple):
    """Encoded rows: features in [0, 1], positions of the classes, names of features."""

    X: Rows
    y: NDArray[np.int64]
    feature_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Published rows, encoded for training.

    The ranges and categories used for the encoding are those of the published table
    and count as public here; for private rows they have to come from elsewhere.

    Parameters
    ----------
    name : str
        Name under which `armijo_reproduction.datasets.load` knows it.
    X : ndarray or scipy.sparse.csr_array of shape (n_rows, ...)
        Features in [0, 1], without a bias column: float64 for tables, float32 for
        images, which have the shape ``(channels, height, width)`` that torch expects.
    y : ndarray of shape (n_rows,)
        Positions in ``classes``.
    classes : tuple of str
        The classes, in order; of two, the second is the positive one.
    feature_names : tuple of str
        One name per column of ``X``; empty for images.
    n_rows_public : int
        The published number of rows.
    citation, terms : str
        Whom to cite, and what use the publisher allows.
    n_train : int, optional
        How many rows, the first ones, the publisher meant for training; see
        `published_split`. ``None`` if the publisher has no such split.
    """

    name: str
    X: Rows
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    feature_names: tuple[str, ...]
    n_rows_public: int
    citation: str
    terms: str
    n_train: int | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        _validate.at_least(1, n_rows_public=self.n_rows_public)
        if self.n_train is not None and not 0 < self.n_train < len(self.y):
            raise ValueError(
                f"Expected 0 < n_train < {len(self.y)}, the number of rows, got "
                f"{self.n_train!r}; leave rows on both sides of the split."
            )
        if self.X.shape[0] != len(self.y):
            raise ValueError(
                f"Expected one label per row, got {self.X.shape[0]} rows and "
                f"{len(self.y)} labels; give arrays of one length."
            )
        if self.feature_names and self.X.shape[1:] != (len(self.feature_names),):
            raise ValueError(
                f"Expected one column per feature name, got rows of shape "
                f"{self.X.shape[1:]} and {len(self.feature_names)} names; give a name "
                "to every column, or none at all."
            )

    @property
    def majority_rate(self) -> float:
        """The share of the most frequent class, which is what a constant guess gets."""
        counts = np.bincount(self.y, minlength=len(self.classes))
        return float(counts.max() / len(self.y))

    def published_split(self) -> tuple["Dataset", "Dataset"]:
        """Return the training and the test rows, as the publisher parted them.

        Dense rows are not copied: both parts are views of ``X``.

        Returns
        -------
        train, test : Dataset
            The first ``n_train`` rows, and the others.

        Raises
        ------
        ValueError
            If the publisher has no split; `armijo_reproduction.datasets.folds` makes one.
        """
        if self.n_train is None:
            raise ValueError(
                f"Expected a dataset that was published in two parts, got {self.name}; "
                "split it by armijo_reproduction.datasets.folds."
            )
        return self._part(slice(self.n_train)), self._part(slice(self.n_train, None))

    def _part(self, rows: slice) -> "Dataset":
        """Return some of the rows as a dataset of its own, without a split."""
        y = self.y[rows]
        return replace(self, X=self.X[rows], y=y, n_rows_public=len(y), n_train=None)


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """How the files of a dataset are made from those of another one.

    Parameters
    ----------
    source : str
        Name of the other dataset.
    cut : callable
        Takes the unpacked contents of its files, in their order, and returns those of
        the files to make. They are verified like a download.
    """

    source: str
    cut: Callable[[Sequence[bytes]], Sequence[bytes]]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of a dataset before a byte of it is read.

    Parameters
    ----------
    name, summary : str
        Its name and one line about it.
    files : tuple of DataFile
        The files it is made of; none if it is generated.
    build : callable
        Encodes the unpacked contents of the files, in their order, as a `Table`.
    classes : tuple of str
        The classes, in order.
    n_rows : int
        Number of encoded rows.
    row_shape : tuple of int
        Shape of one row of ``X``: ``(123,)`` for a table, ``(1, 28, 28)`` for an
        image.
    citation, terms : str
        Whom to cite, and what use the publisher allows.
    how_to_obtain : str, optional
        Set if the file may not be downloaded for the user: what the user can do.
    n_train : int, optional
        How many rows, the first ones, the publisher meant for training.
    derivation : Derivation, optional
        Set if nobody publishes the files, but they can be made from published ones.
    """

    name: str
    summary: str
    files: tuple[DataFile, ...]
    build: Callable[[Sequence[bytes]], Table]
    classes: tuple[str, ...]
    n_rows: int
    row_shape: tuple[int, ...]
    citation: str
    terms: str
    how_to_obtain: str | None = None
    n_train: int | None = None
    derivation: Derivation | None = None

    def dataset(self, contents: Sequence[bytes]) -> Dataset:
        """Encode the contents of the files and check that the result is as announced.

        Parameters
        ----------
        contents : sequence of bytes
            The unpacked files.

        Returns
        -------
        Dataset
            The encoded rows.

        Raises
        ------
        DatasetError
            If the files cannot be read as this dataset.
        """
        try:
            table = self.build(contents)
        except (ValueError, KeyError, OverflowError) as error:
            raise DatasetError(
                f"The file of {self.name} cannot be read as what it should be "
                f"({error}); replace it."
            ) from error
        expected = (self.n_rows, *self.row_shape)
        if table.X.shape != expected:
            raise DatasetError(
                f"Expected {self.name} to have shape {expected} without labels, got "
                f"{table.X.shape}; replace the file."
            )
        return Dataset(
            name=self.name,
            X=table.X,
            y=table.y,
            classes=self.classes,
            feature_names=table.feature_names,
            n_rows_public=self.n_rows,
            citation=self.citation,
            terms=self.terms,
            n_train=self.n_train,
        )


def dense(X: Rows) -> DenseRows:
    """Return the rows as a dense array; one that is dense is not copied."""
    return X if isinstance(X, np.ndarray) else X.toarray()


def to_frame(dataset: Dataset) -> pd.DataFrame:
    """Return a dataset as a table, to be written to a CSV or Parquet file.

    Parameters
    ----------
    dataset : Dataset
        A dataset with named features.

    Returns
    -------
    pandas.DataFrame
        One column per feature, whole numbers where all values are, and the column
        ``label`` with the classes.
    """
    _check_tabular(dataset)
    X = dense(dataset.X)
    whole = (X == np.rint(X)).all(axis=0)
    columns = {
        name: X[:, j].astype(np.int8) if whole[j] else X[:, j]
        for j, name in enumerate(dataset.feature_names)
    }
    return pd.DataFrame({**columns, LABEL: np.asarray(dataset.classes)[dataset.y]})


def to_schema(dataset: Dataset) -> dict[str, object]:
    """Return the public description of what `to_frame` gives, as plain values.

    Parameters
    ----------
    dataset : Dataset
        A dataset with named features.

    Returns
    -------
    dict
        As ``armijo.tables.Schema.from_dict`` takes it: every feature is a number
        between 0 and 1, so encoding the table by it gives ``dataset.X`` back.
    """
    _check_tabular(dataset)
    features = [numeric_column(name, 0.0, 1.0) for name in dataset.feature_names]
    return schema_document(
        [*features, label_column(LABEL, dataset.classes)],
        target=LABEL,
        n_rows=dataset.n_rows_public,
    )


def schema_document(
    columns: Sequence[dict[str, object]], *, target: str, n_rows: int
) -> dict[str, object]:
    """Return a schema as plain values; published data count as reviewed."""
    return {
        "version": 1,
        "reviewed": True,
        "target": target,
        "n_rows": n_rows,
        "columns": list(columns),
    }


def numeric_column(name: str, low: float, high: float) -> dict[str, object]:
    """Return the entry of a bounded number in a schema."""
    return {"name": name, "kind": "numeric", "low": low, "high": high}


def categorical_column(name: str, categories: Sequence[str]) -> dict[str, object]:
    """Return the entry of a category in a schema."""
    return {"name": name, "kind": "categorical", "categories": list(categories)}


def label_column(name: str, classes: Sequence[str]) -> dict[str, object]:
    """Return the entry of the target in a schema."""
    return {"name": name, "kind": "label", "classes": list(classes)}


def _check_tabular(dataset: Dataset) -> None:
    """Refuse what has no columns with names."""
    if not dataset.feature_names:
        raise ValueError(
            f"Expected a dataset with named features, got {dataset.name} without; "
            "only tables can be written as a table."
        )
