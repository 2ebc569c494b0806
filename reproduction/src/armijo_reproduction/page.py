# SPDX-License-Identifier: Apache-2.0
"""Write the measured parts of ``docs/reproduction.md``.

The page is written by hand; what stands between ``<!-- begin NAME -->`` and
``<!-- end NAME -->`` is put there from the result files.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from armijo.errors import ArmijoError
from armijo_reproduction import claims, claims_networks
from armijo_reproduction.results import BUILDS
from armijo_reproduction.spec import KEY, experiment, experiment_names
from armijo_reproduction.summary import Part, in_group, seconds_of
from armijo_reproduction.tables import (
    ablation_table,
    markdown,
    robust_table,
    zero_tuning_table,
)
from armijo_reproduction.verdicts import NOT_RUN

CLAIMS = (*claims.CLAIMS, *claims_networks.CLAIMS)
CAPTIONS = {
    "hyper-parameters": "Accuracy on Adult against the parameters of the method.",
    "hyper-parameters-printed": "The same under the printed analysis, whose epsilon is "
    "a label and no guarantee.",
    "evaluations": "Evaluations against the sampling ratio, counted in batches as in "
    "the paper and in passes over all rows.",
    "evaluations-printed": "The same under the printed analysis, whose epsilon is a "
    "label and no guarantee.",
    "logistic": "Logistic regression, sound accounting.",
    "logistic-printed": "Logistic regression: sound accounting beside the printed one.",
    "svm": "Support vector machine, sound accounting.",
    "svm-printed": "Support vector machine: sound accounting beside the printed one.",
    "networks": "Networks over the iterations; CIFAR-10 is a subset of 10,000 training "
    "images, so that its accuracy cannot be compared with the paper's.",
    "zero-tuning": "The automatic method minus others tuned in hindsight.",
    "zero-tuning-networks": "Networks with nothing set, beside DP-SGD with every step "
    "size of a grid.",
}


def claims_table(parts: Sequence[Part]) -> str:
    """Return every claim with what was measured and the verdict."""
    rows, section = [], ""
    for claim in CLAIMS:
        found = claim.finding(parts)
        if claim.section != section:
            section = claim.section
            rows.append([f"**{section}**", "", "", ""])
        groups = ", ".join(claim.groups)
        rows.append([claim.text, groups, found.measured, f"**{found.verdict}**"])
    return markdown(["claim", "experiments", "measured", "verdict"], rows)


def figures_list(drawn: Mapping[str, Sequence[Path]], page: Path) -> str:
    """Return every figure as an image with its caption and a link to the vector."""
    shown = []
    for name, (png, svg) in drawn.items():
        image, vector = (_link(path, page) for path in (png, svg))
        caption = f"{CAPTIONS[name]} [SVG]({vector})"
        shown.append(f"### {name}\n\n![{name}]({image})\n\n{caption}")
    return "\n\n".join(shown) or f"{NOT_RUN}."


def _link(path: Path, page: Path) -> str:
    """Return a path as seen from the folder of the page."""
    return Path(os.path.relpath(path, page.parent)).as_posix()


def runs_table(parts: Sequence[Part]) -> str:
    """Return for each experiment its command, how many runs there are, and the time."""
    found = {part.experiment.name: part for part in parts}
    rows, hours = [], 0.0
    for name in experiment_names():
        total = sum(1 for _ in experiment(name).run_keys())
        part = found.get(name)
        done = 0 if part is None else len(part.table[list(KEY)].drop_duplicates())
        spent = 0.0 if part is None else seconds_of(part) / 3600
        hours += spent
        summary = f"{done:,} of {total:,}" if done else NOT_RUN
        rows.append([f"`make reproduce NAME={name}`", summary, f"{spent:.2f}"])
    rows.append(["in all", "", f"{hours:.2f}"])
    return markdown(["command", "runs", "hours of one core"], rows)


def versions_table(parts: Sequence[Part], results: Path) -> str:
    """Return the versions of every build that made a row, and how many it made."""
    path = results / BUILDS
    builds = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows: dict[str, int] = {}
    for part in parts:
        for name, count in part.table["build"].value_counts().items():
            rows[name] = rows.get(name, 0) + int(count)
    lines = []
    for name, count in rows.items():
        versions = builds.get(name, {"versions": "not written down"})
        summary = ", ".join(f"{key} {value}" for key, value in versions.items())
        lines.append([f"`{name}`", f"{count:,}", summary])
    return markdown(["build", "rows", "versions"], lines) if lines else f"{NOT_RUN}."


def blocks_of(
    parts: Sequence[Part],
    drawn: Mapping[str, Sequence[Path]],
    page: Path,
    results: Path,
) -> dict[str, str]:
    """Return the content of every measured part of the page."""
    tuning = in_group(parts, "zero-tuning")
    ablation = in_group(parts, "zero-tuning-ablation")
    networks = in_group(parts, "zero-tuning-networks")
    return {
        "claims": claims_table(parts),
        "figures": figures_list(drawn, page),
        "zero-tuning": zero_tuning_table(tuning[0]) if tuning else f"{NOT_RUN}.",
        "zero-tuning-robust": _robust_tables(in_group(parts, "zero-tuning-robust")),
        "zero-tuning-ablation": ablation_table(ablation[0])
        if ablation
        else f"{NOT_RUN}.",
        "zero-tuning-networks": zero_tuning_table(networks[0])
        if networks
        else f"{NOT_RUN}.",
        "runs": runs_table(parts),
        "versions": versions_table(parts, results),
    }


def _robust_tables(parts: Sequence[Part]) -> str:
    """Return one table for each experiment on other tables."""
    tables = (
        f"**{each.experiment.title}** (`{each.experiment.name}`). {robust_table(each)}"
        for each in parts
    )
    return "\n\n".join(tables) or f"{NOT_RUN}."


def filled(text: str, blocks: Mapping[str, str], page: Path) -> str:
    """Return a page with its measured parts replaced.

    >>> page = "a <!-- begin x -->old<!-- end x --> b"
    >>> filled(page, {"x": "new"}, Path("page.md")).split()
    ['a', '<!--', 'begin', 'x', '-->', 'new', '<!--', 'end', 'x', '-->', 'b']
    """
    for name, content in blocks.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        place = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(place.findall(text)) != 1:
            raise ArmijoError(
                f"Expected one part of {page} between {begin} and {end}, got "
                f"{len(place.findall(text))}; put these two lines where it shall stand."
            )
        before, after = place.split(text)
        text = f"{before}{begin}\n\n{content}\n\n{end}{after}"
    return text
