# SPDX-License-Identifier: Apache-2.0
"""``armijo figures``: pictures, tables and the page of the reproduction."""

from pathlib import Path
from typing import Annotated

import typer

from armijo.cli.output import emit
from armijo_reproduction.cli_reproduce import RESULTS, AsJson, Folder
from armijo.errors import ArmijoError


def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Figures; all that have results."),
    ] = None,
    *,
    results: Folder = RESULTS,
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("figures"),
    fast: Annotated[
        bool, typer.Option(help="Draw the results of the fast versions.")
    ] = False,
    tables: Annotated[
        Path | None, typer.Option(help="Write all tables to this Markdown file.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Fill the measured parts of this Markdown page."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Draw the paper's figures from the results that are there, as PNG and SVG.

    The same results give the same files, byte for byte.
    """
    from armijo_reproduction.figures import FIGURES, draw_figures
    from armijo_reproduction.page import blocks_of, filled
    from armijo_reproduction.summary import load_parts
    from armijo_reproduction.tables import tables_page

    if names and page is not None:
        raise ArmijoError("A page shows all figures; name none of them with --page.")
    parts = load_parts(results, fast=fast)
    template = None if page is None else page.read_text(encoding="utf-8")
    drawn = draw_figures(parts, out, names or ())
    if tables is not None:
        tables.write_text(tables_page(parts), encoding="utf-8")
    if page is not None and template is not None:
        blocks = blocks_of(parts, drawn, page, results)
        page.write_text(filled(template, blocks, page), encoding="utf-8")
    emit(
        {
            "figures": [str(path) for paths in drawn.values() for path in paths],
            "without_results": [each for each in names or FIGURES if each not in drawn],
            "tables": None if tables is None else str(tables),
            "page": None if page is None else str(page),
        },
        title="Figures",
        as_json=json,
    )
