# SPDX-License-Identifier: Apache-2.0
"""The package with one thing wrong: what the harness must find."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from armijo import _files
from armijo.accounting import ledger
from armijo.accounting.ledger import Charge, Ledger, MemoryLedger
from armijo.randomness import Randomness
from armijo.training.replay import ReplayableRun, RunKey
from tests.crash import subjects


def _not_written() -> None:
    """Count charges in memory only."""
    Ledger.append = MemoryLedger.append


def _not_synced() -> None:
    """Write charges, but do not wait until they are on the disk."""

    class Hasty:
        def __getattr__(self, name: str) -> Any:
            return (lambda fd: None) if name == "fsync" else getattr(os, name)

    ledger.os = Hasty()


def _names_not_synced() -> None:
    """Replace the checkpoint without waiting until its name is on the disk."""
    _files.sync_folder = lambda path: None


def _no_key() -> None:
    """Draw from the system, and charge redone steps again."""
    ReplayableRun.take_up = lambda self, ledger, past: None


def _fresh_noise() -> None:
    """Accept charges again, but draw other noise for them."""
    Randomness.for_charge = lambda self, index: Randomness()


def _one_stream() -> None:
    """Let all charges have the same bits."""
    for_charge = Randomness.for_charge
    Randomness.for_charge = lambda self, index: for_charge(self, 0)


def _other_rows() -> None:
    """Resume on other rows, and do not compare them."""
    go, table = subjects.Subject.go, subjects.table

    def changed(self: subjects.Subject, folder: Any, seen: Any) -> None:
        resumed = (folder / self.checkpoint).exists()

        def rows() -> Any:
            X, y = table()
            return (-X if resumed else X), y

        subjects.table = rows
        go(self, folder, seen)

    subjects.Subject.go = changed
    RunKey.changed = lambda self, facts: []
    RunKey.commit = lambda self, charge, result: None


def _torn_lines_paid() -> None:
    """Take a torn line for a charge, and go on without writing it anew."""
    append, load = Ledger.append, Ledger._load

    def noticing(self: Ledger, header: Any) -> None:
        self.was_torn = not Path(self.path).read_bytes().endswith(b"\n")
        load(self, header)

    def forgetful(self: Ledger, charge: Charge) -> None:
        if self.was_torn and not self._paid:
            self.was_torn = False
            self._count(charge)
            return
        append(self, charge)

    Ledger._load, Ledger.append = noticing, forgetful


def _pay_twice() -> None:
    """Go on behind all charges, as if their steps were lost."""
    Ledger.rewind = lambda self, index: None


def _key_kept() -> None:
    """Leave the key where it is when the run ends."""
    RunKey.destroy = lambda self: None


BROKEN: dict[str, Callable[[], None]] = {
    "charges are not written": _not_written,
    "charges are not synced": _not_synced,
    "the checkpoint's name is not synced": _names_not_synced,
    "there is no key": _no_key,
    "a redone step draws other noise": _fresh_noise,
    "all charges have the same bits": _one_stream,
    "other rows get the same noise": _other_rows,
    "torn charges are not written anew": _torn_lines_paid,
    "redone steps are charged again": _pay_twice,
    "the key outlives the run": _key_kept,
}
