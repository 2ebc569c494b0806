# SPDX-License-Identifier: Apache-2.0
"""Write ``docs/benchmarks.md`` from the measurements kept in ``docs/results``.

Run ``python -m benchmarks.page`` after the commands that the page names.
"""

import json
from pathlib import Path

from benchmarks import Row

DOCS = Path(__file__).parents[1] / "docs"
PAGE, INTRO = DOCS / "benchmarks.md", Path(__file__).with_name("page_intro.md")
RUN, CELLS = "speed.json", "tuning-cells.json"


def table(rows: list[Row]) -> list[str]:
    """Return the lines of a table, misses in bold."""
    lines = ["| | ours | peer | ours / peer | goal | |", "|---|---:|---:|---:|---|---|"]
    for row in rows:
        ours, peer = (_figure(row["name"], row[key]) for key in ("ours", "peer"))
        share = "-" if row["ratio"] is None else f"{1 / row['ratio']:.2f}"
        met = "" if row["goal"] == "-" else ("met" if row["met"] else "**missed**")
        cells = (row["name"], ours, peer, share, row["goal"], met)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _figure(name: str, value: float | None) -> str:
    """Return short times in milliseconds, and gibibytes as they are."""
    if value is None:
        return "-"
    if "GiB" in name:
        return f"{value:.2f} GiB"
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def page() -> str:
    """Return the whole page."""
    rows, cells = (
        json.loads((DOCS / "results" / name).read_text()) for name in (RUN, CELLS)
    )
    lines = [INTRO.read_text().rstrip(), "", "## Figures", "", *table(rows)]
    lines += ["", "## Zero tuning, cell by cell", "", *table(cells)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
