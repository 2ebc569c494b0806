# SPDX-License-Identifier: Apache-2.0
"""Runs that are still open when the interpreter exits are closed while torch works.

An iterator that is suspended in a variable of a script would otherwise be finalized
while modules are torn down.  Computing with tensors then fails or aborts the process
(an assertion of torch about a tensor that comes back to life), and the last checkpoint
is lost.  Functions of ``atexit`` run before that.
"""

import atexit
import os
import sys
from collections.abc import Generator
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Steps = TypeVar("Steps", bound=Generator[Any, Any, Any])

_OPEN: "WeakKeyDictionary[Generator[Any, Any, Any], int]" = WeakKeyDictionary()


def closed_at_exit(steps: Steps) -> Steps:
    """Return a generator that is closed at exit, in the process that made it."""
    _OPEN[steps] = os.getpid()
    return steps


def may_compute(process: int) -> bool:
    """Say whether a run of ``process`` may use torch and write its files here.

    Not in a forked child, which would write the parent's files, and not once the
    interpreter tears down its modules.
    """
    return os.getpid() == process and not sys.is_finalizing()


def _close_all() -> None:
    """Close what is open; a generator that another thread is running is left to it."""
    for steps, process in list(_OPEN.items()):
        if process == os.getpid() and getgeneratorstate(steps) != GEN_RUNNING:
            steps.close()


atexit.register(_close_all)
