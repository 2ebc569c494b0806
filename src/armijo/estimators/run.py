# SPDX-License-Identifier: Apache-2.0
"""One private run: accountant, gate, method and loop put together."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from armijo import _validate
from armijo.accounting.accountants import Accountant
from armijo.accounting.budget import Budget, Computed, Neighboring
from armijo.accounting.ledger import MemoryLedger
from armijo.data.private import PrivateDataset
from armijo.data.query import Matrix
from armijo.data.sources import ArrayRows
from armijo.errors import BudgetExceeded, Diverged, LedgerError
from armijo.methods.base import (
    Method,
    Problem,
    State,
    StepRecord,
    minimize,
)
from armijo.methods.line_search import LineSearch
from armijo.objectives.elementwise import elementwise_self_test
from armijo.objectives.linear import LinearObjective
from armijo.randomness import Randomness
from armijo.training.accounts import Accounting, accountant_for
from armijo.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from armijo.training.divergence import refuse_diverged
from armijo.training.replay import ReplayableRun, ledger_path, released

Callback = Callable[[StepRecord], object]
Watch = Callable[[int, torch.Tensor], object]
_SAVE_EVERY = 5.0  # seconds between checkpoints: what a killed run may have to redo


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Public settings of a run."""

    budget: Budget
    objective: LinearObjective
    method: Method[Any]
    n_rows: int
    relation: Neighboring
    accounting: Accounting = "sound"
    max_batches: int | None = None
    seed: int | None = None
    ledger: str | os.PathLike[str] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    fingerprint: Mapping[str, Any] | None = None
    leaky_diagnostics: bool = False

    @property
    def ledger_path(self) -> Path | None:
        """The file of the charges; every checkpoint has one."""
        return ledger_path(self.ledger, self.checkpoint)

    @property
    def promised_relation(self) -> Neighboring:
        """The relation of the method's proof, or the run's own where it has none."""
        return self.method.relation or self.relation


@dataclass(frozen=True)
class RunResult:
    """What a run leaves: parameters, records and its closed accountant."""

    w: NDArray[np.float64]
    records: list[StepRecord]
    accountant: Accountant


def train(
    X: Matrix,
    y: NDArray[Any],
    settings: RunSettings,
    *,
    callback: Callback | None = None,
    watch: Watch | None = None,
    resume: bool = False,
) -> RunResult:
    """Train on private rows; the callback sees each record and may return True to stop.

    With ``resume`` the run goes on from its checkpoint and its ledger.  The checkpoint
    is written at the start, every few seconds, and when the run ends or is interrupted.
    Steps that a killed run paid for after its last checkpoint are redone with the key
    of the run, which lies beside the checkpoint, and are not charged again.  ``watch``
    sees the parameters after each batch, which are released values.

    Raises
    ------
    BudgetExceeded
        Not one batch was affordable.
    Diverged
        The weights grew beyond all bounds.  The run is over: key and checkpoint are
        removed, the ledger stays.
    """
    source = ArrayRows(X, y)
    method, start = _method(settings)
    progress = _Progress(settings, start, source)
    if resume:
        progress.load()
    accountant = _accountant(settings, method, start)
    with closing(progress.open_ledger(accountant.header())) as ledger:
        accountant.attach(ledger)
        data = PrivateDataset(
            source,
            n_rows=settings.n_rows,
            accountant=accountant,
            randomness=progress.randomness,
        )
        try:
            whole = _run(settings.objective, data, method, progress, callback, watch)
        except Diverged:
            ledger.finish({})
            progress.abandon()
            raise
        nothing = not progress.records and settings.max_batches != 0
        if (whole or settings.checkpoint is None) and not nothing:
            ledger.finish(released(progress.state.w))
        if whole:  # else it is to be resumed
            progress.end()
    if nothing:
        raise BudgetExceeded(_nothing_affordable(settings, accountant))
    return RunResult(progress.state.w.numpy().copy(), progress.records, accountant)


def check(settings: RunSettings) -> None:
    """Refuse settings that could not make one step, before anything is written."""
    method, start = _method(settings)
    _randomness(settings.seed)
    accountant = _accountant(settings, method, start)
    if not accountant.affords(method.plan(start).mechanism):
        raise BudgetExceeded(_nothing_affordable(settings, accountant))


def _nothing_affordable(settings: RunSettings, accountant: Accountant) -> str:
    """Say that not even one batch fits."""
    return (
        f"Not one batch was affordable: {accountant.n_charges} charges of the ledger "
        f"use up epsilon {settings.budget.epsilon:g} at delta "
        f"{settings.budget.delta:g}, or a single one exceeds it. Nothing more was "
        "spent; raise epsilon in a new ledger, or lower the budgets of a step."
    )


def _method(settings: RunSettings) -> tuple[Method[Any], Any]:
    """Return the method and its first state."""
    if settings.max_batches is not None:
        _validate.at_least(0, max_batches=settings.max_batches)
    _refuse_foreign(settings)
    problem = Problem(objective=settings.objective, n_rows=settings.n_rows)
    method = settings.method.calibrate(settings.budget, problem)
    start = method.init(torch.zeros(settings.objective.size, dtype=torch.float64))
    _refuse_cut(settings, method)
    return method, start


