# SPDX-License-Identifier: Apache-2.0
"""Files of datasets: where they are looked for, how they are verified and downloaded.

The order is: the folder ``ARMIJO_DATA``; a folder ``data`` or ``shared/data`` in the
current directory or above it; the cache; the publisher.  Publishers, mirrors and
colleagues pack the same bytes differently, so a file may lie on disk plain, gzipped or
in an archive; what identifies it is the SHA-256 of its unpacked content.
"""

import gzip
import hashlib
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import pooch

from armijo._files import replace_file
from armijo.errors import ArmijoError

TIMEOUT = 30.0
GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
_BESIDE = ("data", os.path.join("shared", "data"))
_MAX_NESTING = 3
# Pooch would advise to note the digest of the packed file; we verify the content.
pooch.get_logger().setLevel("WARNING")


class DatasetError(ArmijoError):
    """A dataset is not there, cannot be fetched, or is not the file it should be."""


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file of a dataset, however it is packed.

    The digest, if one was ever published, is that of the unpacked content.  Of the
    folders it is looked for in, the first is its place in the cache.  Zip and tar
    archives may hold the file, or one another.  Addresses are tried in their order.
    """

    name: str
    sha256: str | None
    folders: tuple[str, ...]
    archives: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    @property
    def disk_names(self) -> tuple[str, ...]:
        """Return the names under which the file may lie on disk."""
        return (self.name, f"{self.name}.gz", *self.archives)

    def verified(self, content: bytes, where: object) -> bytes:
        """Return the unpacked content, refusing that of another file."""
        digest = hashlib.sha256(content).hexdigest()
        if self.sha256 is not None and digest != self.sha256:
            raise DatasetError(
                f"Expected {where} to hold {self.name} with sha256 {self.sha256}, got "
                f"{len(content)} bytes with sha256 {digest}; the file is truncated, "
                "damaged or another version."
            )
        return content

    def unpacked(self, raw: bytes) -> bytes:
        """Take off gzip, zip and tar; an archive may hold another archive."""
        in_tar = any(".tar" in name for name in self.archives)
        for _ in range(_MAX_NESTING):
            if raw.startswith(GZIP_MAGIC):
                raw = gzip.decompress(raw)
            elif raw.startswith(ZIP_MAGIC):
                with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                    held = set(archive.namelist())
                    names = (self.name, *self.archives)
                    raw = archive.read(next((n for n in names if n in held), self.name))
            elif in_tar and tarfile.is_tarfile(io.BytesIO(raw)):
                raw = self._tar_member(raw)
            else:
                break
        return raw

    def _tar_member(self, raw: bytes) -> bytes:
        """Return the file from a tar archive, in whichever folder it lies there.

        It is read in memory: nothing is extracted, so no path of the archive is used.
        """
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
            for member in archive:
                named = member.name.split("/")[-1] == self.name
                # A sparse member of a few bytes may unpack to any number of zeros.
                if named and member.isreg() and not member.issparse():
                    held = archive.extractfile(member)
                    return held.read() if held else b""
        raise KeyError(f"the archive holds no {self.name}")


def cache_root() -> Path:
    """Return where downloads are kept: ``$ARMIJO_CACHE``, or the user's cache."""
    chosen = os.environ.get("ARMIJO_CACHE") or pooch.os_cache("armijo")
    return Path(chosen).expanduser()


def search_roots() -> tuple[Path, ...]:
    """Return the folders with datasets to look through, in order, the cache last."""
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
    for place in product(search_roots(), file.folders, file.disk_names):
        # Unlike Path.is_file, this takes a forbidden folder as "not there".
        if os.path.isfile(path := Path(*place)):
            return path
    return None


def read(file: DataFile, path: Path) -> bytes:
    """Return the unpacked, verified content of a file on disk."""
    try:
        status = path.stat()
        raw = unpacked_file(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise DatasetError(
            f"Cannot read {path} ({error.strerror or error}); check the file and its "
            "permissions."
        ) from error
    try:
        content = file.unpacked(raw)
    except Exception as error:  # of gzip, zipfile and tarfile, ten kinds were seen
        raise DatasetError(
            f"Expected {path} to hold {file.name}, but it cannot be unpacked "
            f"({error}); the file is truncated or damaged."
        ) from error
    return file.verified(content, path)


@lru_cache(maxsize=1)
def unpacked_file(path: Path, *_identity: int) -> bytes:
    """Read a file and take off gzip once, for all files of one archive.

    A damaged file comes back as it is: unpacking it again says what is wrong.
    """
    raw = path.read_bytes()
    if raw.startswith(GZIP_MAGIC):
        with suppress(EOFError, OSError, zlib.error):
            return gzip.decompress(raw)
    return raw


def in_cache(file: DataFile, path: Path) -> bool:
    """Tell whether a file lies in the cache, where it may be replaced."""
    return path.parent == cache_root() / file.folders[0]


def store(file: DataFile, content: bytes) -> Path:
    """Put the unpacked content of a file into the cache, after verifying it."""
    file.verified(content, f"what was made for {file.name}")
    target = cache_root() / file.folders[0] / file.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, content)
    except OSError as error:
        raise _unwritable(target.parent, error) from error
    return target


def download(
    file: DataFile, *, beside: Sequence[DataFile] = (), progress: bool = False
) -> Path:
    """Download a file into the cache; it gets its name only once it is verified.

    Of the files of the dataset ``beside`` it, those that come in the same archive are
    verified with it.
    """
    together = [other for other in beside if other.archives] or [file]

    def downloader(url: str, output: str, caller: object) -> None:
        fetch = pooch.HTTPDownloader(progressbar=progress, timeout=TIMEOUT)
        fetch(url, output, caller)
        for held in together:
            read(held, Path(output))

    folder, failures = cache_root() / file.folders[0], []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    urls = [url.format(name=file.name) for url in file.urls]
    if mirror := os.environ.get("ARMIJO_MIRROR", "").rstrip("/"):
        urls = [f"{mirror}/{file.folders[0]}/{url.rpartition('/')[2]}" for url in urls]
    for url in dict.fromkeys(urls):
        name = url.rpartition("/")[2]
        try:
            pooch.retrieve(url, None, name, folder, downloader=downloader)
        except (OSError, ValueError, DatasetError) as error:
            failures.append(f"{url}: {error}")
        else:
            return folder / name
    raise DatasetError(
        f"Cannot download {file.name}. {' '.join(failures)} Check the network and the "
        f"cache folder {folder}, or put the file into a folder data/{file.folders[0]}."
    )


def _unwritable(folder: Path, error: OSError) -> DatasetError:
    return DatasetError(
        f"Cannot write to the cache folder {folder} ({error.strerror or error}); set "
        "ARMIJO_CACHE to a folder that can be written."
    )
