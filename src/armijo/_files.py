# SPDX-License-Identifier: Apache-2.0
"""Files that a crash leaves whole: synced first, and only then under their name.

An ``OSError`` of the system is passed on; the caller says what it means.
"""

import errno
import os
import uuid
from contextlib import suppress

BINARY: int = getattr(os, "O_BINARY", 0)
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes: in one call, or in more where the system writes less."""
    while data:
        written = os.write(fd, data)
        if written <= 0:
            raise OSError(errno.EIO, "nothing could be written")
        data = data[written:]


def write_synced(path: str, data: bytes, flags: int, mode: int = 0o600) -> None:
    """Open a file with these flags, write all bytes and sync them.

    One that must not exist yet (``os.O_EXCL``) is taken away again on failure.
    """
    fd = os.open(path, flags | BINARY, mode)
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        if flags & os.O_EXCL:
            os.unlink(path)
        raise


def sync_folder(path: str) -> None:
    """Make the name of a file durable, too, where folders can be synced."""
    if os.name == "nt":
        return
    fd = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def replace_file(
    path: str | os.PathLike[str], data: bytes, *, mode: int = 0o666
) -> None:
    """Put a file in the place of the one before, which stays whole until then.

    On return the new one is on disk, its name included.
    """
    target = os.path.abspath(path)
    draft = target + ".new"
    try:
        write_synced(draft, data, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        os.replace(draft, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
    sync_folder(target)


def create_whole(path: str, data: bytes) -> None:
    """Write a file that must not exist yet, and let it appear with all its bytes.

    It is written beside its place and then linked there, which fails if the name is
    taken meanwhile.
    """
    draft = f"{path}.{uuid.uuid4().hex[:8]}.new"
    write_synced(draft, data, NEW)
    try:
        os.link(draft, path)
    except OSError:
        # No hard links here, or the name is taken: then this fails as well.
        write_synced(path, data, NEW)
    finally:
        os.unlink(draft)
