# SPDX-License-Identifier: Apache-2.0
"""A dataset in memory, and what ``catalog.toml`` knows of it before a byte is read."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
from armijo_reproduction.datasets import images, tabular
from armijo_reproduction.datasets.files import DataFile, DatasetError
from armijo_reproduction.datasets.tabular import Rows, Table


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Published rows, encoded for training.

    The ranges and categories used for the encoding are those of the published table
    and count as public here; for private rows they have to come from elsewhere.

    Attributes
    ----------
    name : str
        Name under which `load` knows it.
    X : ndarray or scipy.sparse.csr_array of shape (n_rows, ...)
        Features in [0, 1], without a bias column: float64 for tables, float32 for
        images, which have the shape ``(channels, height, width)`` that torch expects.
    y : ndarray of shape (n_rows,)
        Positions in ``classes``.
    classes : tuple of str
        The classes, in order; of two, the second is the positive one.
    feature_names : tuple of str
        One name per column of ``X``; empty for images.
    n_train : int, optional
        How many rows, the first ones, the publisher meant for training; see
        `published_split`. ``None`` if the publisher has no such split.
    """

    name: str
    X: Rows
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    feature_names: tuple[str, ...]
    n_train: int | None = None

    @property
    def majority_rate(self) -> float:
        """The share of the most frequent class, which is what a constant guess gets."""
        counts = np.bincount(self.y, minlength=len(self.classes))
        return float(counts.max() / len(self.y))

    def published_split(self) -> tuple["Dataset", "Dataset"]:
        """Return the training and the test rows, as the publisher parted them.

        Dense rows are not copied: both parts are views of ``X``.

        Raises
        ------
        ValueError
            If the publisher has no split; `folds` makes one.
        """
        if self.n_train is None:
            raise ValueError(
                f"Expected a dataset that was published in two parts, got {self.name}; "
                "split it by armijo_reproduction.datasets.folds."
            )
        return self._part(slice(self.n_train)), self._part(slice(self.n_train, None))

    def _part(self, rows: slice) -> "Dataset":
        """Return some of the rows as a dataset of its own, without a split."""
        return replace(self, X=self.X[rows], y=self.y[rows], n_train=None)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of a dataset before a byte of it is read; see ``catalog.toml``.

    Attributes
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
    cut_from : str, optional
        The dataset its files are cut from, if nobody publishes them.
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
    cut_from: str | None = None

    def dataset(self, contents: Sequence[bytes]) -> Dataset:
        """Encode the unpacked files and check that the result is as announced.

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
            n_train=self.n_train,
        )


def _entry(name: str, document: Mapping[str, Any]) -> Entry:
    """Turn one table of the catalog into an entry."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in document.items()
    }
    places = {key: values.pop(key, ()) for key in ("folders", "archives", "urls")}
    module, _, function = values.pop("build").partition(".")
    build = getattr({"images": images, "tabular": tabular}[module], function)
    listed = tuple(
        DataFile(name=file, sha256=digest or None, **places)
        for file, digest in values.pop("files", {}).items()
    )
    return Entry(name=name, files=listed, build=build, **values)


def _catalog() -> dict[str, Entry]:
    """Read the catalog; an entry that is ``like`` another states what differs."""
    path = files("armijo_reproduction.datasets") / "catalog.toml"
    documents = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        name: _entry(name, {**documents.get(document.pop("like", ""), {}), **document})
        for name, document in documents.items()
    }


DATASETS = _catalog()
"""Every dataset by its name."""


def entry_of(name: str) -> Entry:
    """Return what is known of a dataset."""
    _validate.choice(tuple(DATASETS), name=name)
    return DATASETS[name]
