# SPDX-License-Identifier: Apache-2.0
"""Limits around one input: no more than so much memory, no longer than so long."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import NoReturn

ROOM = 2 << 30
"""Bytes of address space that an input of a few kilobytes may ask for."""
PATIENCE = 60
"""Seconds of computing after which an input counts as one that hangs."""
LONGEST = 10 * PATIENCE
"""Seconds on the clock after which it does, too: it waits for something."""
_STATM = Path("/proc/self/statm")


class Hung(BaseException):
    """An input took too long; nothing that reads it catches this."""


class Clock(Enum):
    """What is measured, as the timer and its signal."""

    COMPUTING = signal.ITIMER_PROF, signal.SIGPROF  # however busy the machine is
    WALL = signal.ITIMER_REAL, signal.SIGALRM  # also while the process sleeps


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
def ended_after(
    seconds: float, ending: type[BaseException] = Hung, clock: Clock = Clock.COMPUTING
) -> Iterator[None]:
    """Raise inside the block once it took so long."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise ending

    timer, alarm = clock.value
    before = signal.signal(alarm, end)
    outer = signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(alarm, before)
        signal.setitimer(timer, *outer)  # of a block around this one
