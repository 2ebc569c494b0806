# SPDX-License-Identifier: Apache-2.0
"""Datasets by name: what ``catalog.toml`` knows of them, and how they are loaded."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from armijo import _validate
from armijo_reproduction.datasets import encodings, files
from armijo_reproduction.datasets.encodings import Rows, Table
from armijo_reproduction.datasets.files import DataFile, DatasetError

# Part of the seed: rows generated from the same small seed must not decide the split.
_PURPOSE = 0x666F6C6473


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Published rows, encoded for training.

    ``X`` has features in [0, 1], without a bias column: float64 for tables, float32 of
    shape ``(channels, height, width)`` for images.  ``y`` are positions in ``classes``;
    of two, the second is the positive one.  The publisher meant the first ``n_train``
    rows for training.  The ranges and categories used for the encoding are those of the
    published table and count as public here; for private rows they have to come from
    elsewhere.
    """

    name: str
    X: Rows
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    feature_names: tuple[str, ...]
    n_train: int | None = None

    def published_split(self) -> tuple["Dataset", "Dataset"]:
        """Return views of the publisher's training and test rows."""
        if self.n_train is None:
            raise ValueError(
                f"Expected a dataset that was published in two parts, got {self.name}; "
                "split it by armijo_reproduction.datasets.folds."
            )
        cut = self.n_train
        train = replace(self, X=self.X[:cut], y=self.y[:cut], n_train=None)
        return train, replace(self, X=self.X[cut:], y=self.y[cut:], n_train=None)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of a dataset before a byte of it is read; see ``catalog.toml``."""

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
        """Encode the unpacked files and check that the result is as announced."""
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
        facts = {"name": self.name, "classes": self.classes, "n_train": self.n_train}
        return Dataset(**table._asdict(), **facts)  # type: ignore[arg-type]


def _entry(name: str, document: Mapping[str, Any]) -> Entry:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in document.items()
    }
    places = {key: values.pop(key, ()) for key in ("folders", "archives", "urls")}
    listed = tuple(
        DataFile(name=file, sha256=digest or None, **places)
        for file, digest in values.pop("files", {}).items()
    )
    build = getattr(encodings, values.pop("build"))
    return Entry(name=name, files=listed, build=build, **values)


def _catalog() -> dict[str, Entry]:
    """Read the catalog; an entry that is ``like`` another states what differs."""
    path = resources("armijo_reproduction.datasets") / "catalog.toml"
    documents = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        name: _entry(name, {**documents.get(document.pop("like", ""), {}), **document})
        for name, document in documents.items()
    }


DATASETS = _catalog()
"""Every dataset by its name."""


def _entry_of(name: str) -> Entry:
    _validate.choice(tuple(DATASETS), name=name)
    return DATASETS[name]


class FileStatus(NamedTuple):
    """A file that is verified, unverified (without a checksum), damaged or missing."""

    name: str
    path: Path | None
    state: str
    detail: str


def load(name: str, *, download: bool = True) -> Dataset:
    """Return a dataset, verified and encoded.

    Files that are not there are downloaded into the cache unless that is refused.

    >>> load("generated-census").X.shape
    (48842, 123)
    """
    entry = _entry_of(name)
    paths = [_path(entry, file, download=download) for file in entry.files]
    return entry.dataset(_contents(entry, paths))


def find(name: str) -> tuple[Path, ...] | None:
    """Return where the files of a dataset lie, or ``None`` if one is not there."""
    paths = tuple(files.locate(file) for file in _entry_of(name).files)
    return None if None in paths else paths  # type: ignore[return-value]


def available(name: str) -> bool:
    """Tell whether a dataset can be loaded without a download."""
    return find(name) is not None


def fetch(
    name: str, *, own_file: Path | None = None, progress: bool = False
) -> tuple[Path, ...]:
    """Make the files of a dataset available, from the publisher or from the user.

    A damaged file in the cache is replaced; one in a folder of the user is not touched.
    The user's own file is verified, and its content kept in the cache.
    """
    entry = _entry_of(name)
    if own_file is not None:
        _install(entry, Path(own_file))
    # All of them first: the archive of one file may be damaged in another.
    for status in [_status(file) for file in entry.files]:
        if status.state == "damaged" and status.path is not None:
            if any(files.in_cache(file, status.path) for file in entry.files):
                status.path.unlink(missing_ok=True)
    paths = [_path(entry, file, progress=progress) for file in entry.files]
    _contents(entry, paths)
    return tuple(paths)


def check(name: str) -> tuple[FileStatus, ...]:
    """Verify the files of a dataset that are there; nothing is downloaded."""
    states = tuple(_status(file) for file in _entry_of(name).files)
    files.unpacked_file.cache_clear()
    return states


def _status(file: DataFile) -> FileStatus:
    path, state, detail = files.locate(file), "missing", ""
    if path is not None:
        state = "unverified" if file.sha256 is None else "verified"
        try:
            files.read(file, path)
        except DatasetError as error:
            state, detail = "damaged", str(error)
    return FileStatus(file.name, path, state, detail)


def _path(
    entry: Entry, file: DataFile, *, download: bool = True, progress: bool = False
) -> Path:
    """Return where a file lies, after downloading it if need be."""
    path = files.locate(file)
    if path is not None:
        return path
    missing = f"Expected {file.name} of {entry.name} on this machine, found none"
    if entry.how_to_obtain is not None:
        raise DatasetError(f"{missing}. {entry.how_to_obtain}")
    if not download:
        raise DatasetError(
            f"{missing}; run `python -m armijo_reproduction datasets fetch "
            f"{entry.name}`, or set ARMIJO_DATA to the folder that has "
            f"{file.folders[0]}/{file.name}."
        )
    if entry.cut_from is None:
        return files.download(file, beside=entry.files, progress=progress)
    whole = _entry_of(entry.cut_from)
    paths = [_path(whole, part, progress=progress) for part in whole.files]
    parts = encodings.cifar_subset(_contents(whole, paths))
    stored = {
        part.name: files.store(part, content)
        for part, content in zip(entry.files, parts, strict=True)
    }
    return stored[file.name]


def _contents(entry: Entry, paths: Sequence[Path]) -> list[bytes]:
    pairs = zip(entry.files, paths, strict=True)
    try:
        return [files.read(file, path) for file, path in pairs]
    except DatasetError as error:
        raise DatasetError(
            f"{error} Remove it or put the right file there, and run again."
        ) from error
    finally:
        files.unpacked_file.cache_clear()


def _install(entry: Entry, own: Path) -> None:
    """Keep in the cache what a file of the user holds, one file or all of them."""
    if not entry.files:
        raise DatasetError(f"{entry.name} is generated and has no files; leave it out.")
    contents, failures = {}, []
    for file in entry.files:
        try:
            content = files.read(file, own)
            if file.sha256 is None:
                # Without a checksum, being readable as the dataset is all there is.
                entry.dataset([content])
            contents[file] = content
        except DatasetError as error:
            failures.append(str(error))
    # An archive has to be right for all that it holds.
    if failures and (not contents or entry.files[0].archives):
        raise DatasetError(f"{own} is no file of {entry.name}. {' '.join(failures)}")
    for file, content in contents.items():
        files.store(file, content)


def folds(
    n: int, k: int = 10, seed: int = 0
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Split ``n`` rows at random into ``k`` pairs of sorted training and test rows.

    The first ``n % k`` test sets have one row more than the others.  The order of the
    rows is that of one 64-bit number per row drawn from PCG64. NumPy promises that the
    raw stream of a bit generator never changes (NEP 19), which it does not for
    shuffles, and stored results depend on the split.

    >>> folds(5, k=2)[0]
    (array([1, 2]), array([0, 3, 4]))
    """
    _validate.at_least(2, n=n, k=k)
    _validate.at_least(0, seed=seed)
    if k > n:
        raise ValueError(f"Expected k <= n = {n}, got {k}; use fewer folds.")
    keys = np.random.PCG64([_PURPOSE, seed]).random_raw(n)
    order = np.argsort(keys, kind="stable").astype(np.int64)
    return [
        (np.setdiff1d(order, test), np.sort(test)) for test in np.array_split(order, k)
    ]
