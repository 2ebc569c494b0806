# SPDX-License-Identifier: Apache-2.0
"""The ``armijo`` program: a command parses, calls one library function, prints."""

import sys
from typing import Annotated

import typer

from armijo import __version__
from armijo.cli import commands, images
from armijo.cli._ui import fail
from armijo.errors import ArmijoError, BudgetExceeded, Diverged

__all__ = ["app", "main"]

BAD_ARGUMENT, BUDGET_EXHAUSTED, DIVERGED = 2, 3, 5

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    commands.account,
    commands.calibrate,
    commands.schema,
    commands.check,
    commands.fit,
    images.fit_images,
    images.predict_images,
    commands.methods,
    commands.predict,
    commands.show,
    commands.verify,
    commands.demo,
    commands.audit,
):
    app.command()(command)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"armijo {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Differentially private training that finds its own step size."""


def main() -> None:
    """Run the program, and turn errors into exit codes.

    2 is a bad argument or file, 3 a budget used up, 4 a claim that an audit refutes or
    a run that does not verify, 5 a run that diverged.
    """
    try:
        app()
    except SystemExit as ended:
        # Typer turns an interrupt into an exit that says nothing.
        if isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt):
            fail("interrupted; a fit that had begun goes on with --resume.")
            sys.exit(commands.INTERRUPTED)
        raise
    except (ArmijoError, ValueError, OSError) as error:
        fail(str(error))
        if isinstance(error, BudgetExceeded):
            sys.exit(BUDGET_EXHAUSTED)
        sys.exit(DIVERGED if isinstance(error, Diverged) else BAD_ARGUMENT)
