# SPDX-License-Identifier: Apache-2.0
"""Run what is missing of an experiment, on several processes of one thread each."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from filelock import FileLock, Timeout
from threadpoolctl import threadpool_limits

from armijo.errors import ArmijoError
from armijo_reproduction import datasets
from armijo_reproduction.results import Results, at_the_end
from armijo_reproduction.spec import Experiment, RunKey, experiment

Rows = list[dict[str, Any]]
Task = tuple[RunKey, dict[str, Any]]
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was done: new runs, runs that wait for another experiment, times."""

    new: int
    waiting: int
    seconds: float
    own_seconds: float


def reproduce(
    name: str,
    *,
    folder: Path,
    fast: bool = False,
    jobs: int = 1,
    synthetic: bool | None = None,
    deadline: float | None = None,
    progress: Callable[[int, int, RunKey | None], None] = lambda *_: None,
) -> Outcome:
    """Make the missing runs of an experiment and append their rows.

    Each of the ``jobs`` processes computes on one thread.  Without a choice, data are
    synthetic in a fast version that has none.  After ``deadline`` seconds none starts.
    ``progress(done, total, last)`` is called at the start and after every run.
    """
    wanted = experiment(name, fast=fast)
    if synthetic is None:
        synthetic = fast and not all(map(datasets.available, wanted.published()))
    results = Results(folder, wanted, fast=fast)
    with _exclusive(results.path):
        results.drop_partial()
        results.note_build()
        done = results.done()
        keys = list(wanted.run_keys())
        missing = [key for key in keys if astuple(key) not in done]
        tasks, waiting = _tasks(wanted, missing, folder, fast)
        begun = time.monotonic()
        own, new = 0.0, 0
        progress(len(keys) - len(missing), len(keys), None)
        for key, rows in _finished(wanted, tasks, jobs, synthetic, deadline):
            results.append(key, rows)
            new, own = new + 1, own + rows[-1]["seconds"]
            progress(len(keys) - len(missing) + new, len(keys), key)
    elapsed = time.monotonic() - begun
    return Outcome(new=new, waiting=waiting, seconds=elapsed, own_seconds=own)


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Refuse a second runner on the same results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{path}.lock", timeout=0):
            yield
    except Timeout:
        raise ArmijoError(
            f"Another process is writing {path}; wait for it, or name another folder."
        ) from None


def _tasks(
    wanted: Experiment, missing: list[RunKey], folder: Path, fast: bool
) -> tuple[list[Task], int]:
    """Return the runs that can start, with parameters, and how many must wait."""
    grids = {series.best_of for series in wanted.series if series.best_of is not None}
    best = {grid: best_settings(grid, folder, fast=fast) for grid in grids}
    tasks: list[Task] = []
    for key in missing:
        series = wanted.series_named(key.line)
        options = {**series.options, **wanted.options_of(key.setting)}
        if series.best_of is not None:
            chosen = best[series.best_of].get((key.dataset, key.model, key.epsilon))
            if chosen is None:
                continue
            options |= chosen
        tasks.append((key, options))
    return tasks, len(missing) - len(tasks)


def best_settings(
    name: str, folder: Path, *, fast: bool = False
) -> dict[tuple[str, str, float], dict[str, Any]]:
    """Return the setting with the best mean test accuracy: hindsight, not private.

    A data set, model and budget of which any run is missing is left out.
    """
    grid = experiment(name, fast=fast)
    results = at_the_end(Results(folder, grid, fast=fast).table())
    expected = sum(1 for _ in grid.run_keys()) // (
        len(grid.datasets) * len(grid.models) * len(grid.epsilons)
    )
    best = {}
    for key, part in results.groupby(["dataset", "model", "epsilon"]):
        if len(part) >= expected:
            mean = part.groupby("setting")["accuracy"].mean()
            best[key] = grid.options_of(str(mean.idxmax()))
    return best


def _finished(
    wanted: Experiment,
    tasks: list[Task],
    jobs: int,
    synthetic: bool,
    deadline: float | None,
) -> Iterator[tuple[RunKey, Rows]]:
    """Yield runs as they are finished, a few ahead of the processes."""
    if not tasks:
        return
    stop = None if deadline is None else time.monotonic() + deadline
    queue = iter(tasks)
    with _pool(jobs) as pool:
        pending: dict[Future[Rows], RunKey] = {}
        try:
            while True:
                late = stop is not None and time.monotonic() > stop
                room = 0 if late else jobs + 1 - len(pending)
                for key, options in islice(queue, room):
                    future = pool.submit(run_one, wanted, key, options, synthetic)
                    pending[future] = key
                if not pending:
                    return
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    yield pending.pop(future), future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _pool(jobs: int) -> ProcessPoolExecutor:
    """Return processes that start clean: a fork would share threads and locks."""
    return ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin)


def _begin() -> None:
    """Compute on one thread, and end with the runner, even if it is killed."""
    # The variables are for libraries still to be loaded, the limits for the others.
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    import torch

    torch.set_num_threads(1)
    threadpool_limits(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_one(
    wanted: Experiment, key: RunKey, options: Mapping[str, Any], synthetic: bool
) -> Rows:
    """Make one run in this process."""
    from armijo_reproduction import runs

    run = runs.run_convex if wanted.kind == "convex" else runs.run_network
    return run(wanted, key, options, synthetic=synthetic)
