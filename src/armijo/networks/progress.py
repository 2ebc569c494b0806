# SPDX-License-Identifier: Apache-2.0
"""What watches a run: a bar over released values, and the module for a hook."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from armijo.methods.base import StepRecord


def shown(
    records: Iterable[StepRecord], steps: int, *, done: int = 0, visible: bool = True
) -> Iterator[StepRecord]:
    """Pass records on while a bar on standard error follows them."""
    columns = (
        TextColumn("step {task.completed} of {task.total}"),
        BarColumn(),
        TextColumn("step size {task.fields[size]}, epsilon {task.fields[epsilon]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not visible) as bar:
        task = bar.add_task("", total=steps, completed=done, size="-", epsilon="0")
        for record in records:
            bar.update(
                task,
                advance=1,
                size=f"{record.step_size or 0:.3g}",
                epsilon=f"{record.epsilon:.3g}",
            )
            yield record


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode, and each layer back into its own afterwards.

    A hook that calls ``module.eval()`` must not end dropout for the rest of a run.

    >>> module = nn.Dropout()
    >>> with evaluating(module):
    ...     module.training
    False
    >>> module.training
    True
    """
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode
