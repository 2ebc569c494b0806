# SPDX-License-Identifier: Apache-2.0
"""Limits around one input: no more than so much memory, no longer than so long."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

ROOM = 2 << 30
"""Bytes of address space that an input of a few kilobytes may ask for."""
PATIENCE = 60
"""Seconds of computing after which an input counts as one that hangs."""
_STATM = Path("/proc/self/statm")


class Hung(BaseException):
    """An input took too long; nothing that reads it catches this."""


@contextmanager
def bounded_memory(room: int = ROOM) -> Iterator[None]:
    """Refuse allocations far above what the process has (where it can be known)."""
    if not _STATM.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(_STATM.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def ended_after(seconds: float, ending: type[BaseException] = Hung) -> Iterator[None]:
    """Raise inside the block once it computed so long, however busy the machine."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise ending

    before = signal.signal(signal.SIGPROF, end)
    left, _ = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        signal.setitimer(signal.ITIMER_PROF, left)  # of a block around this one
