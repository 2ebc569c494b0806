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

import pandas as pd
from filelock import FileLock, Timeout

from armijo_reproduction import datasets
from armijo.errors import ArmijoError
from armijo_reproduction.results import Results, at_the_end
from armijo_reproduction.spec import Cell, Experiment, experiment

Rows = list[dict[str, Any]]
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is.

    Attributes
    ----------
    done, total : int
        Cells with a result, and all cells.
    seconds_left : float
        Estimated from the mean time of the cells of each line.
    last : Cell or None
        The cell that was finished last.
    """

    done: int
    total: int
    seconds_left: float
    last: Cell | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run did: new cells, cells that wait for another experiment, times."""

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
    stand_in: bool | None = None,
    deadline: float | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Run the missing cells of an experiment and append their rows.

    Parameters
    ----------
    name : str
        The experiment.
    folder : path
        Where its results are; the fast version has a file of its own.
    fast : bool
        Run the fast version.
    jobs : int
        Processes; each computes on one thread.
    stand_in : bool or None
        Whether to take generated data; None does so in a fast version without data.
    deadline : float or None
        Start no cell after so many seconds.
    progress : callable
        Told of every finished cell.
    """
    wanted = experiment(name, fast=fast)
    if stand_in is None:
        stand_in = fast and not all(map(datasets.available, wanted.published()))
    results = Results(folder, wanted, fast=fast)
    with _alone(results.path):
        results.mend()
        results.note_build()
        done = results.done()
        every = list(wanted.cells())
        missing = [cell for cell in every if astuple(cell) not in done]
        tasks, waiting = _tasks(wanted, missing, folder, fast)
        begun = time.monotonic()
        clock = _Clock(results.table(), tasks, jobs)
        count = len(every) - len(missing)
        own = 0.0
        new = 0
        progress(Progress(done=count, total=len(every), seconds_left=clock.left()))
        for cell, rows in _finished(wanted, tasks, jobs, stand_in, deadline):
            results.append(cell, rows)
            new, own = new + 1, own + rows[-1]["seconds"]
            left = clock.note(cell, rows[-1]["seconds"])
            progress(
                Progress(
                    done=count + new, total=len(every), seconds_left=left, last=cell
                )
            )
    elapsed = time.monotonic() - begun
    return Outcome(new=new, waiting=waiting, seconds=elapsed, own_seconds=own)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Refuse a second runner on the same results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{path}.lock", timeout=0):
            yield
    except Timeout:
        raise ArmijoError(
            f"Another process is writing {path}; wait for it, or name another folder."
        ) from None


Task = tuple[Cell, dict[str, Any]]


def _tasks(
    wanted: Experiment, missing: list[Cell], folder: Path, fast: bool
) -> tuple[list[Task], int]:
    """Return the cells that can run, with their parameters, and how many must wait."""
    best = {
        line.best_of: best_settings(line.best_of, folder, fast=fast)
        for line in wanted.lines
        if line.best_of is not None
    }
    tasks: list[Task] = []
    for cell in missing:
        line = wanted.line(cell.line)
        options = {**line.options, **wanted.options_of(cell.setting)}
        if line.best_of is not None:
            chosen = best[line.best_of].get((cell.dataset, cell.model, cell.epsilon))
            if chosen is None:
                continue
            options |= chosen
        tasks.append((cell, options))
    return tasks, len(missing) - len(tasks)


def best_settings(
    name: str, folder: Path, *, fast: bool = False
) -> dict[tuple[str, str, float], dict[str, Any]]:
    """Return the setting with the best mean test accuracy: hindsight, not private.

    A data set, model and budget of which any cell is missing is left out.
    """
    grid = experiment(name, fast=fast)
    results = at_the_end(Results(folder, grid, fast=fast).table())
    expected = sum(1 for _ in grid.cells()) // (
        len(grid.datasets) * len(grid.models) * len(grid.epsilons)
    )
    found = {}
    for key, part in results.groupby(["dataset", "model", "epsilon"]):
        if len(part) >= expected:
            mean = part.groupby("setting")["accuracy"].mean()
            found[key] = grid.options_of(str(mean.idxmax()))
    return found


class _Clock:
    """Estimates the time left from the mean time of each line."""

    def __init__(self, table: pd.DataFrame, tasks: list[Task], jobs: int) -> None:
        last = table.groupby(["line", "fold", "repeat", "epsilon", "setting"])
        spent = last["seconds"].max().groupby("line")
        self._sum, self._count = spent.sum().to_dict(), spent.count().to_dict()
        self._todo: dict[str, int] = {}
        for cell, _ in tasks:
            self._todo[cell.line] = self._todo.get(cell.line, 0) + 1
        self._jobs = jobs

    def note(self, cell: Cell, seconds: float) -> float:
        """Take a finished cell, and return the estimate."""
        self._sum[cell.line] = self._sum.get(cell.line, 0.0) + seconds
        self._count[cell.line] = self._count.get(cell.line, 0) + 1
        self._todo[cell.line] -= 1
        return self.left()

    def left(self) -> float:
        """Return the estimate; a line without a time counts as the mean of others."""
        total, count = sum(self._sum.values()), sum(self._count.values())
        usual = total / count if count else 0.0
        seconds = sum(
            todo * (self._sum[line] / self._count[line] if line in self._sum else usual)
            for line, todo in self._todo.items()
        )
        return float(seconds / self._jobs)


def _finished(
    wanted: Experiment,
    tasks: list[Task],
    jobs: int,
    stand_in: bool,
    deadline: float | None,
) -> Iterator[tuple[Cell, Rows]]:
    """Yield cells as they are finished, a few ahead of the processes."""
    if not tasks:
        return
    stop = None if deadline is None else time.monotonic() + deadline
    queue = iter(tasks)
    with _one_thread_each(), _pool(jobs) as pool:
        pending: dict[Future[Rows], Cell] = {}
        try:
            while True:
                late = stop is not None and time.monotonic() > stop
                room = 0 if late else jobs + 1 - len(pending)
                for cell, options in islice(queue, room):
                    future = pool.submit(run_cell, wanted, cell, options, stand_in)
                    pending[future] = cell
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
    import torch

    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the process that started this one."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let new processes read that they have one thread."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run_cell(
    wanted: Experiment, cell: Cell, options: Mapping[str, Any], stand_in: bool
) -> Rows:
    """Run one cell in this process."""
    if wanted.kind == "convex":
        from armijo_reproduction.convex import run_convex

        return run_convex(wanted, cell, options, stand_in=stand_in)
    from armijo_reproduction.network_runs import run_network

    return run_network(wanted, cell, options, stand_in=stand_in)
