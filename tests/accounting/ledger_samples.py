# SPDX-License-Identifier: Apache-2.0
"""A small ledger with everything in it, and disks that fail on request."""

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from armijo.accounting.ledger import Charge, Ledger, LedgerView, read_ledger

HEADER = {
    "budget": {"epsilon": 1.0, "delta": 1e-5},
    "relation": "add-remove",
    "orders": (2.0, 8.0),
}
COSTS = [(0.1, 0.3), (0.2, 0.1), (0.2, 0.3), (0.05, 0.7), (0.1, 0.2)]


def charge(index: int, cost: tuple[float, ...]) -> Charge:
    """Return a charge with a description worth writing."""
    mechanism = {"name": "Gaussian", "noise_scale": 1.5, "parts": [{"k": index}]}
    return Charge(index, f"step {index}", mechanism, cost)


def extend(path: Path, costs: Iterable[tuple[float, ...]]) -> None:
    """Open a ledger, charge these costs one after the other, close it."""
    with Ledger.open(path, header=HEADER) as ledger:
        for cost in costs:
            ledger.append(charge(ledger.next_index, cost))


def sample(path: Path) -> list[bytes]:
    """Write the sample ledger; return its lines with their newlines."""
    extend(path, COSTS)
    return path.read_bytes().splitlines(keepends=True)


def torn_sample(path: Path) -> bytes:
    """Write a ledger whose last line was torn."""
    path.write_bytes(b"".join(sample(path))[:-30])
    return path.read_bytes()


def full_disk(room: int) -> Callable[[int, bytes], int]:
    """Return a stand-in for ``os.write`` that has ``room`` bytes left."""
    real, left = os.write, [room]

    def write(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(fd, data[: left[0]])
        left[0] -= written
        return written

    return write


def reopen(path: Path) -> LedgerView:
    """Open and close a ledger: a torn line is cut off, whole ones stay as they are."""
    before = path.read_bytes()
    expected = read_ledger(path)
    with Ledger.open(path, header=HEADER) as ledger:
        assert tuple(ledger.charges) == expected.charges
        assert ledger.spent == expected.spent
    whole = before[: before.rfind(b"\n") + 1] if expected.torn else before
    assert path.read_bytes() in (whole, whole + b"\n")
    assert path.read_bytes().endswith(b"\n")
    assert read_ledger(path) == replace(expected, torn=False)
    return expected
