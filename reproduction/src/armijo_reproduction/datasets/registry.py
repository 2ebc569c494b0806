# SPDX-License-Identifier: Apache-2.0
"""Load a dataset by name, or find, fetch and check its files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array, issparse

from armijo_reproduction.datasets import files, images
from armijo_reproduction.datasets.catalog import Dataset, Entry, entry_of
from armijo_reproduction.datasets.files import DataFile, DatasetError


@dataclass(frozen=True, kw_only=True)
class FileStatus:
    """What `check` found of one file.

    Attributes
    ----------
    name : str
        Name of the unpacked file.
    path : pathlib.Path or None
        Where it lies.
    state : {"verified", "unverified", "damaged", "missing"}
        Unverified is a file of the right shape of which no checksum is known.
    detail : str
        What is wrong with a damaged file.
    """

    name: str
    path: Path | None
    state: str
    detail: str = ""


def load(name: str, *, sparse: bool = False, download: bool = True) -> Dataset:
    """Return a dataset, verified and encoded.

    Parameters
    ----------
    name : str
        A key of ``DATASETS``.
    sparse : bool, default=False
        Whether ``X`` shall be a CSR array; images cannot be had so.
    download : bool, default=True
        Whether files that are not there may be downloaded into the cache.

    Returns
    -------
    Dataset
        Features in [0, 1] and the positions of the classes; all rows, of which
        `Dataset.published_split` gives the publisher's two parts.

    Raises
    ------
    DatasetError
        If a file is missing, damaged, or not to be had.
    ValueError
        If there is no such dataset, or images are asked for as a sparse table.

    Examples
    --------
    >>> load("generated-census").X.shape
    (48842, 123)
    """
    entry = entry_of(name)
    if sparse and len(entry.row_shape) != 1:
        raise ValueError(
            f"Expected sparse=False for {name}, whose rows are images, got True; load "
            "it dense."
        )
    paths = [_path(entry, file, download=download) for file in entry.files]
    dataset = entry.dataset(_contents(entry, paths))
    if sparse and not issparse(dataset.X):
        return replace(dataset, X=csr_array(dataset.X))
    if not sparse and not isinstance(dataset.X, np.ndarray):
        return replace(dataset, X=dataset.X.toarray())
    return dataset


def find(name: str) -> tuple[Path, ...] | None:
    """Return where the files of a dataset lie, or ``None`` if one is not there."""
    paths = [files.locate(file) for file in entry_of(name).files]
    known = tuple(path for path in paths if path is not None)
    return known if len(known) == len(paths) else None


def available(name: str) -> bool:
    """Tell whether a dataset can be loaded without a download.

    >>> available("generated-census")
    True
    """
    return find(name) is not None


def fetch(
    name: str, *, own_file: Path | None = None, progress: bool = False
) -> tuple[Path, ...]:
    """Make the files of a dataset available, from the publisher or from the user.

    A damaged file in the cache is replaced; one in a folder of the user is not touched.

    Parameters
    ----------
    name : str
        A key of ``DATASETS``.
    own_file : pathlib.Path, optional
        A file that the user has; it is verified and its content kept in the cache.
    progress : bool
        Whether to show a bar for every download on standard error.

    Returns
    -------
    tuple of pathlib.Path
        Where the verified files lie.

    Raises
    ------
    DatasetError
        If a file is not to be had; for files that may not be redistributed, the
        message says how to obtain them.
    """
    entry = entry_of(name)
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
    found = tuple(_status(file) for file in entry_of(name).files)
    files.forget()
    return found


def _status(file: DataFile) -> FileStatus:
    """Look for one file and verify it."""
    path = files.locate(file)
    if path is None:
        return FileStatus(name=file.name, path=None, state="missing")
    try:
        files.read(file, path)
    except DatasetError as error:
        return FileStatus(name=file.name, path=path, state="damaged", detail=str(error))
    state = "unverified" if file.sha256 is None else "verified"
    return FileStatus(name=file.name, path=path, state=state)


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
    whole = entry_of(entry.cut_from)
    paths = [_path(whole, part, progress=progress) for part in whole.files]
    parts = images.cifar_subset(_contents(whole, paths))
    stored = {
        part.name: files.store(part, content)
        for part, content in zip(entry.files, parts, strict=True)
    }
    return stored[file.name]


def _contents(entry: Entry, paths: Sequence[Path]) -> list[bytes]:
    """Return the contents of the files that were found."""
    pairs = zip(entry.files, paths, strict=True)
    try:
        return [files.read(file, path) for file, path in pairs]
    except DatasetError as error:
        raise DatasetError(
            f"{error} Remove it or put the right file there, and run again."
        ) from error
    finally:
        files.forget()


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
