# SPDX-License-Identifier: Apache-2.0
"""A disk on which one call, chosen by its number, goes wrong."""

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

CALLS = ("open", "write", "fsync", "replace", "link", "unlink")
DEATH = 77  # the exit code of a process that the disk took with it

# What may happen, and to which calls. To die after a call is to die before the next.
FAULTS = {
    "dies": CALLS,  # the process ends before the call
    "tears": ("write",),  # half of the bytes are written, then the process ends
    "loses": CALLS,  # the power fails before the call: what is not synced is lost
    "is full": ("open", "write", "fsync", "replace", "link"),  # and stays full
}


class FailingDisk:
    """Counts the calls that concern a folder, and lets one of them fail."""

    def __init__(self, folder: Path, fault: str = "", number: int = 0) -> None:
        self._folder, self._fault, self._number = str(folder), fault, number
        self._real = {name: getattr(os, name) for name in CALLS}
        self._unsynced = _Unsynced(folder.with_name("kept"), self._real)
        self.calls: list[str] = []

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._failing(name, self._real[name]))

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *given: Any, **named: Any) -> Any:
            if not self._concerns(name, target, given):
                return real(target, *given, **named)
            self.calls.append(name)
            if len(self.calls) == self._number:
                self._fail(name, target, *given)
            if self._fault == "is full" and len(self.calls) > self._number:
                _refuse(name)
            self._unsynced.before(name, target, *given)
            found = real(target, *given, **named)
            self._unsynced.after(name, target)
            return found

        return call

    def _concerns(self, name: str, target: Any, given: tuple[Any, ...]) -> bool:
        """Say whether a call changes something in the folder; locks do not count."""
        if name == "open" and not given[0] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            return False
        place = _path(target)
        return place.startswith(self._folder) and not place.endswith(".lock")

    def _fail(self, name: str, target: Any, *given: Any) -> None:
        if name == "write" and self._fault in ("tears", "is full"):
            self._real[name](target, given[0][: len(given[0]) // 2])
        if self._fault == "loses":
            self._unsynced.lose()
        if self._fault != "is full":
            os._exit(DEATH)
        _refuse(name)


def _path(target: Any) -> str:
    """Return the path of a file, also of an open one."""
    if isinstance(target, int):
        return os.readlink(f"/proc/self/fd/{target}")
    return os.path.realpath(os.fspath(target))


def _refuse(name: str) -> None:
    """Fail as a full disk does; taking names away still works there."""
    if name != "unlink":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Unsynced:
    """What a power failure may take back: bytes of files, and names in folders.

    The worst is assumed: all names since the last sync of the folder are taken back,
    and half of the bytes since the last sync of a file.
    """

    def __init__(self, kept: Path, real: dict[str, Callable[..., Any]]) -> None:
        self._kept, self._real = kept, real
        self._sizes: dict[int, int] = {}
        self._undo: list[tuple[str, str | None]] = []
        self._numbers = count()

    def before(self, name: str, target: Any, *given: Any) -> None:
        """Keep what a name stands for before it changes."""
        changed = {"replace": given, "link": given, "unlink": (target,)}.get(name, ())
        if name == "open" and given[0] & os.O_CREAT:
            changed = (target,)
        for path in map(_path, changed[:1]):
            copy = None
            if os.path.exists(path):
                self._kept.mkdir(exist_ok=True)
                copy = str(self._kept / f"{os.getpid()}-{next(self._numbers)}")
                self._real["link"](path, copy)
            self._undo.append((path, copy))

    def after(self, name: str, target: Any) -> None:
        """Note what is on the disk for good."""
        if name == "fsync":
            state = os.fstat(target)
            self._sizes[state.st_ino] = state.st_size
            if os.path.isdir(_path(target)):
                self._undo.clear()

    def lose(self) -> None:
        """Take back what was not synced."""
        for path, copy in reversed(self._undo):
            if os.path.exists(path):
                self._real["unlink"](path)
            if copy is not None:
                self._real["link"](copy, path)
        for entry in os.scandir(self._kept.with_name("run")):
            state = os.stat(entry.path)
            synced = self._sizes.get(state.st_ino, state.st_size)
            if entry.is_file() and synced < state.st_size:
                left = synced + (state.st_size - synced) // 2
                os.truncate(entry.path, left)