def _refuse_foreign(settings: RunSettings) -> None:
    """Refuse what the method was not made for."""
    if settings.objective.outputs > 1 and not settings.method.multi_class:
        raise ValueError(
            f"Expected two classes, got {settings.objective.n_classes}; "
            f"{type(settings.method).__name__} is for binary labels. Nothing was spent."
        )
    printed = isinstance(settings.method, LineSearch)
    if settings.accounting == "paper" and not printed:
        raise ValueError(
            "Expected accounting='sound', got 'paper', which reproduces the printed "
            "analysis of the line-search methods only. Nothing was spent."
        )


def _refuse_cut(settings: RunSettings, method: Method[Any]) -> None:
    """Refuse a planned run that max_batches would cut: its noise is for all of it."""
    schedule, most = method.schedule(), settings.max_batches
    if schedule is None or not most:
        return
    planned = sum(count for _, count in schedule)
    if planned > most:
        raise ValueError(
            f"Expected at most max_batches={most} batches, got a plan of {planned}; "
            "lower the steps or raise max_batches. Nothing was spent."
        )


def _run(
    objective: LinearObjective,
    data: PrivateDataset,
    method: Method[Any],
    progress: "_Progress",
    callback: Callback | None,
    watch: Watch | None,
) -> bool:
    """Go through the loop; say whether budget or settings ended it, not a callback."""
    left = progress.batches_left()
    try:
        progress.save()
        for state, record in minimize(
            objective, data, method, progress.state, max_batches=left
        ):
            progress.add(state, record)
            if watch is not None:
                watch(record.batch, state.w)
            if callback is not None and callback(record) is True:
                return False
        return True
    finally:
        progress.save()


class _Progress:
    """The last finished step, so that neither an interrupt nor a crash loses it."""

    def __init__(self, settings: RunSettings, start: State, source: ArrayRows) -> None:
        self._settings = settings
        self.randomness = _randomness(settings.seed)
        self._past: Checkpoint | None = None
        self._last = Checkpoint(start, [])
        self._keyed = ReplayableRun(settings.checkpoint, source, _public(settings))
        self._saved = time.monotonic()

    @property
    def state(self) -> Any:
        """The state after the last finished step."""
        return self._last.state

    @property
    def records(self) -> list[StepRecord]:
        """One for each finished step."""
        return self._last.records

    def load(self) -> None:
        """Go on from the checkpoint."""
        path = self._settings.checkpoint
        if path is None:
            raise ValueError("Expected a checkpoint to resume from, got None.")
        found = load_checkpoint(path, run=_named(self._settings), like=self.state)
        ledger = self._settings.ledger_path
        if ledger is not None and not ledger.exists():
            raise LedgerError(
                f"Asked to resume, but the ledger {ledger} is not there; without it "
                "what was spent is not known. Bring it back; nothing was spent now."
            )
        self._past = self._last = found

    def open_ledger(self, header: Mapping[str, object]) -> MemoryLedger:
        """Open the ledger, and make it ready for the charges after the checkpoint."""
        ledger = self._keyed.open_ledger(
            self._settings.ledger_path,
            {**header, "run_settings": _named(self._settings)},
            self._past,
        )
        self._last = self._last._replace(charges=ledger.next_index)
        if not self.randomness.deterministic:
            self.randomness = self._keyed.randomness
        return ledger

    def batches_left(self) -> int | None:
        """Return how many batches the settings still allow."""
        most = self._settings.max_batches
        return None if most is None else max(most - len(self.records), 0)

    def add(self, state: State, record: StepRecord) -> None:
        """Take a finished step, before anybody else sees it."""
        self._keyed.commit(state, record)
        refuse_diverged(state, record)  # which is seen, hence after it was settled
        # One assignment, so that an interrupt finds all of a step or nothing of it.
        records = [*self.records, record]
        self._last = Checkpoint(state, records, record.batch + 1)
        if time.monotonic() - self._saved > _SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the checkpoint, if there is a place for it."""
        self._saved = time.monotonic()
        if self._settings.checkpoint is None:
            return
        save_checkpoint(
            self._settings.checkpoint,
            run=_named(self._settings),
            checkpoint=self._keyed.signed(self._last),
        )

    def end(self) -> None:
        """Destroy what only an unfinished run needs."""
        self._keyed.end()

    def abandon(self) -> None:
        """End a run that left nothing to go on from."""
        self.end()  # first: what a crash leaves then cannot undo noise
        if self._settings.checkpoint is not None:
            os.unlink(self._settings.checkpoint)


def _public(settings: RunSettings) -> RunSettings:
    """Return the settings without the places of files."""
    return replace(settings, ledger=None, checkpoint=None)


def _randomness(seed: int | None) -> Randomness:
    """Return the system's generator, or a seeded one that voids the guarantee."""
    if seed is None:
        return Randomness()
    return Randomness(seed=seed, insecure_deterministic=True)


def _accountant(settings: RunSettings, method: Method[Any], start: State) -> Accountant:
    """Return the accountant of the run."""
    return accountant_for(
        method,
        start,
        settings.budget,
        relation=settings.promised_relation,
        private=settings.method.private,
        accounting=settings.accounting,
        seeded=settings.seed is not None,
        leaky=settings.leaky_diagnostics,
        computed=Computed(assumptions=(elementwise_self_test(),)),
    )


def _named(settings: RunSettings) -> dict[str, Any]:
    """Return what a checkpoint must share with the run."""
    return {**(settings.fingerprint or {}), "seed": settings.seed}
