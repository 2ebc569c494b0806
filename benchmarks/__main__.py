# SPDX-License-Identifier: Apache-2.0
"""Run every benchmark of the package, print one table and write ``latest.json``."""

import argparse
import importlib
import json
import pkgutil
from pathlib import Path

from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks import Row

LATEST = Path(__file__).with_name("latest.json")


def measure(only: list[str]) -> list[Row]:
    """Return the rows of every module with ``rows()``, or of the named modules."""
    found: dict[str, list[Row]] = {}
    for module in pkgutil.iter_modules(benchmarks.__path__):
        wanted = module.name in only if only else not module.name.startswith("_")
        if wanted:
            rows = getattr(
                importlib.import_module(f"benchmarks.{module.name}"), "rows", None
            )
            if rows is not None:
                found[module.name] = [_checked(row) for row in rows()]
    missing = sorted(set(only) - set(found))
    if missing:
        raise SystemExit(
            f"No benchmark module with rows() named {', '.join(missing)}; "
            "name files of benchmarks/ without their ending."
        )
    if not found:
        raise SystemExit("No module of benchmarks/ has rows(); add one to measure.")
    return [row for rows in found.values() for row in rows]


def _checked(row: Row) -> Row:
    """Return the row, refusing one whose keys are not those of the report."""
    if set(row) != set(Row.__annotations__):
        raise ValueError(
            f"Expected a row with {', '.join(Row.__annotations__)}, got {row!r}; "
            "build rows with under or times_faster."
        )
    return row


def table(rows: list[Row]) -> Table:
    """Lay the rows out for reading."""
    result = Table(title="Benchmarks")
    result.add_column("name")
    for heading in ("ours", "peer", "ratio"):
        result.add_column(heading, justify="right")
    result.add_column("goal")
    result.add_column("met")
    for row in rows:
        figures = (row["ours"], row["peer"], row["ratio"])
        result.add_row(
            row["name"],
            *("-" if figure is None else f"{figure:.4g}" for figure in figures),
            row["goal"],
            "yes" if row["met"] else "NO",
        )
    return result


def main() -> int:
    """Measure, print, write; with ``--check`` a missed goal is exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="module", help="run only these")
    parser.add_argument("--out", type=Path, default=LATEST, help="where rows go")
    parser.add_argument("--check", action="store_true", help="exit 1 on a missed goal")
    arguments = parser.parse_args()
    rows = measure(arguments.only)
    arguments.out.write_text(json.dumps(rows, indent=2, allow_nan=False) + "\n")
    Console().print(table(rows))
    return int(arguments.check and not all(row["met"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
