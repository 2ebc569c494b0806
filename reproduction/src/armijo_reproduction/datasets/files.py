# SPDX-License-Identifier: Apache-2.0
"""What identifies a file of a dataset: the SHA-256 of its unpacked content.

Publishers, mirrors and colleagues pack the same bytes differently, so a file may lie
on disk plain, gzipped or in an archive; only its content is compared.
"""

import gzip
import hashlib
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from dataclasses import dataclass

from armijo.errors import DatasetError

GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
_MAX_NESTING = 3
_TAR_HEADER = 512
# All that gzip, zipfile and tarfile were seen to raise on files with a few wrong bytes.
_UNPACKING_FAULTS = (
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """An address of the publisher, and the name its file is kept under.

    Parameters
    ----------
    url : str
        Where the publisher serves the file.
    saved_as : str
        One of the ``disk_names`` of the file.
    """

    url: str
    saved_as: str


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file of a dataset, however it is packed.

    Parameters
    ----------
    name : str
        Name of the unpacked file.
    folders : tuple of str
        Folders it is looked for in; the first one is its place in the cache.
    sha256 : str or None
        Digest of the unpacked content; ``None`` if no digest was ever published.
    archives : tuple of str
        Names of zip and tar archives that hold the file, or another of these
        archives. Several files may come in one.
    sources : tuple of Source
        Where it can be downloaded, in the order to try.
    """

    name: str
    folders: tuple[str, ...]
    sha256: str | None
    archives: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def disk_names(self) -> tuple[str, ...]:
        """The names under which the file may lie on disk."""
        return (self.name, f"{self.name}.gz", *self.archives)

    def name_for(self, raw: bytes) -> str:
        """Return the name on disk that fits how ``raw`` is packed.

        If there is none, that is the name of the unpacked file.
        """
        packed = raw.startswith(GZIP_MAGIC)
        if raw.startswith(ZIP_MAGIC):
            ending = ".zip"
        elif self._is_tar(_inner_header(raw) if packed else raw):
            ending = ".tar.gz" if packed else ".tar"
        else:
            return f"{self.name}.gz" if packed else self.name
        fitting = (name for name in self.archives if name.endswith(ending))
        return next(fitting, self.name)

    def content(self, raw: bytes, *, where: object) -> bytes:
        """Unpack and verify the bytes of a file.

        Parameters
        ----------
        raw : bytes
            The file as it lies on disk.
        where : object
            Its path, for messages.

        Returns
        -------
        bytes
            The unpacked content, whose digest is the expected one.

        Raises
        ------
        DatasetError
            If it cannot be unpacked or is another file.
        """
        try:
            content = self._unpacked(raw)
        except _UNPACKING_FAULTS as error:
            raise DatasetError(
                f"Expected {where} to hold {self.name}, but it cannot be unpacked "
                f"({error}); the file is truncated or damaged."
            ) from error
        found = hashlib.sha256(content).hexdigest()
        if self.sha256 is not None and found != self.sha256:
            raise DatasetError(
                f"Expected {where} to hold {self.name} with sha256 {self.sha256}, got "
                f"{len(content)} bytes with sha256 {found}; the file is truncated, "
                "damaged or another version."
            )
        return content

    def _unpacked(self, raw: bytes) -> bytes:
        """Take off gzip, zip and tar; an archive may hold another archive."""
        for _ in range(_MAX_NESTING):
            if raw.startswith(GZIP_MAGIC):
                raw = gzip.decompress(raw)
            elif raw.startswith(ZIP_MAGIC):
                raw = self._zip_member(raw)
            elif self._is_tar(raw):
                raw = self._tar_member(raw)
            else:
                break
        return raw

    def _zip_member(self, raw: bytes) -> bytes:
        """Return the file, or else an archive with it, from a zip archive."""
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            held = set(archive.namelist())
            for name in (self.name, *self.archives):
                if name in held:
                    return archive.read(name)
        raise KeyError(f"the archive holds no {self.name}")

    def _is_tar(self, raw: bytes) -> bool:
        """Tell whether bytes are a tar archive, of a file that comes in one.

        The oldest tar archives have no magic bytes, so it is the checksum of the first
        header that decides.
        """
        if not any(".tar" in name for name in self.archives):
            return False
        try:
            tarfile.TarInfo.frombuf(raw[:_TAR_HEADER], "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            return False
        return True

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


def without_gzip(raw: bytes) -> bytes:
    """Return what a gzip file holds; damaged and other files come back as they are."""
    if not raw.startswith(GZIP_MAGIC):
        return raw
    try:
        return gzip.decompress(raw)
    except _UNPACKING_FAULTS:
        return raw


def _inner_header(raw: bytes) -> bytes:
    """Return the first bytes of what a gzip file holds."""
    return zlib.decompressobj(wbits=31).decompress(raw, _TAR_HEADER)
