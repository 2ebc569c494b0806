# SPDX-License-Identifier: Apache-2.0
"""Progress of a fit in the terminal: released values only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:  # the loop brings torch, which accounting commands do without
    from armijo.methods.base import StepRecord


class FitProgress:
    """A line for each fit with spent epsilon and current step size."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def start(self, epsilon: float) -> Callable[["StepRecord"], None]:
        """Return the callback of one fit; its line appears with the first batch."""
        task = self._bar.add_task("", total=epsilon, batch=0, step="", visible=False)

        def step(record: "StepRecord") -> None:
            self._bar.start()
            size = "none found"
            if record.step_size is None:
                size = "none needed"
            elif record.step_size > 0:
                size = f"{record.step_size:.3g}"
            self._bar.update(
                task,
                completed=record.epsilon,
                batch=record.batch + 1,
                step=size,
                visible=True,
            )

        return step


@contextmanager
def fit_progress(*, quiet: bool = False) -> Iterator[FitProgress]:
    """Show fits on standard error while they run."""
    columns = (
        TextColumn("batch {task.fields[batch]}"),
        BarColumn(),
        TextColumn("epsilon {task.completed:.4g} of {task.total:g}"),
        TextColumn("step size {task.fields[step]}"),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True, quiet=quiet))
    try:
        yield FitProgress(bar)
    finally:
        bar.stop()
