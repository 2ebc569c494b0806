# SPDX-License-Identifier: Apache-2.0
"""``armijo demo``: the main job on a census table, accuracies side by side."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from armijo.cli.progress import fit_progress


def demo(
    *,
    out: Annotated[Path, typer.Option(help="Folder for tables, models, reports.")] = (
        Path("demo")
    ),
) -> None:
    """Train on a synthetic census table at three budgets and compare accuracies."""
    from armijo.cli._demo import DELTA, EPSILONS, run_demo

    console = Console()
    with fit_progress() as progress:
        result = run_demo(out, on_fit=progress.start)
    console.print(
        "The table is SYNTHETIC: no row describes a person, and accuracies on it mean "
        "nothing beyond this demo."
    )
    table = Table(title="Held-out accuracy", title_justify="left")
    table.add_column("model")
    table.add_column("accuracy", justify="right")
    for label, accuracy in result.accuracies.items():
        table.add_row(label, f"{accuracy:.4f}")
    console.print(table)
    console.print(f"Each private model is (epsilon, {DELTA:g})-differentially private.")
    for epsilon in EPSILONS:
        console.print(f"Report: {out / f'epsilon-{epsilon:g}' / 'report.html'}")
