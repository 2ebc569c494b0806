# SPDX-License-Identifier: Apache-2.0
"""Where a file is looked for, and how it gets into the cache whole or not at all.

The order is: the folder ``ARMIJO_DATA``; a folder ``data`` or ``shared/data`` in the
current directory or above it; the cache; the publisher.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from armijo_reproduction.datasets.download import Progress, SourceError, download
from armijo_reproduction.datasets.files import DataFile, Source, without_gzip
from armijo.errors import DatasetError

_LOCK_SECONDS = 600.0
_BESIDE = ("data", os.path.join("shared", "data"))


def cache_root() -> Path:
    """Return the folder downloads are kept in; it need not exist yet.

    It is ``$ARMIJO_CACHE``, else ``$XDG_CACHE_HOME/armijo``, else ``~/.cache/armijo``.
    """
    if chosen := os.environ.get("ARMIJO_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification has relative paths ignored.
    if os.path.isabs(base):
        return Path(base) / "armijo"
    try:
        return Path.home() / ".cache" / "armijo"
    except RuntimeError as error:
        raise DatasetError(
            "Expected a home directory for the cache of datasets, got none; set "
            "ARMIJO_CACHE to a folder."
        ) from error


def search_roots() -> tuple[Path, ...]:
    """Return the folders with datasets to look through, in order, the cache last.

    Raises
    ------
    DatasetError
        If ``ARMIJO_DATA`` is set to something that is no folder.
    """
    roots = []
    if chosen := os.environ.get("ARMIJO_DATA"):
        root = Path(chosen).expanduser()
        if not root.is_dir():
            raise DatasetError(
                f"Expected ARMIJO_DATA to name a folder, got {chosen!r}, which is "
                "none; correct or unset it."
            )
        roots.append(root)
    # The current directory can have been removed under a running process.
    with suppress(OSError):
        here = Path.cwd()
        roots += [top / name for top in (here, *here.parents) for name in _BESIDE]
    return (*roots, cache_root())


def locate(file: DataFile) -> Path | None:
    """Return the first place where the file lies, or ``None``; nothing is read."""
    for root in search_roots():
        for folder in file.folders:
            for name in file.disk_names:
                path = root / folder / name
                # Unlike Path.is_file, this takes a forbidden folder as "not there".
                if os.path.isfile(path):
                    return path
    return None


class Reader:
    """Reads files one after the other; an archive of several is unpacked once."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._raw = b""

    def content(self, file: DataFile, path: Path) -> bytes:
        """Return the unpacked, verified content of a file on disk.

        Raises
        ------
        DatasetError
            If it cannot be read or is not the file it should be.
        """
        key = _identity(path)
        if key != self._key:
            self._raw = without_gzip(_read(path))
            self._key = key
        return file.content(self._raw, where=path)

    def verify_others(
        self, file: DataFile, beside: Sequence[DataFile], path: Path, name: str
    ) -> None:
        """Verify the other files that are looked for in the archive of this name."""
        for other in beside:
            if other != file and name in other.archives:
                self.content(other, path)


def read_content(file: DataFile, path: Path) -> bytes:
    """Return the unpacked, verified content of one file on disk.

    Raises
    ------
    DatasetError
        If it cannot be read or is not the file it should be.
    """
    return Reader().content(file, path)


def discard_damaged(file: DataFile, *, reader: Reader | None = None) -> None:
    """Remove what lies in the cache in place of the file, and nothing elsewhere.

    Parameters
    ----------
    file : DataFile
        The file; if what `locate` finds is right or not in the cache, it stays.
    reader : Reader, optional
        Where an archive of several files is kept unpacked.
    """
    path = locate(file)
    if path is None or path.parent != _cache_folder(file):
        return
    try:
        (reader or Reader()).content(file, path)
    except DatasetError:
        try:
            path.unlink()
        except OSError as error:
            raise _unwritable(path.parent, error) from error


def download_file(
    file: DataFile,
    *,
    beside: Sequence[DataFile] = (),
    progress: Progress | None = None,
) -> Path:
    """Download a file into the cache, verify it, and only then give it its name.

    Parameters
    ----------
    file : DataFile
        The file.
    beside : sequence of DataFile
        Files of the same dataset. Those that come in the same archive are verified
        before it gets its name.
    progress : callable, optional
        Called as ``progress(done, total)`` with numbers of bytes.

    Returns
    -------
    pathlib.Path
        Where it lies now.

    Raises
    ------
    DatasetError
        If no address delivers the right file, or it cannot be written. Then nothing
        lies under its name; an unfinished ``.part`` is resumed by the next call.
    """
    folder = _made(_cache_folder(file))
    try:
        # Several processes of one experiment may miss the same file at once.
        shared = file.archives[0] if file.archives else file.name
        with FileLock(folder / f".{shared}.lock", timeout=_LOCK_SECONDS):
            for name in file.disk_names:
                if os.path.isfile(folder / name):
                    return folder / name
            return _from_any_source(file, beside, folder, progress)
    except Timeout as error:
        raise DatasetError(
            f"Waited {_LOCK_SECONDS:.0f} s for another process that downloads "
            f"{file.name} into {folder}; wait for it to end and run again."
        ) from error
    except OSError as error:
        raise _unwritable(folder, error) from error


