# SPDX-License-Identifier: Apache-2.0
"""Runs of linear models from one object of settings, as tests compare and change it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from armijo.accounting.accountants import Accountant
from armijo.accounting.budget import Budget, Neighboring
from armijo.data.sources import ArrayRows
from armijo.methods.base import Method, StepRecord
from armijo.objectives import LinearObjective
from armijo.training.run import Accounting, Callback, Run, RunFiles


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    budget: Budget
    objective: LinearObjective
    method: Method[Any]
    n_rows: int
    relation: Neighboring
    accounting: Accounting = "sound"
    max_batches: int | None = None
    seed: int | None = None
    ledger: Path | None = None
    checkpoint: Path | None = None
    fingerprint: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RunResult:
    w: np.ndarray
    records: list[StepRecord]
    accountant: Accountant


def train(
    X: Any,
    y: Any,
    settings: RunSettings,
    *,
    callback: Callback | None = None,
    resume: bool = False,
) -> RunResult:
    run = Run(
        settings.objective,
        ArrayRows(X, y),
        settings.method,
        settings.budget,
        n_rows=settings.n_rows,
        relation=settings.relation,
        accounting=settings.accounting,
        max_batches=settings.max_batches,
        seed=settings.seed,
        files=RunFiles(
            ledger=settings.ledger,
            checkpoint=settings.checkpoint,
            resume=resume,
            named=settings.fingerprint or {},
        ),
    ).complete(callback)
    return RunResult(run.w.numpy().copy(), run.records, run.accountant)
