# SPDX-License-Identifier: Apache-2.0
"""The ``armijo`` program: its commands, and how errors become exit codes."""

import sys
from typing import Annotated

import typer

import armijo
from armijo.cli import account, audit, demo, tables, verify
from armijo.cli._ui import fail
from armijo.errors import ArmijoError, BudgetExceeded, Diverged

BAD_ARGUMENT = 2
BUDGET_EXHAUSTED = 3
DIVERGED = 5
INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("account")(account.account)
app.command("calibrate")(account.calibrate)
app.command("schema")(tables.schema)
app.command("check")(tables.check)
app.command("fit")(tables.fit)
app.command("methods")(tables.methods)
app.command("predict")(tables.predict)
app.command("show")(tables.show)
app.command("verify")(verify.verify)
app.command("demo")(demo.demo)
app.command("audit")(audit.audit)


def _print_version(asked: bool) -> None:
    """Print the version and exit."""
    if asked:
        print(f"armijo {armijo.__version__}")
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
            sys.exit(INTERRUPTED)
        raise
    except BudgetExceeded as error:
        fail(str(error))
        sys.exit(BUDGET_EXHAUSTED)
    except Diverged as error:
        fail(str(error))
        sys.exit(DIVERGED)
    except (ArmijoError, ValueError, OSError) as error:
        fail(str(error))
        sys.exit(BAD_ARGUMENT)
