# SPDX-License-Identifier: Apache-2.0
"""``armijo verify``: does a finished run hold together, and cost what it claims."""

from pathlib import Path
from typing import Annotated

import typer

from armijo.cli._ui import emit, fail

NOT_VERIFIED = 4
"""Exit code of a run that does not verify, as of an audit that refutes a claim."""


def verify(
    run: Annotated[
        Path,
        typer.Argument(help="A folder that fit left, a ledger file, or a checkpoint."),
    ],
    *,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Ledger of a checkpoint; default: beside it."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.")
    ] = False,
) -> None:
    """Verify ledger and files of a run, and recompute epsilon from its charges.

    The exit code is 4 if anything is wrong or the run is unfinished.
    """
    from armijo.report.verify import verify_run

    found = verify_run(run, ledger=ledger)
    result = found.to_dict()
    if not json:
        result["faults"] = [str(fault) for fault in found.faults]
    emit(result, title=f"Verification of {run}", as_json=json)
    if not found.verified:
        named = "; ".join(map(str, found.faults)) or f"{found.ledger}: {found.verdict}"
        fail(named)
        raise typer.Exit(NOT_VERIFIED)
