# SPDX-License-Identifier: Apache-2.0
"""Write ``docs/benchmarks.md`` from the measurements kept in ``docs/results``.

``python -m benchmarks.page`` writes the page; files named after it hold rows of a part
of the benchmarks, which replace the kept rows of the same network or name.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import Row

DOCS = Path(__file__).parents[1] / "docs"
PAGE, INTRO = DOCS / "benchmarks.md", Path(__file__).with_name("page_intro.md")
RUN, SETTINGS = "speed.json", "tuning-settings.json"


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
    rows, settings = (
        json.loads((DOCS / "results" / name).read_text()) for name in (RUN, SETTINGS)
    )
    lines = [INTRO.read_text().rstrip(), "", "## Figures", "", *table(rows)]
    lines += ["", "## Zero tuning, setting by setting", "", *table(settings)]
    return "\n".join(lines) + "\n"


def merged(rows: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Return the kept rows with those of a part in the place of what it measures."""
    measured = {_subject(row) for row in new}
    places = [n for n, row in enumerate(rows) if _subject(row) in measured]
    kept = [row for row in rows if _subject(row) not in measured]
    place = places[0] if places else len(kept)
    return [*kept[:place], *new, *kept[place:]]


def _subject(row: Row) -> str:
    """Return the network that a row is about, or else the name of the row."""
    return row["name"].partition(": ")[0]


if __name__ == "__main__":
    for part in sys.argv[1:]:
        kept = DOCS / "results" / RUN
        rows = merged(json.loads(kept.read_text()), json.loads(Path(part).read_text()))
        kept.write_text(json.dumps(rows, indent=2) + "\n")
    PAGE.write_text(page())
