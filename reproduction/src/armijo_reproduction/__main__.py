# SPDX-License-Identifier: Apache-2.0
"""``python -m armijo_reproduction``: experiments, figures and datasets."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import rich.progress as bars
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from armijo.cli._ui import emit, emit_json, fail
from armijo.errors import ArmijoError
from armijo_reproduction import datasets, experiment, experiment_names, reproduce
from armijo_reproduction.figures import FIGURES, draw_figures
from armijo_reproduction.page import blocks_of, filled, tables_page
from armijo_reproduction.results import load_parts
from armijo_reproduction.spec import RunKey

BAD_ARGUMENT = DAMAGED = 2
INTERRUPTED = 130
RESULTS, FIGURES_FOLDER = Path("results"), Path("figures")
NONE: list[str] = []

app = typer.Typer(
    help="The experiments, figures and datasets of the paper's reproduction.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Published datasets: list, fetch, check.", no_args_is_help=True)
app.add_typer(data, name="datasets")
Name = Annotated[str, typer.Argument(help="A name; see list.")]
Fast = Annotated[bool, typer.Option("--fast", help="The small version, in seconds.")]
Folder = Annotated[Path, typer.Option(help="Where the result files are and grow.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list")
def list_experiments(*, json: AsJson = False) -> None:
    """List the experiments with their numbers of runs."""
    rows = []
    for wanted in map(experiment, experiment_names()):
        runs = sum(1 for _ in wanted.run_keys())
        about = {"title": wanted.title, "kind": wanted.kind}
        rows.append({"name": wanted.name, **about, "runs": runs})
    _emit_rows("Experiments", rows, ("name", "title", "runs"), as_json=json)


@app.command("run")
def run(
    name: Name,
    *,
    fast: Fast = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, one thread each.")] = 1,
    results: Folder = RESULTS,
    minutes: Annotated[float, typer.Option(min=0, help="Start no run later.")] = 1e9,
    json: AsJson = False,
) -> None:
    """Run or resume one of the paper's experiments.

    Every finished run is a row of a CSV file at once, so that an interrupted
    experiment goes on where it was. The data sets are public and the runs seeded.
    """
    with _bar(quiet=json) as progress:
        outcome = reproduce(
            name,
            folder=results,
            fast=fast,
            jobs=jobs,
            deadline=60 * minutes,
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


@contextmanager
def _bar(*, quiet: bool) -> Iterator[Callable[[int, int, RunKey | None], None]]:
    """Show runs done, the time left and the last run on standard error."""
    last = bars.TextColumn("{task.fields[last]}", style="dim")
    columns = bars.MofNCompleteColumn(), bars.BarColumn(), bars.TimeRemainingColumn()
    console = Console(file=sys.stderr, quiet=quiet)
    with bars.Progress(*columns, last, console=console) as bar:
        task = bar.add_task("", total=None, last="")

        def progress(done: int, total: int, last: RunKey | None) -> None:
            text = "" if last is None else f"{last.line} {last.epsilon:g}"
            bar.update(task, completed=done, total=total, last=text)

        yield progress


@app.command("figures")
def figures(
    names: Annotated[list[str], typer.Argument(help="All that have results.")] = NONE,
    *,
    results: Folder = RESULTS,
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = FIGURES_FOLDER,
    fast: Fast = False,
    tables: Annotated[Path | None, typer.Option(help="Write all tables here.")] = None,
    page: Annotated[Path | None, typer.Option(help="Fill this Markdown page.")] = None,
    json: AsJson = False,
) -> None:
    """Draw the paper's figures from the results that are there, as PNG and SVG.

    The same results give the same files, byte for byte.
    """
    if names and page is not None:
        raise ArmijoError("A page shows all figures; name none of them with --page.")
    parts = load_parts(results, fast=fast)
    template = None if page is None else page.read_text(encoding="utf-8")
    drawn = draw_figures(parts, out, names)
    if tables is not None:
        tables.write_text(tables_page(parts), encoding="utf-8")
    if page is not None and template is not None:
        blocks = blocks_of(parts, drawn, page, results)
        page.write_text(filled(template, blocks, page), encoding="utf-8")
    emit(
        {
            "figures": [str(path) for paths in drawn.values() for path in paths],
            "without_results": [n for n in names or FIGURES if n not in drawn],
            "tables": None if tables is None else str(tables),
            "page": None if page is None else str(page),
        },
        title="Figures",
        as_json=json,
    )


@data.command("list")
def list_datasets(*, json: AsJson = False) -> None:
    """List the datasets and whether they are on this machine."""
    rows = [
        {
            "name": name,
            "here": datasets.available(name),
            "rows": entry.n_rows,
            "train_rows": entry.n_train,
            "shape": list(entry.row_shape),
            "classes": len(entry.classes),
            "summary": entry.summary,
        }
        for name, entry in datasets.DATASETS.items()
    ]
    columns = ("name", "here", "rows", "shape", "summary")
    _emit_rows("Datasets", rows, columns, as_json=json)


@data.command("fetch")
def fetch(
    name: Name,
    *,
    file: Annotated[Path | None, typer.Option(help="A file of your own.")] = None,
    json: AsJson = False,
) -> None:
    """Download a dataset from its publisher, or take a file of your own."""
    paths = datasets.fetch(name, own_file=file, progress=not json)
    result = {"name": name, "files": list(map(str, paths))}
    emit(result, title="Dataset", as_json=json)


@data.command("check")
def check(
    name: Annotated[str | None, typer.Argument(help="All of them without.")] = None,
    *,
    json: AsJson = False,
) -> None:
    """Verify the files that are here; 2 is the exit code if one is damaged."""
    rows: list[dict[str, Any]] = []
    for listed in [name] if name is not None else datasets.DATASETS:
        files = datasets.check(listed)
        texts = [f"{s.name}: {s.state} {s.detail}".strip() for s in files]
        complete = all(s.state in ("verified", "unverified") for s in files)
        rows.append({"name": listed, "files": texts, "complete": complete})
    if name is not None:
        emit(rows[0], title="Dataset", as_json=json)
    else:
        _emit_rows("Datasets", rows, ("name", "files"), as_json=json)
    if any(": damaged" in text for row in rows for text in row["files"]):
        raise typer.Exit(DAMAGED)


def _emit_rows(
    title: str, rows: Sequence[dict[str, Any]], columns: Sequence[str], *, as_json: bool
) -> None:
    """Print all rows as one JSON object, or some columns of them as a table."""
    if as_json:
        emit_json({title.lower(): rows})
        return
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, no_wrap=name == "name", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_readable(row[name])) for name in columns))
    Console().print(table)


def _readable(value: object) -> str:
    r"""Return a value as a table shows it.

    >>> _readable(True), _readable([1, 28, 28]), _readable(["a: missing", "b: missing"])
    ('yes', '1 x 28 x 28', 'a: missing\nb: missing')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        numbers = all(isinstance(item, int) for item in value)
        return (" x " if numbers else "\n").join(map(str, value))
    return str(value)


def main() -> None:
    """Run the program; a bad argument or file is exit code 2."""
    try:
        app()
    except SystemExit as ended:
        # Typer turns an interrupt into an exit that says nothing.
        if isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt):
            fail("interrupted; the same command goes on where it was.")
            sys.exit(INTERRUPTED)
        raise
    except (ArmijoError, ValueError, OSError) as error:
        fail(str(error))
        sys.exit(BAD_ARGUMENT)


if __name__ == "__main__":
    main()
