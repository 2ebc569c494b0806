# SPDX-License-Identifier: Apache-2.0
"""What commands print: one JSON object, or a readable table; errors on stderr."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text


def emit(result: Mapping[str, object], *, title: str, as_json: bool) -> None:
    """Print the result as exactly one JSON object, or as a table of two columns."""
    if as_json:
        emit_json(result)
        return
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("value", overflow="fold")
    for name, value in result.items():
        table.add_row(name.replace("_", " "), Text(_readable(value)))
    Console().print(table)


def emit_json(result: Mapping[str, object]) -> None:
    """Print exactly one JSON object on standard output."""
    sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet, whole or not at all."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _readable(value: object) -> str:
    """Format one value for the table."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "\n".join(f"- {_readable(item)}" for item in value) or "none"
    if value is None:
        return "none"
    return str(value)


def warn(message: str) -> None:
    """Print a warning on standard error."""
    Console(stderr=True).print(Text(f"Warning: {message}", style="yellow"))


def fail(message: str) -> None:
    """Print an error on standard error."""
    Console(stderr=True).print(Text(f"Error: {message}", style="red"))
