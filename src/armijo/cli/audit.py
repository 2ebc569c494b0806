# SPDX-License-Identifier: Apache-2.0
"""``armijo audit``: the epsilon that releases themselves give away."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from armijo.cli._ui import emit_json, fail

if TYPE_CHECKING:  # the games bring torch, which accounting commands do without
    from armijo.audit.suite import Audit

REFUTED = 4
"""Exit code of an audit that found more than was claimed."""

_BAR = 8  # characters that stand for the claim


def audit(
    *,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="What to audit, again for more: a private method, step, "
            "search-laplace, search-gaussian, support, network-norms, "
            "network-cancelling, network-contents, one-run-sgd, one-run-auto, "
            "one-run-network. Default: all of them."
        ),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="What audited runs promise.")] = 2.0,
    delta: Annotated[
        float, typer.Option(help="Of that promise; a large one needs fewer trials.")
    ] = 0.05,
    trials: Annotated[
        int | None,
        typer.Option(help="Releases on each of two data sets (default 2000)."),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="300 trials: about a minute.")
    ] = False,
    confidence: Annotated[
        float, typer.Option(help="With which all bounds hold together.")
    ] = 0.95,
    seed: Annotated[
        int | None,
        typer.Option(help="Repeat an audit; default: the system's randomness."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for audit.json, .png and .svg.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.")
    ] = False,
) -> None:
    """Bound epsilon from below by attacks; 4 is the exit code if a claim is refuted."""
    from armijo.accounting.budget import Budget
    from armijo.audit.suite import (
        AUDITS,
        FAST_TRIALS,
        TRIALS,
        run_audit,
        write_audit,
    )

    if trials is None:
        trials = FAST_TRIALS if fast else TRIALS
    with _progress(quiet=json) as progress:
        found = run_audit(
            method or AUDITS,
            budget=Budget(epsilon=epsilon, delta=delta),
            trials=trials,
            confidence=confidence,
            seed=seed,
            progress=progress,
        )
    if out is not None:
        write_audit(out, found)
    if json:
        emit_json(found.to_dict())
    else:
        _show(found, out)
    if found.refuted:
        fail(
            f"the claim of {', '.join(found.refuted)} is refuted: a release told more "
            "than its epsilon allows. Do not release anything made by this code."
        )
        raise typer.Exit(REFUTED)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show the current game on standard error."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    console = Console(stderr=True, quiet=quiet)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")

        def advance(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total)

        yield advance


def _bar(audited: float, claimed: float) -> str:
    """Draw the audited epsilon as a part of the claimed one.

    >>> _bar(0.5, 2.0), _bar(3.0, 2.0)
    ('██······', '████████!')
    """
    share = min(audited / claimed, 1.0) if claimed > 0 else float(audited > 0)
    filled = round(_BAR * share)
    return "█" * filled + "·" * (_BAR - filled) + "!" * (audited > claimed)


def _show(found: "Audit", out: Path | None) -> None:
    """Print claimed and audited epsilon of every game."""
    title = f"Epsilon by attacks, with confidence {found.confidence:g} in all"
    table = Table(title=title, title_justify="left")
    table.add_column("game", no_wrap=True)
    for heading in ("delta", "claimed ≤", "audited ≥"):
        table.add_column(heading, justify="right")
    table.add_column("of claim", no_wrap=True)
    table.add_column("bound")
    table.add_column("verdict")
    for one in found.outcomes:
        table.add_row(
            one.name,
            f"{one.claim.delta:g}",
            f"{one.claim.epsilon:g}",
            f"{one.epsilon:.3f}",
            _bar(one.epsilon, one.claim.epsilon),
            one.bound,
            "[red]REFUTED[/red]" if one.exceeds else "passed",
        )
    console = Console()
    console.print(table)
    console.print("An audit can refute a claim, never prove it.")
    if out is not None:
        console.print(f"Written: {out / 'audit.json'}, audit.png, audit.svg")
