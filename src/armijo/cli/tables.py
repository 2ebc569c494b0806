# SPDX-License-Identifier: Apache-2.0
"""``armijo schema``, ``fit``, ``predict`` and ``show``: tables in, models out."""

import json as json_module
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from armijo import _validate
from armijo.cli._ui import emit, fail, warn, write_new
from armijo.cli.progress import fit_progress
from armijo.cli.verify import NOT_VERIFIED
from armijo.errors import TableError

Table = Annotated[Path, typer.Argument(help="A CSV or Parquet file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Multiline = Annotated[
    bool,
    typer.Option(
        "--multiline",
        help="Quoted cells of the CSV file may hold line breaks. The guarantee then "
        "assumes that the borders of its rows are right.",
    ),
]
INTERRUPTED = 130


def schema(
    table: Table,
    *,
    target: Annotated[str | None, typer.Option(help="The column to learn.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write; default: standard output.")
    ] = None,
    multiline: Multiline = False,
) -> None:
    """Draft a schema file for you to edit.

    The draft reads bounds and categories from the data, which is NOT private: replace
    them by public knowledge before training.
    """
    from armijo.tables import draft_schema

    text = draft_schema(table, target, multiline=multiline)
    if out is None:
        sys.stdout.write(text)
    elif out.exists():
        raise TableError(f"The file {out} exists; name another or remove it.")
    else:
        write_new(out, text)
    warn(
        "bounds, categories and classes in this draft were read from the data and are "
        "not private. Replace them by public knowledge, then set reviewed = true."
    )


def check(
    table: Table,
    *,
    schema: Annotated[Path, typer.Option(help="The schema file.")],
    multiline: Multiline = False,
) -> None:
    """Name a row that does not fit the schema: for your eyes, NOT private.

    Training takes such rows for blank ones, which add nothing, and never tells.
    """
    from armijo.cli.fit import check_table

    rows = check_table(table, schema=schema, multiline=multiline)
    emit({"rows": rows, "blank_rows": 0}, title=f"Rows of {table}", as_json=False)


def fit(
    table: Table,
    *,
    schema: Annotated[Path, typer.Option(help="The reviewed schema file.")],
    out: Annotated[Path, typer.Option(help="Folder for model, report and ledger.")],
    epsilon: Annotated[float, typer.Option(help="The epsilon of the guarantee.")],
    delta: Annotated[float, typer.Option(help="The delta of the guarantee.")],
    target: Annotated[str | None, typer.Option(help="The column to learn.")] = None,
    model: Annotated[str, typer.Option(help="logistic or svm.")] = "logistic",
    method: Annotated[
        str, typer.Option(help="The algorithm: `armijo methods` lists them.")
    ] = "auto",
    sampling_prob: Annotated[
        float | None, typer.Option(help="Sampling ratio, where the method samples.")
    ] = None,
    expected_steps: Annotated[
        int | None,
        typer.Option(
            help="Line search: solve budgets for this many steps (default 100); 0: as "
            "in the paper."
        ),
    ] = None,
    search_form: Annotated[
        str | None,
        typer.Option(help='Line search: "difference" (default) or "loss".'),
    ] = None,
    data_norm: Annotated[
        float | None,
        typer.Option(help="Public bound on a row's norm, where the method asks."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE: any other parameter of the method."),
    ] = None,
    max_batches: Annotated[
        int | None, typer.Option(help="Most batches; default: all the budget pays.")
    ] = None,
    accounting: Annotated[
        str, typer.Option(help='"sound", or "paper" (as printed: no guarantee).')
    ] = "sound",
    insecure_seed: Annotated[
        int | None, typer.Option(help="Repeatable run WITHOUT a guarantee.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Move what is in the folder aside.")
    ] = False,
    leaky_diagnostics: Annotated[
        bool,
        typer.Option(
            "--leaky-diagnostics",
            help="Also write exact values of the rows, WITHOUT a guarantee.",
        ),
    ] = False,
    multiline: Multiline = False,
    json: AsJson = False,
) -> None:
    """Train a private model on a table."""
    from armijo.cli.fit import fit_table

    _validate.at_least(0, insecure_seed=insecure_seed or 0)
    asked = {
        "sampling_prob": sampling_prob,
        "expected_steps": expected_steps,
        "search_form": search_form,
        "data_norm": data_norm,
    }
    parameters = {
        "epsilon": epsilon,
        "delta": delta,
        "method": method,
        "options": _method_options(method, asked, option or []),
        "max_batches": max_batches,
        "accounting": accounting,
        "random_state": insecure_seed,
        "leaky_diagnostics": leaky_diagnostics,
    }
    with fit_progress(quiet=json) as progress, _finish_step_on_interrupt() as stopped:
        step = progress.start(epsilon)
        outcome = fit_table(
            table,
            schema=schema,
            out=out,
            target=target,
            kind=model,
            parameters=parameters,
            callback=lambda record: step(record) or stopped(),
            resume=resume,
            overwrite=overwrite,
            multiline=multiline,
        )
    if not outcome.finished:
        warn(
            f"interrupted after {outcome.estimator.n_iter_} batches; run the same "
            "command with --resume to go on. What was charged stays charged."
        )
        raise typer.Exit(INTERRUPTED)
    _show_outcome(outcome, as_json=json)


def _method_options(
    method: str, asked: dict[str, Any], options: list[str]
) -> dict[str, Any]:
    """Return what was asked of the method; line searches have defaults of their own."""
    from armijo.methods.line_search import LINE_SEARCHES

    given = {name: value for name, value in asked.items() if value is not None}
    if method in LINE_SEARCHES:
        given = {"expected_steps": 100, "search_form": "difference", **given}
        given["expected_steps"] = given["expected_steps"] or None
    return given | dict(_parsed(text) for text in options)


def _parsed(text: str) -> tuple[str, Any]:
    """Split NAME=VALUE; a value that is no JSON is text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"Expected --option NAME=VALUE, got {text!r}.")
    try:
        return name, json_module.loads(value)
    except (ValueError, RecursionError):
        return name, value


def methods(*, json: AsJson = False) -> None:
    """List the methods and the parameters that each takes."""
    from armijo.registry import describe_methods

    found = describe_methods()
    if json:
        emit({"methods": found}, title="Methods", as_json=True)
        return
    shown = {
        one["name"]: f"{one['summary']}\n  takes: {', '.join(one['parameters']) or '-'}"
        for one in found
    }
    emit(shown, title="Methods", as_json=False)


def _show_outcome(outcome: Any, *, as_json: bool) -> None:
    """Print what a fit left."""
    privacy = outcome.estimator.privacy_
    if not privacy.guarantee.holds:
        warn(privacy.guarantee.sentence())
    result = {
        "statement": privacy.guarantee.sentence(),
        "guarantee": privacy.guarantee.holds,
        "epsilon": privacy.budget.epsilon,
        "delta": privacy.budget.delta,
        "relation": privacy.relation.value,
        "accountant": privacy.accountant,
        "broken_premises": list(privacy.guarantee.broken_premises),
        "assumptions": list(privacy.guarantee.assumptions),
        "batches": outcome.estimator.n_iter_,
        "model": str(outcome.folder / "model.json"),
        "report": str(outcome.folder / "report.html"),
        "ledger": str(outcome.folder / "ledger.jsonl"),
    }
    emit(result, title="Private model", as_json=as_json)


@contextmanager
def _finish_step_on_interrupt() -> Iterator[Any]:
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


def predict(
    model: Annotated[Path, typer.Argument(help="The model file or its folder.")],
    table: Table,
    *,
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; default: standard output.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add a column for each class.")
    ] = False,
    multiline: Multiline = False,
) -> None:
    """Predict each row of a table with a fitted model."""
    from armijo.cli.fit import predict_table

    if out is not None and out.exists():
        raise TableError(f"The file {out} exists; name another or remove it.")
    frame = predict_table(
        model, table, probabilities=probabilities, multiline=multiline
    )
    text = frame.to_csv(index=False)
    if out is None:
        sys.stdout.write(text)
    else:
        write_new(out, text)


def show(
    folder: Annotated[Path, typer.Argument(help="A folder that fit left.")],
    *,
    json: AsJson = False,
) -> None:
    """Show guarantee, ledger and model of a run, and whether it verifies."""
    from armijo.report.verify import summarize_run

    described: dict[str, Any] = summarize_run(folder)
    emit(described, title=f"Run in {folder}", as_json=json)
    if described["faults"]:
        fail("; ".join(described["faults"]))
        raise typer.Exit(NOT_VERIFIED)
