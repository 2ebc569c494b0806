# SPDX-License-Identifier: Apache-2.0
"""Seeded trainings with files, stopped on the way."""

from pathlib import Path
from typing import Any

from torch import nn

from armijo.accounting.budget import Budget
from armijo.networks.train import Trainer
from tests.networks.network_doubles import BUDGET, network, prepared

SEED = 5
LEFT = 3
# So much that searches fail for their criterion and not for their noise.
AMPLE = Budget(epsilon=60.0, delta=1e-5)
OPTIONS: dict[str, dict[str, Any]] = {
    "blsgd": {
        "adapt": "always",
        "fallback": False,
        "initial_step": 10.0,
        "max_tries": 3,
        "slope": 0.95,
    }
}


def files(folder: Path | str) -> dict[str, Path]:
    return {
        "checkpoint": Path(folder) / "run.pt",
        "ledger": Path(folder) / "run.ledger",
    }


def seeded(name: str, module: nn.Module | None = None, **more: Any) -> Trainer:
    budget = AMPLE if name == "blsgd" else BUDGET
    given = {"seed": SEED, "options": OPTIONS.get(name, {}), "budget": budget} | more
    return prepared(module or network(dropout=0.3), method=name, **given)


def stopped(training: Trainer, steps: int) -> Trainer:
    """Make some steps and stop, as a user's ``break`` does."""
    running = iter(training)
    for _ in range(steps):
        next(running)
    running.close()
    return training
