# SPDX-License-Identifier: Apache-2.0
"""``armijo datasets list | fetch | check``: published tables, found or fetched."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from armijo.cli.output import emit, emit_json

app = typer.Typer(help="Published datasets: list, fetch, check.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="A dataset's name; see list.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list")
def list_datasets(*, json: AsJson = False) -> None:
    """List the datasets and whether they are on this machine."""
    from armijo.datasets import DATASETS, available

    found = {name: available(name) for name in DATASETS}
    if json:
        emit_json({"datasets": [{"name": n, "here": h} for n, h in found.items()]})
        return
    table = Table(title="Datasets", title_justify="left")
    for heading in ("name", "here", "rows", "what it is"):
        table.add_column(heading)
    for name, here in found.items():
        entry = DATASETS[name]
        table.add_row(name, "yes" if here else "no", str(entry.n_rows), entry.summary)
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
    from armijo.datasets import fetch as fetch_dataset

    columns = TextColumn(name), BarColumn(), DownloadColumn()
    with Progress(*columns, console=Console(file=sys.stderr, quiet=json)) as bar:
        task = bar.add_task(name, total=None)

        def progress(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        paths = fetch_dataset(name, own_file=file, progress=progress)
    result = {"name": name, "files": [str(path) for path in paths]}
    emit(result, title="Dataset", as_json=json)


@app.command("check")
def check(name: Name, *, json: AsJson = False) -> None:
    """Verify the files of a dataset."""
    from armijo.datasets import check as check_dataset

    states = check_dataset(name)
    result = {
        "name": name,
        "files": [f"{s.name}: {s.state} {s.detail}".strip() for s in states],
        "complete": all(s.state in ("verified", "unverified") for s in states),
    }
    emit(result, title="Dataset", as_json=json)