def install(file: DataFile, own: Path, *, beside: Sequence[DataFile] = ()) -> Path:
    """Copy a file that the user has into the cache, after verifying it.

    Parameters
    ----------
    file : DataFile
        What it should be.
    own : pathlib.Path
        The user's file, plain, gzipped or in an archive; it stays where it is.
    beside : sequence of DataFile
        Files of the same dataset; an archive has to be right for all that it holds.

    Returns
    -------
    pathlib.Path
        Where the copy lies.

    Raises
    ------
    DatasetError
        If it is another file, or cannot be read or copied.
    """
    reader = Reader()
    content = reader.content(file, own)
    raw = _read(own)
    name = file.name_for(raw)
    reader.verify_others(file, beside, own, name)
    return _written(file, name, content if name == file.name else raw)


def store(file: DataFile, content: bytes) -> Path:
    """Put a file into the cache whose content was made here, after verifying it.

    Parameters
    ----------
    file : DataFile
        What it should be.
    content : bytes
        Its unpacked content.

    Returns
    -------
    pathlib.Path
        Where it lies.

    Raises
    ------
    DatasetError
        If it is another content, or cannot be written.
    """
    file.content(content, where=f"what was made for {file.name}")
    return _written(file, file.name, content)


def _written(file: DataFile, name: str, data: bytes) -> Path:
    """Write a file of the cache under another name first, so that it is never half."""
    target = _made(_cache_folder(file)) / name
    part = target.with_name(f"{name}.{os.getpid()}.part")
    try:
        with part.open("wb") as sink:
            sink.write(data)
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(part, target)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise DatasetError(
            f"Cannot write {target} ({error.strerror or error}); free some space, or "
            "set ARMIJO_CACHE to another folder."
        ) from error
    return target


def _from_any_source(
    file: DataFile,
    beside: Sequence[DataFile],
    folder: Path,
    progress: Progress | None,
) -> Path:
    """Try the addresses of a file one after the other."""
    failures = []
    # A mirror has one address where several publishers have one each.
    places = dict.fromkeys((_address(file, s), s.saved_as) for s in file.sources)
    for url, name in places:
        try:
            return _from_source(file, beside, url, folder / name, progress)
        except SourceError as error:
            failures.append(str(error))
    raise DatasetError(
        f"Cannot download {file.name}. {' '.join(failures)} Or put the file into a "
        f"folder data/{file.folders[0]} yourself."
    )


def _from_source(
    file: DataFile,
    beside: Sequence[DataFile],
    url: str,
    target: Path,
    progress: Progress | None,
) -> Path:
    """Download from one address; bytes of an earlier run get a second chance."""
    part = target.with_name(f"{target.name}.part")
    resumed = True
    while resumed:
        resumed = download(url, part, progress=progress)
        try:
            reader = Reader()
            reader.content(file, part)
            reader.verify_others(file, beside, part, target.name)
        except DatasetError as error:
            part.unlink()
            failure = error
        else:
            os.replace(part, target)
            return target
    raise SourceError(f"{url} does not serve the expected file: {failure}")


def _address(file: DataFile, source: Source) -> str:
    """Return the publisher's address, or the one on the mirror that is set."""
    mirror = os.environ.get("ARMIJO_MIRROR")
    if not mirror:
        return source.url
    return f"{mirror.rstrip('/')}/{file.folders[0]}/{source.saved_as}"


def _cache_folder(file: DataFile) -> Path:
    """Return the folder of a file in the cache."""
    return cache_root() / file.folders[0]


def _made(folder: Path) -> Path:
    """Return the folder, which exists then."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def _unwritable(folder: Path, error: OSError) -> DatasetError:
    """Return what to raise when the cache cannot be changed."""
    return DatasetError(
        f"Cannot write to the cache folder {folder} ({error.strerror or error}); set "
        "ARMIJO_CACHE to a folder that can be written."
    )


def _identity(path: Path) -> tuple[object, ...]:
    """Return what changes when another file takes the place of this one."""
    try:
        found = path.stat()
    except OSError:
        return (path,)
    return (path, found.st_ino, found.st_mtime_ns, found.st_size)


def _read(path: Path) -> bytes:
    """Return the bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"Cannot read {path} ({error.strerror or error}); check the file and its "
            "permissions."
        ) from error
