# SPDX-License-Identifier: Apache-2.0
"""What commands show: one JSON object or a table; progress and errors on stderr."""

import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from armijo._files import replace_file
from armijo.errors import TableError

if TYPE_CHECKING:  # the loop brings torch, which accounting commands do without
    from armijo.methods.base import StepRecord


def emit(result: Mapping[str, object], *, title: str, as_json: bool) -> None:
    """Print the result as exactly one JSON object, or as a table of two columns."""
    if as_json:
        emit_json(result)
        return
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("value", overflow="fold")
    for name, value in result.items():
        table.add_row(name.replace("_", " "), Text(_readable(value)))
    Console().print(table)


def emit_json(result: Mapping[str, object]) -> None:
    """Print exactly one JSON object on standard output."""
    sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")


def emit_rows(
    title: str, headings: Mapping[str, bool], rows: Iterable[Iterable[str]]
) -> None:
    """Print rows below headings; a heading says whether its column holds numbers."""
    table = Table(title=title, title_justify="left")
    for heading, numbers in headings.items():
        table.add_column(heading, justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def say(text: str) -> None:
    """Print a sentence."""
    Console().print(Text(text))


def warn(message: str) -> None:
    """Print a warning on standard error."""
    Console(stderr=True).print(Text(f"Warning: {message}", style="yellow"))


def fail(message: str) -> None:
    """Print an error on standard error."""
    Console(stderr=True).print(Text(f"Error: {message}", style="red"))


def _readable(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "\n".join(f"- {_readable(item)}" for item in value) or "none"
    return "none" if value is None else str(value)


def refuse_existing(path: Path | None) -> None:
    """Refuse a file that is there."""
    if path is not None and path.exists():
        raise TableError(f"The file {path} exists; name another or remove it.")


def write_text(path: Path | None, text: str) -> None:
    """Write a file, whole or not at all, or standard output."""
    if path is None:
        sys.stdout.write(text)
    else:
        replace_file(path, text.encode())


class FitProgress:
    """A line on standard error for each fit: spent epsilon and current step size."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._bar = Progress(
            TextColumn("batch {task.fields[batch]}"),
            BarColumn(),
            TextColumn("epsilon {task.completed:.4g} of {task.total:g}"),
            TextColumn("step size {task.fields[step]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True, quiet=quiet),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

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
def game_progress(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show the current game of an audit on standard error."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    console = Console(stderr=True, quiet=quiet)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")

        def advance(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total)

        yield advance


@contextmanager
def finish_step_on_interrupt() -> Iterator[Any]:
    """Let Ctrl-C end the run after the step in progress, so that nothing is lost."""
    asked = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)  # a second Ctrl-C ends at once

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
