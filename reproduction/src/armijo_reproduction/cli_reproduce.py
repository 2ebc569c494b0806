# SPDX-License-Identifier: Apache-2.0
"""``armijo reproduce``: the paper's experiments."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

from armijo.cli.output import emit, emit_json, fail

if TYPE_CHECKING:  # the experiments bring torch, which --help does without
    from armijo_reproduction.runner import Progress

Folder = Annotated[
    Path, typer.Option("--results", help="Where the result files are and grow.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
RESULTS = Path("results")


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="An experiment's name; see --list.")
    ] = None,
    *,
    fast: Annotated[
        bool, typer.Option(help="A small version of it, in seconds.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes, of one thread each.")
    ] = 1,
    results: Folder = RESULTS,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Start no run after so many minutes.")
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="Name all of them.")] = False,
    json: AsJson = False,
) -> None:
    """Run an experiment of the paper: what is missing of it, as far as it gets.

    Every finished run is a row of a CSV file at once, so that an interrupted
    experiment goes on where it was. The data sets are public and the runs seeded.
    """
    if names:
        _list(as_json=json)
        return
    if name is None:
        fail("name an experiment, or give --list.")
        raise typer.Exit(2)
    from armijo_reproduction import reproduce as run

    with _bar(quiet=json) as progress:
        outcome = run(
            name,
            folder=results,
            fast=fast,
            jobs=jobs,
            deadline=None if minutes is None else 60 * minutes,
            progress=progress,
        )
    emit(
        {
            "experiment": name,
            "new_runs": outcome.new,
            "waiting_for_another_experiment": outcome.waiting,
            "seconds": round(outcome.seconds, 1),
            "seconds_in_methods": round(outcome.own_seconds, 1),
            "results": str(results / f"{name}{'-fast' if fast else ''}.csv"),
        },
        title="Experiment",
        as_json=json,
    )


def _list(*, as_json: bool) -> None:
    """Print the names, titles and sizes of all experiments."""
    from armijo_reproduction import experiment, experiment_names

    found: list[dict[str, Any]] = []
    for name in experiment_names():
        each = experiment(name)
        runs = sum(1 for _ in each.cells())
        found.append(
            {"name": name, "title": each.title, "kind": each.kind, "runs": runs}
        )
    if as_json:
        emit_json({"experiments": found})
        return
    table = Table(title="Experiments", title_justify="left")
    for heading in ("name", "what it is", "runs"):
        table.add_column(heading, no_wrap=heading == "name")
    for row in found:
        table.add_row(row["name"], row["title"], str(row["runs"]))
    Console().print(table)


@contextmanager
def _bar(*, quiet: bool) -> Iterator[Callable[["Progress"], None]]:
    """Show runs done, the time left and the last run on standard error."""
    columns = (
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("about {task.fields[left]} left"),
        TextColumn("{task.fields[last]}", style="dim"),
    )
    with Bar(*columns, console=Console(file=sys.stderr, quiet=quiet)) as bar:
        task = bar.add_task("", total=None, left="?", last="")

        def progress(at: "Progress") -> None:
            last = "" if at.last is None else f"{at.last.line} {at.last.epsilon:g}"
            bar.update(
                task,
                completed=at.done,
                total=at.total,
                left=_readable(at.seconds_left),
                last=last,
            )

        yield progress


def _readable(seconds: float) -> str:
    """Return a time as a person would say it.

    >>> _readable(42), _readable(900), _readable(9000)
    ('42 s', '15 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
