# SPDX-License-Identifier: Apache-2.0
"""The file behind a ledger: locked, created whole, and only ever added to.

Every failure of the operating system leaves here as a ``LedgerError`` or as the
``OSError`` that :func:`failure` turns into one.
"""

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from filelock import FileLock, Timeout

from armijo.accounting.ledger_header import MAGIC, new_header, seal
from armijo.errors import LedgerError

_BINARY: int = getattr(os, "O_BINARY", 0)


def ledger_path(path: str | os.PathLike[str]) -> str:
    """Return the one name of a file, whatever links lead to it."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        name = ""
    if not name or "\0" in name:
        raise ValueError(
            f"Expected path to be the path of a ledger file, got {path!r}; give a "
            "non-empty path."
        )
    return os.path.realpath(name)


def acquire_lock(path: str) -> FileLock:
    """Hold the ledger against other processes and other objects of this one."""
    try:
        _check_place(path)
        lock = FileLock(path + ".lock", timeout=0, mode=0o600, thread_local=False)
        lock.acquire()
    except Timeout as error:
        raise LedgerError(
            f"The ledger {path} is in use by another process or another object of "
            "this one; nothing was spent. Wait for that run to end or close it, or "
            "choose another path."
        ) from error
    except OSError as error:
        raise failure("lock", path, error) from error
    return lock


def release(fd: int, lock: FileLock, process: int) -> None:
    """Close the file; give the lock back, unless it is the parent's."""
    with suppress(OSError):
        os.close(fd)
    if os.getpid() == process:
        lock.release(force=True)


def _check_place(path: str) -> None:
    """Refuse what is no regular file, and a folder that is not there."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise LedgerError(
            f"The folder {folder} of the ledger {path} does not exist or is no "
            "folder; nothing was spent. Create it first."
        )
    if os.path.lexists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise LedgerError(
            f"The ledger {path} is not a regular file; nothing was spent. Give the "
            "path of a file, which is created if it does not exist."
        )


def open_or_create(path: str, header: Mapping[str, object]) -> int:
    """Return a descriptor that can read anywhere and write at the end only."""
    try:
        if not os.path.lexists(path):
            _create(path, header)
        return os.open(path, os.O_RDWR | os.O_APPEND | _BINARY)
    except OSError as error:
        raise failure("open", path, error) from error


def _create(path: str, header: Mapping[str, object]) -> None:
    """Make a new ledger appear under its name with its header complete.

    It is written beside its place and then linked there, which fails if the name is
    taken meanwhile; a crash in between leaves no file with half a header.
    """
    run, payload = new_header(header)
    line = seal(b"", payload)[0] + b"\n"
    draft = f"{path}.{run[:8]}.new"
    _write_new(draft, line)
    try:
        os.link(draft, path)
    except OSError:
        # No hard links here, or the name is taken: then this fails as well.
        _write_new(path, line)
    finally:
        os.unlink(draft)


def _write_new(path: str, line: bytes) -> None:
    """Write and sync a file that did not exist; take it away again on failure."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600)
    try:
        try:
            write(fd, line)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        os.unlink(path)
        raise


def write(fd: int, data: bytes) -> None:
    """Write all bytes: in one call, or in more where the system writes less."""
    while data:
        written = os.write(fd, data)
        if written <= 0:
            raise OSError(errno.EIO, "nothing could be written")
        data = data[written:]


def read_all(path: str) -> bytes:
    """Return what :func:`read` does, without a lock and without the right to write."""
    try:
        _check_place(path)
        fd = os.open(path, os.O_RDONLY | _BINARY)
        try:
            return read(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise failure("read", path, error) from error


def read(fd: int) -> bytes:
    """Return the whole file, or its beginning if that already is no ledger."""
    parts = [os.read(fd, 1 << 16)]
    while parts[-1] and parts[0].startswith(MAGIC):
        parts.append(os.read(fd, 1 << 24))
    return b"".join(parts)


def sync_folder(path: str) -> None:
    """Make the name of the file durable, too, where folders can be synced."""
    if os.name == "nt":
        return
    fd = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def identity(found: os.stat_result) -> tuple[int, int, int]:
    """Return what must not change between two charges of one process."""
    return found.st_dev, found.st_ino, found.st_size


def failure(action: str, path: str, error: OSError) -> LedgerError:
    """Turn an error of the system into one that says what it means here."""
    reason = error.strerror or str(error)
    return LedgerError(
        f"Cannot {action} the ledger {path}: {reason} (errno {error.errno}); nothing "
        "was spent by this call. Check the free space and the permissions of its "
        "folder, then open the ledger again; if part of a line was written, it will "
        "then be counted as spent."
    )
