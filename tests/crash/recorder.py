# SPDX-License-Identifier: Apache-2.0
"""A test double of the gate that writes down what a run draws, answers and shows.

Each line of the log is written by one system call, so that it outlives a kill:

* ``open K``: charge K was made, its streams begin;
* ``bits PURPOSE DIGEST``: words were drawn for K, to be used once;
* ``value DIGEST``: the exact, data-dependent value that is compared or gets noise;
* ``seen K DIGEST``: the record of step K was shown to the user.

An attempt is what one process wrote.
"""

import hashlib
import os
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from armijo import randomness
from armijo.accounting.ledger import LedgerView
from armijo.data import blocks, fixed_point, gate
from armijo.data.gate import PrivateDataset
from armijo.methods.base import StepRecord

_write = os.write  # the disk that fails is for the run, not for the log


def digest(value: Any) -> str:
    if not isinstance(value, bytes):
        value = repr(np.asarray(value).tolist()).encode()
    return hashlib.sha256(value).hexdigest()[:16]


class Recorder:
    """Writes the log of this process: ``install`` it, and call ``seen`` for records."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, *words: object) -> None:
        _write(self._fd, (" ".join(map(str, words)) + "\n").encode())

    def seen(self, record: StepRecord) -> None:
        self.note("seen", record.batch, digest(repr(record).encode()))

    def install(self) -> None:
        """Spy on charges, on bits, and on values before noise."""
        note = self.note
        charge = PrivateDataset._charge

        def charged(data: PrivateDataset, *given: Any) -> int:
            number = charge(data, *given)
            note("open", number)
            return number

        PrivateDataset._charge = charged

        class SpyBits(randomness.KeyedBits):
            def uint64(self, n: int) -> np.ndarray:
                return self._noted(super().uint64(n))

            def uint16(self, n: int) -> np.ndarray:
                return self._noted(super().uint16(n))

            def fill(self, words: np.ndarray) -> None:
                super().fill(words)
                self._noted(words)

            def _noted(self, words: np.ndarray) -> np.ndarray:
                note("bits", digest(words.tobytes()))
                return words

        randomness.KeyedBits = SpyBits
        first = randomness.RowBits.first

        def noted_rows(bits: randomness.RowBits, *given: int) -> np.ndarray:
            words = first(bits, *given)
            note("bits", digest(words.tobytes()))
            return words

        randomness.RowBits.first = noted_rows
        for name in ("vector_sum", "number_sum", "number_sums"):
            setattr(fixed_point, name, self._spied(getattr(fixed_point, name)))
        gate.with_gaussian = self._spied(gate.with_gaussian, argument=True)
        summed = blocks.SumTask.__call__

        def noted_total(task: blocks.SumTask, rows: Any) -> blocks.ExactSum:
            exact = summed(task, rows)
            if exact.certified:  # others are noted where they are added
                note("value", digest(exact.steps.numpy().tobytes()))
            return exact

        blocks.SumTask.__call__ = noted_total

    def _spied(self, sums: Callable[..., Any], *, argument: bool = False) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            found = sums(*given, **named)
            self.note("value", digest(given[0] if argument else found))
            return found

        return noted


Attempt = dict[int, list[str]]


def read_attempt(path: Path) -> tuple[Attempt, dict[int, str]]:
    """Return what one process drew and answered for each charge, and what it showed."""
    drawn: Attempt = {}
    seen: dict[int, str] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        kind, _, rest = line.partition(" ")
        if kind == "open":
            events = drawn.setdefault(int(rest), [])
        elif kind == "seen":
            number, _, found = rest.partition(" ")
            seen[int(number)] = found
        else:
            events.append(line)
    return drawn, seen


class Witness:
    """What all attempts of one run did so far; raises where they contradict."""

    def __init__(self) -> None:
        self.drawn: Attempt = {}
        self.seen: dict[int, str] = {}

    def hear(self, path: Path) -> None:
        """Take in one attempt: the same charge must have gone the same way."""
        drawn, seen = read_attempt(path)
        for charge, events in drawn.items():
            known = self.drawn.setdefault(charge, [])
            for one, other in zip_longest(known, events):
                assert one == other or None in (one, other), (
                    f"charge {charge} drew and answered {one}, then {other}"
                )
            if len(events) > len(known):
                self.drawn[charge] = events
        for step, found in seen.items():
            assert self.seen.setdefault(step, found) == found, f"step {step} differs"
        self._refuse_shared_bits()

    def _refuse_shared_bits(self) -> None:
        """No bits of one charge may come again in another, nor twice in one."""
        bits = [
            event
            for events in self.drawn.values()
            for event in events
            if event.startswith("bits")
        ]
        assert len(bits) == len(set(bits)), "the same bits were drawn twice"

    def check_ledger(self, view: LedgerView) -> None:
        """Everything that was drawn for, and more so seen, is paid by a whole line."""
        paid = {one.index for one in view.charges}
        missing = {*self.drawn, *self.seen} - paid
        assert not missing, f"charges {sorted(missing)} are not in the ledger"
