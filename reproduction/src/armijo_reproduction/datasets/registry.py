# SPDX-License-Identifier: Apache-2.0
"""Load a dataset by name, or find, fetch and check its files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scipy.sparse import csr_array, issparse

from armijo import _validate
from armijo_reproduction.datasets import cache
from armijo_reproduction.datasets.base import Dataset, Derivation, Entry, dense
from armijo_reproduction.datasets.catalog import DATASETS
from armijo_reproduction.datasets.download import Progress
from armijo_reproduction.datasets.files import DataFile
from armijo.errors import DatasetError


@dataclass(frozen=True, kw_only=True)
class FileStatus:
    """What `check` found of one file.

    Parameters
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


def load(
    name: str,
    *,
    sparse: bool = False,
    download: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """Return a dataset, verified and encoded.

    Parameters
    ----------
    name : str
        A key of ``DATASETS``.
    sparse : bool, default=False
        Whether ``X`` shall be a CSR array; images cannot be had so.
    download : bool, default=True
        Whether files that are not there may be downloaded into the cache.
    progress : callable, optional
        Called as ``progress(done, total)`` while a file is downloaded.

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
    entry = _entry(name)
    if sparse and len(entry.row_shape) != 1:
        raise ValueError(
            f"Expected sparse=False for {name}, whose rows are images, got True; load "
            "it dense."
        )
    paths = [_path(entry, file, download, progress) for file in entry.files]
    dataset = entry.dataset(_contents(entry, paths))
    if issparse(dataset.X) == sparse:
        return dataset
    X = csr_array(dataset.X) if sparse else dense(dataset.X)
    return replace(dataset, X=X)


def find(name: str) -> tuple[Path, ...] | None:
    """Return where the files of a dataset lie, or ``None`` if one is not there.

    Parameters
    ----------
    name : str
        A key of ``DATASETS``.
    """
    paths = [cache.locate(file) for file in _entry(name).files]
    found = tuple(path for path in paths if path is not None)
    return found if len(found) == len(paths) else None


def available(name: str) -> bool:
    """Tell whether a dataset can be loaded without a download.

    Parameters
    ----------
    name : str
        A key of ``DATASETS``.

    Examples
    --------
    >>> available("generated-census")
    True
    """
    return find(name) is not None


def fetch(
    name: str,
    *,
    own_file: Path | None = None,
    progress: Progress | None = None,
    started: Callable[[str], None] | None = None,
) -> tuple[Path, ...]:
    """Make the files of a dataset available, from the publisher or from the user.

    A damaged file in the cache is replaced; one in a folder of the user is not touched.

    Parameters
    ----------
    name : str
        A key of ``DATASETS``.
    own_file : pathlib.Path, optional
        A file that the user has; it is verified and copied into the cache.
    progress : callable, optional
        Called as ``progress(done, total)`` while a file is downloaded.
    started : callable, optional
        Called with the name of every file before it is looked for.

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
    entry = _entry(name)
    if own_file is not None:
        _install(entry, Path(own_file))
    reader = cache.Reader()
    # All of them first: the archive of one file may be damaged in another.
    for file in entry.files:
        cache.discard_damaged(file, reader=reader)
    paths = []
    for file in entry.files:
        if started is not None:
            started(file.name)
        paths.append(_path(entry, file, True, progress))
    _contents(entry, paths, reader)
    return tuple(paths)


def check(name: str) -> tuple[FileStatus, ...]:
    """Verify the files of a dataset that are there; nothing is downloaded.

    Parameters
    ----------
    name : str
        A key of ``DATASETS``.

    Returns
    -------
    tuple of FileStatus
        One for every file.
    """
    reader = cache.Reader()
    return tuple(_status(file, reader) for file in _entry(name).files)


def _status(file: DataFile, reader: cache.Reader) -> FileStatus:
    """Look for one file and verify it."""
    path = cache.locate(file)
    if path is None:
        return FileStatus(name=file.name, path=None, state="missing")
    try:
        reader.content(file, path)
    except DatasetError as error:
        return FileStatus(name=file.name, path=path, state="damaged", detail=str(error))
    state = "unverified" if file.sha256 is None else "verified"
    return FileStatus(name=file.name, path=path, state=state)


def _entry(name: str) -> Entry:
    """Return what is known of a dataset."""
    _validate.choice(tuple(DATASETS), name=name)
    return DATASETS[name]


def _path(
    entry: Entry, file: DataFile, download: bool, progress: Progress | None
) -> Path:
    """Return where a file lies, after downloading it if need be."""
    path = cache.locate(file)
    if path is not None:
        return path
    if entry.how_to_obtain is not None:
        raise DatasetError(
            f"Expected {file.name} of {entry.name} on this machine, found none. "
            f"{entry.how_to_obtain}"
        )
    if not download:
        raise DatasetError(
            f"Expected {file.name} of {entry.name} on this machine, found none; run "
            f"`armijo datasets fetch {entry.name}`, or set ARMIJO_DATA to the folder "
            f"that has {file.folders[0]}/{file.name}."
        )
    if entry.derivation is not None:
        return _derived(entry, entry.derivation, file, progress)
    return cache.download_file(file, beside=entry.files, progress=progress)


def _derived(
    entry: Entry, derivation: Derivation, file: DataFile, progress: Progress | None
) -> Path:
    """Make the files of a dataset from those it is cut from; return where one lies."""
    source = _entry(derivation.source)
    paths = [_path(source, part, True, progress) for part in source.files]
    made = derivation.cut(_contents(source, paths))
    stored = {
        part.name: cache.store(part, content)
        for part, content in zip(entry.files, made, strict=True)
    }
    return stored[file.name]


def _contents(
    entry: Entry, paths: Sequence[Path], reader: cache.Reader | None = None
) -> list[bytes]:
    """Return the contents of the files that were found."""
    reader = reader or cache.Reader()
    try:
        return [
            reader.content(file, path)
            for file, path in zip(entry.files, paths, strict=True)
        ]
    except DatasetError as error:
        raise DatasetError(
            f"{error} Remove it or put the right file there, and run again."
        ) from error


def _install(entry: Entry, own: Path) -> None:
    """Copy a file of the user to the place of the file that it is."""
    failures = []
    for file in entry.files:
        try:
            content = cache.read_content(file, own)
            if file.sha256 is None:
                # Without a checksum, being readable as the dataset is all there is.
                entry.dataset([content])
        except DatasetError as error:
            failures.append(str(error))
        else:
            cache.install(file, own, beside=entry.files)
            return
    raise DatasetError(
        f"{own} is no file of {entry.name}. {' '.join(failures)}"
        if failures
        else f"{entry.name} is generated and has no files; leave the file out."
    )
