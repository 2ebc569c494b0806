# SPDX-License-Identifier: Apache-2.0
"""Result files with synthetic numbers, for tests of figures, tables and claims."""

import math
from pathlib import Path

import numpy as np

from armijo_reproduction.results import Results
from armijo_reproduction.spec import Experiment, RunKey, experiment, experiment_names

GOOD = {"non-private": 0.85, "auto": 0.845, "majority": 0.76, "DP-BLSGD": 0.84}


def write_fakes(folder: Path, *, fast: bool = True, names=None, folds=None) -> None:
    """Write rows for all runs of all experiments, or for some."""
    for name in names or experiment_names():
        wanted = experiment(name, fast=fast)
        results = Results(folder, wanted, fast=fast)
        results.note_build()
        for key in wanted.run_keys():
            if folds is None or key.fold in folds:
                rows = curve if wanted.kind == "networks" else point
                results.append(key, rows(wanted, key))


def point(wanted: Experiment, key: RunKey) -> list[dict]:
    """Return one row that gets better with the budget."""
    rng = np.random.default_rng(key.seed())
    good = GOOD.get(key.line, 0.8 + 0.002 * (len(key.line) % 9))
    noise = 0.002 if key.line in ("majority", "non-private") else 0.01
    loss = 0.02 / key.epsilon**0.5 if noise == 0.01 else 0.0
    sampling_prob = float(wanted.options_of(key.setting).get("sampling_prob", 0.1))
    batches = int(min(wanted.max_batches or 200, 40 * key.epsilon / sampling_prob**0.6))
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


def curve(wanted: Experiment, key: RunKey) -> list[dict]:
    """Return rows whose accuracy rises and whose step size falls."""
    rng = np.random.default_rng(key.seed())
    private = "non-private" not in key.line
    speed = {"DP-BLSGD (network)": 8.0, "Adam, non-private": 12.0}.get(key.line, 4.0)
    every = range(wanted.evaluate_every, wanted.steps + 1, wanted.evaluate_every)
    rows = []
    for number in every:
        part = number / wanted.steps
        level = 1.0 - math.exp(-speed * part)
        searched = key.line.startswith(("DP-BLSGD", "auto"))
        rows.append(
            {
                "iteration": number,
                "accuracy": round(0.1 + 0.85 * level + 0.01 * rng.normal(), 5),
                "objective": round(2.3 - 2.0 * level + 0.02 * rng.normal(), 5),
                "spent": key.epsilon * part**0.5 if private else None,
                "printed": 0.6 * key.epsilon * part**0.5 if private else None,
                "step_size": 0.3 * 0.8 ** int(6 * part) if searched else None,
                "seconds": round(10.0 * part, 3),
            }
        )
    return rows
