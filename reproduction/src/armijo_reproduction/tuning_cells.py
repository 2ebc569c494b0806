# SPDX-License-Identifier: Apache-2.0
"""The cost of the automatic method in each cell of its table of accuracies.

Fold 0 of every data set, loss and budget: beside the very DP-SGD that hindsight chose
there, accounting included, both in the form of rows that the experiment gives them.
Needs the data sets and the committed results.
"""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from armijo_reproduction import datasets
from armijo_reproduction.runner import best_settings, run_cell
from armijo_reproduction.spec import Cell, Experiment, experiment
from benchmarks import Row, at_most

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "reproduction"
AUTO, TUNED = "auto", "DP-SGD (hindsight)"
ROUNDS, LIMIT = 3, 1.5


def _seconds(wanted: Experiment, cell: Cell, options: dict[str, Any]) -> float:
    """Return the processor time of a run in a process that has computed nothing yet."""
    with get_context("fork").Pool(1) as pool:
        found = pool.apply(run_cell, (wanted, cell, options, False))
    return float(found[-1]["seconds"])


def _cells() -> Iterator[tuple[str, float, float]]:
    """Yield the name of each cell and the median times of both methods, in turns."""
    wanted = experiment("zero-tuning")
    chosen = best_settings("zero-tuning-grid", RESULTS)
    first = [c for c in wanted.cells() if (c.fold, c.repeat, c.line) == (0, 0, AUTO)]
    for cell in first:
        options = chosen[cell.dataset, cell.model, cell.epsilon]
        peer = replace(cell, line=TUNED)
        for each, asked in ((cell, {}), (peer, {"steps": 5})):
            # Reads rows and code, which new processes inherit; its plan is another one.
            run_cell(wanted, replace(each, epsilon=3.3), asked, False)
        runs = ((cell, {}), (peer, options))
        times = [[_seconds(wanted, *run) for run in runs] for _ in range(ROUNDS)]
        ours, theirs = map(statistics.median, zip(*times, strict=True))
        name = f"{cell.dataset} {cell.model}, epsilon {cell.epsilon:g}"
        yield f"{name}: auto beside DP-SGD of {options['steps']} steps", ours, theirs


def rows() -> list[Row]:
    """Measure every cell, and all of them together."""
    if not all(map(datasets.available, experiment("zero-tuning").published())):
        return []
    torch.set_num_threads(1)
    found = list(_cells())
    ours, theirs = (sum(cell[k] for cell in found) for k in (1, 2))
    found.append(("auto beside DP-SGD chosen in hindsight, all cells", ours, theirs))
    return [at_most(name, ours, theirs, LIMIT) for name, ours, theirs in found]
