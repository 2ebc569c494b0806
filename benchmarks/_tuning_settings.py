# SPDX-License-Identifier: Apache-2.0
"""The cost of the automatic method in each setting of its table of accuracies.

Fold 0 of every data set, loss and budget: beside the very DP-SGD that hindsight chose
there, accounting included, both in the form of rows that the experiment gives them.
Needs the data sets and the committed results, and takes long: it is measured only if it
is named.
"""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from armijo_reproduction.runner import best_settings, run_one
from armijo_reproduction.spec import Experiment, RunKey, experiment
from benchmarks import Row, at_most

RESULTS = Path("docs", "results", "reproduction")
AUTO, TUNED = "auto", "DP-SGD (hindsight)"
ROUNDS, LIMIT = 3, 1.5


def _seconds(wanted: Experiment, key: RunKey, options: dict[str, Any]) -> float:
    """Return the processor time of a run in a process that has computed nothing yet."""
    with get_context("fork").Pool(1) as pool:
        rows = pool.apply(run_one, (wanted, key, options, False))
    return float(rows[-1]["seconds"])


def _times() -> Iterator[tuple[str, float, float]]:
    """Yield the name of each setting and the median times of both methods, in turns."""
    wanted = experiment("zero-tuning")
    chosen = best_settings("zero-tuning-grid", RESULTS)
    for key in wanted.run_keys():
        if (key.fold, key.repeat, key.line) != (0, 0, AUTO):
            continue
        options = chosen[key.dataset, key.model, key.epsilon]
        peer = replace(key, line=TUNED)
        for some, asked in ((key, {}), (peer, {"steps": 5})):
            # Reads rows and code, which new processes inherit; its plan is another one.
            run_one(wanted, replace(some, epsilon=3.3), asked, False)
        runs: tuple[tuple[RunKey, dict[str, Any]], ...] = ((key, {}), (peer, options))
        times = [[_seconds(wanted, *run) for run in runs] for _ in range(ROUNDS)]
        ours, theirs = map(statistics.median, zip(*times, strict=True))
        name = f"{key.dataset} {key.model}, epsilon {key.epsilon:g}"
        yield f"{name}: auto beside DP-SGD of {options['steps']} steps", ours, theirs


def rows() -> list[Row]:
    """Measure every setting, and all of them together."""
    torch.set_num_threads(1)
    times = list(_times())
    _, ours, theirs = zip(*times, strict=True)
    name = "auto beside DP-SGD chosen in hindsight, all settings"
    times.append((name, sum(ours), sum(theirs)))
    return [at_most(name, auto, peer, LIMIT) for name, auto, peer in times]
