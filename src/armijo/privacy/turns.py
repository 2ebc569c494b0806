# SPDX-License-Identifier: Apache-2.0
"""One thread after the other: the lock around testing a charge and counting it."""

import os
import threading
import weakref
from types import TracebackType


class Turns:
    """A lock that its holder may take again, and that copies and children get anew.

    A lock itself can be neither pickled nor copied; and a process that is forked
    while another thread holds one inherits it held, with nobody to release it.

    Examples
    --------
    >>> turns = Turns()
    >>> with turns, turns:
    ...     print("mine")
    mine
    """

    def __init__(self) -> None:
        self.renew()
        _ALL.add(self)

    def renew(self) -> None:
        """Forget who holds the lock."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Wait for the lock."""
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the next thread go on."""
        self._lock.release()

    def __reduce__(self) -> tuple[type["Turns"], tuple[()]]:
        """Give a deep copy, and what is read from a pickle, a lock of its own."""
        return Turns, ()


_ALL: "weakref.WeakSet[Turns]" = weakref.WeakSet()


def _renew_all() -> None:
    """Free all locks in a forked child, where the threads that held them are not."""
    for turns in _ALL:
        turns.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
