# SPDX-License-Identifier: Apache-2.0
"""Result files with made-up numbers, for tests of what is drawn and told from them."""

import math
from pathlib import Path

import numpy as np

from armijo_reproduction.results import Results
from armijo_reproduction.spec import Experiment, RunKey, experiment, experiment_names

GOOD = {"non-private": 0.85, "auto": 0.845, "majority": 0.76, "DP-BLSGD": 0.84}


def write_fakes(folder: Path, *, fast: bool = True, names=None, folds=None) -> None:
    """Write rows for all cells of all experiments, or for some."""
    for name in names or experiment_names():
        wanted = experiment(name, fast=fast)
        results = Results(folder, wanted, fast=fast)
        results.note_build()
        for cell in wanted.run_keys():
            if folds is None or cell.fold in folds:
                rows = curve if wanted.kind == "networks" else point
                results.append(cell, rows(wanted, cell))


def point(wanted: Experiment, cell: RunKey) -> list[dict]:
    """Return one row that gets better with the budget."""
    rng = np.random.default_rng(cell.seed())
    good = GOOD.get(cell.line, 0.8 + 0.002 * (len(cell.line) % 9))
    noise = 0.002 if cell.line in ("majority", "non-private") else 0.01
    loss = 0.02 / cell.epsilon**0.5 if noise == 0.01 else 0.0
    sampling_prob = float(wanted.options_of(cell.setting).get("sampling_prob", 0.1))
    batches = int(
        min(wanted.max_batches or 200, 40 * cell.epsilon / sampling_prob**0.6)
    )
    return [
        {
            "accuracy": round(good - loss * 0.3 + noise * rng.normal(), 5),
            "objective": round(0.4 + loss + abs(0.02 * rng.normal()), 5),
            "gradients": batches,
            "objectives": 4 * batches,
            "batches": batches,
            "updates": batches,
            "seconds": 0.5,
        }
    ]


def curve(wanted: Experiment, cell: RunKey) -> list[dict]:
    """Return rows whose accuracy rises and whose step size falls."""
    rng = np.random.default_rng(cell.seed())
    private = "non-private" not in cell.line
    speed = {"DP-BLSGD (network)": 8.0, "Adam, non-private": 12.0}.get(cell.line, 4.0)
    every = range(wanted.evaluate_every, wanted.steps + 1, wanted.evaluate_every)
    rows = []
    for number in every:
        part = number / wanted.steps
        level = 1.0 - math.exp(-speed * part)
        searched = cell.line.startswith(("DP-BLSGD", "auto"))
        rows.append(
            {
                "iteration": number,
                "accuracy": round(0.1 + 0.85 * level + 0.01 * rng.normal(), 5),
                "objective": round(2.3 - 2.0 * level + 0.02 * rng.normal(), 5),
                "spent": cell.epsilon * part**0.5 if private else None,
                "printed": 0.6 * cell.epsilon * part**0.5 if private else None,
                "step_size": 0.3 * 0.8 ** int(6 * part) if searched else None,
                "seconds": round(10.0 * part, 3),
            }
        )
    return rows
