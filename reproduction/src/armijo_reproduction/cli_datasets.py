# SPDX-License-Identifier: Apache-2.0
"""``armijo datasets list | fetch | check``: published data, found or fetched."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from armijo.cli.output import emit, emit_json

if TYPE_CHECKING:  # the datasets bring pandas, which the other commands do without
    from armijo_reproduction.datasets import FileStatus

DAMAGED = 2

app = typer.Typer(help="Published datasets: list, fetch, check.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="A dataset's name; see list.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list")
def list_datasets(*, json: AsJson = False) -> None:
    """List the datasets and whether they are on this machine."""
    from armijo_reproduction.datasets import DATASETS, available

    found = [
        {
            "name": name,
            "here": available(name),
            "rows": entry.n_rows,
            "train_rows": entry.n_train,
            "shape": list(entry.row_shape),
            "classes": len(entry.classes),
            "summary": entry.summary,
        }
        for name, entry in DATASETS.items()
    ]
    if json:
        emit_json({"datasets": found})
        return
    table = Table(title="Datasets", title_justify="left")
    for heading in ("name", "here", "rows", "one row", "what it is"):
        table.add_column(heading, no_wrap=heading == "name")
    for row, entry in zip(found, DATASETS.values(), strict=True):
        table.add_row(
            entry.name,
            "yes" if row["here"] else "no",
            str(entry.n_rows),
            " x ".join(map(str, entry.row_shape)),
            entry.summary,
        )
    Console().print(table)


@app.command("fetch")
def fetch(
    name: Name,
    *,
    file: Annotated[
        Path | None, typer.Option(help="A file of your own, verified and kept.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Download a dataset from its publisher, or take a file of your own."""
    from armijo_reproduction.datasets import fetch as fetch_dataset

    with _downloads(quiet=json) as (started, progress):
        paths = fetch_dataset(name, own_file=file, progress=progress, started=started)
    result = {"name": name, "files": [str(path) for path in paths]}
    emit(result, title="Dataset", as_json=json)


@contextmanager
def _downloads(
    *, quiet: bool
) -> Iterator[tuple[Callable[[str], None], Callable[[int, int | None], None]]]:
    """Show a bar on standard error for every file that is really downloaded."""
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    tasks: list[TaskID] = []
    with Progress(*columns, console=Console(file=sys.stderr, quiet=quiet)) as bar:

        def started(name: str) -> None:
            tasks.append(bar.add_task(name, total=None, visible=False))

        def progress(done: int, total: int | None) -> None:
            bar.update(tasks[-1], completed=done, total=total, visible=True)

        yield started, progress


@app.command("check")
def check(
    name: Annotated[
        str | None, typer.Argument(help="A dataset's name; all of them without.")
    ] = None,
    *,
    json: AsJson = False,
) -> None:
    """Verify the files that are here; 2 is the exit code if one is damaged."""
    from armijo_reproduction.datasets import DATASETS
    from armijo_reproduction.datasets import check as check_dataset

    names = [name] if name is not None else list(DATASETS)
    states = {each: check_dataset(each) for each in names}
    results = [_checked(each, found) for each, found in states.items()]
    if name is not None:
        emit(results[0], title="Dataset", as_json=json)
    elif json:
        emit_json({"datasets": results})
    else:
        _print_states(states)
    if any(s.state == "damaged" for found in states.values() for s in found):
        raise typer.Exit(DAMAGED)


def _checked(name: str, states: "Sequence[FileStatus]") -> dict[str, object]:
    """Return what was found of one dataset."""
    return {
        "name": name,
        "files": [f"{s.name}: {s.state} {s.detail}".strip() for s in states],
        "complete": all(s.state in ("verified", "unverified") for s in states),
    }


def _print_states(states: "Mapping[str, Sequence[FileStatus]]") -> None:
    """Print every file of every dataset as one table."""
    table = Table(title="Datasets", title_justify="left")
    for heading in ("name", "file", "state"):
        table.add_column(heading, overflow="fold")
    for name, found in states.items():
        for status in found:
            state = f"{status.state} {status.detail}".strip()
            table.add_row(name, status.name, Text(state))
    Console().print(table)
