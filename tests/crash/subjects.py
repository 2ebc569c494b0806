# SPDX-License-Identifier: Apache-2.0
"""The runs that are crashed, started and resumed as a user would."""

import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.ledger import read_ledger
from armijo.errors import ArmijoError
from armijo.methods.base import StepRecord
from armijo.objectives import LinearObjective
from armijo.registry import make_method
from armijo.report.verify import ledger_fault
from armijo.training import replay as run_key
from armijo.training import run
from tests.networks.network_doubles import flat, network, prepared
from tests.training.runs import RunSettings, train

ROWS, STEPS = 200, 2
KEY = bytes(range(32))
Seen = Callable[[StepRecord], None]


@dataclass(frozen=True)
class Subject:
    """A run in a folder; ``start`` returns when the run is whole."""

    name: str
    start: Callable[[Path, bool, Seen], None]
    ledger: str = "run.ledger"
    checkpoint: str = "run.checkpoint"
    outcome: str = "outcome"

    def go(self, folder: Path, seen: Seen) -> None:
        """Start the run, or resume it if there is a checkpoint."""
        folder.mkdir(exist_ok=True)
        self._fix_key(folder)
        self.start(folder, (folder / self.checkpoint).exists(), seen)

    def _fix_key(self, folder: Path) -> None:
        """Give every run the same first key, so that they can be compared.

        A key that is drawn after a charge was made is another one.
        """

        def fixed() -> bytes:
            spent = (folder / self.ledger).exists() and self.charges(folder)
            return os.urandom(32) if spent else KEY

        run_key.fresh_key = fixed

    def charges(self, folder: Path) -> tuple[Any, ...]:
        return read_ledger(folder / self.ledger).charges

    def finished(self, folder: Path) -> bytes | None:
        """Return what the run left, None while it is not whole."""
        path = folder / self.outcome
        if not path.exists() or path.suffix != ".json":
            return path.read_bytes() if path.exists() else None
        document = json.loads(path.read_bytes())
        fault = ledger_fault(read_ledger(folder / self.ledger), document["privacy"])
        assert fault is None, fault
        # The name of a ledger is random, and torn lines are lines of it.
        for name in ("ledger_run", "ledger_head"):
            del document["privacy"][name]
        return json.dumps(document).encode()


def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 3))
    return X, np.where(X[:, 0] + 0.3 * rng.normal(size=ROWS) > 0, 1.0, -1.0)


def keep(folder: Path, w: Any, records: list[StepRecord]) -> None:
    """Leave an outcome, whole or not at all."""
    (folder / "draft").write_bytes(np.asarray(w).tobytes() + repr(records).encode())
    (folder / "draft").rename(folder / "outcome")


def linear(
    name: str, epsilon: float, options: dict[str, Any], most: int | None = STEPS
) -> Subject:
    def start(folder: Path, resume: bool, seen: Seen) -> None:
        settings = RunSettings(
            budget=Budget(epsilon=epsilon, delta=1e-5),
            objective=LinearObjective(loss="logistic", n_features=3),
            method=make_method(name, options),
            n_rows=ROWS,
            relation=Neighboring.ADD_REMOVE,
            max_batches=most,
            ledger=folder / "run.ledger",
            checkpoint=folder / "run.checkpoint",
        )
        found = train(*table(), settings, callback=seen, resume=resume)
        keep(folder, found.w, found.records)

    return Subject(name, start)


def tiny_network() -> Subject:
    def start(folder: Path, resume: bool, seen: Seen) -> None:
        module = network(dropout=0.3)
        training = prepared(
            module,
            method="sgd",
            steps=STEPS,
            checkpoint_every=2,
            ledger=folder / "run.ledger",
            checkpoint=folder / "run.checkpoint",
            resume=resume,
        )
        for record in training:
            seen(record)
        keep(folder, flat(module), training.records)

    return Subject("network", start)


def command_line(source: Path) -> Subject:
    """Return ``armijo fit`` on a small table."""
    # Only here: a process that holds less is forked sooner.
    from armijo.cli import fit as fit_job
    from armijo.cli import main
    from armijo.cli._ui import FitProgress
    from tests.cli.small import write_small

    source.mkdir(exist_ok=True)
    small = write_small(source)

    def start(folder: Path, resume: bool, seen: Seen) -> None:
        usual = (
            "--epsilon 1 --delta 1e-5 --model logistic --method blsgd --json "
            "--option expected_steps=10 --option search_form=difference"
        )
        words = ["fit", small.csv, "--schema", small.schema, "--out", folder]
        if resume:
            words.append("--resume")
        elif any(folder.iterdir()):
            words.append("--overwrite")
        sys.argv = ["armijo", *map(str, words), *usual.split()]
        begin = FitProgress.start

        def noting(bar: FitProgress, epsilon: float) -> Any:
            step = begin(bar, epsilon)
            return lambda record: (seen(record), step(record))[1]

        FitProgress.start = noting
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as ended:
                if ended.code:
                    raise ArmijoError(err.getvalue()) from ended

    return Subject(
        "armijo fit", start, fit_job.LEDGER, fit_job.CHECKPOINT, fit_job.MODEL
    )


def save_often(seconds: float) -> None:
    """Set how long a linear run waits between checkpoints."""
    run._SAVE_EVERY = seconds


def solve_once() -> None:
    """Remember, for all children, what is solved from public settings only."""
    run.order_for = cache(run.order_for)
    run._refuse_tiny = cache(run._refuse_tiny)
    torch.set_num_threads(1)
