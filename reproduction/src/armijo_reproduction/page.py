# SPDX-License-Identifier: Apache-2.0
"""The results as Markdown: a page of tables, and the parts of ``docs/reproduction.md``.

That page is written by hand; what stands between ``<!-- begin NAME -->`` and
``<!-- end NAME -->`` is put there from the result files.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from armijo.errors import ArmijoError
from armijo_reproduction.claims import CLAIMS, NOT_RUN
from armijo_reproduction.figures import FIGURES
from armijo_reproduction.results import (
    BUILDS,
    Mean,
    Part,
    at_the_end,
    difference,
    in_group,
    mean_of,
    summarized,
)
from armijo_reproduction.spec import (
    MODELS,
    NO_SETTING,
    dataset_name,
    experiment_names,
    shown,
)

CHOSEN = ("zero-tuning-grid", "zero-tuning-objpert", "zero-tuning-networks-grid")
"""Experiments that serve only to choose a setting in hindsight."""
TOLERANCE = 0.002
"""How far below the best of the others the automatic method may be."""
PLACE = ["dataset", "model", "epsilon"]
HEAD = """# Tables of the reproduction

Mean ± standard error over folds, written by `make figures` from the results
behind the [reproduction](reproduction.md). *(as published)* marks the analysis as
published, which gives no guarantee.

"""


def markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table.

    >>> print(markdown(["a", "b"], [[1, 2]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def place_of(key: tuple[str, str, float]) -> list[str]:
    """Return data set, loss and budget as a table shows them."""
    return [dataset_name(key[0]), MODELS.get(key[1], key[1]), f"{key[2]:g}"]


def tables_page(parts: Sequence[Part]) -> str:
    """Return a Markdown page with the tables of every experiment."""
    sections = []
    for part in parts:
        wanted = part.experiment
        done, total, hours = part.run_counts()
        sections.append(
            f"## {wanted.name}\n\n{wanted.title}. {done:,} of {total:,} runs, "
            f"{hours:.1f} hours of one core."
        )
        if wanted.group in TABLES:
            sections.append(TABLES[wanted.group](part))
        elif wanted.name in CHOSEN:
            sections.append(chosen_table(part))
        if wanted.kind == "networks" and wanted.group not in TABLES:
            sections.append(network_table(part))
        elif wanted.group not in TABLES and wanted.name not in CHOSEN:
            sections += _convex_tables(part)
    return HEAD + "\n\n".join(sections) + "\n"


def _convex_tables(part: Part) -> Iterable[str]:
    """Yield tables of lines and settings against budgets for data set and model."""
    wanted = part.experiment
    counts = ["gradients", "objectives"] if wanted.group == "evaluations" else []
    several = len(wanted.datasets) * len(wanted.models) > 1
    for column in ("accuracy", "objective", *counts):
        for (dataset, model), rows in part.table.groupby(PLACE[:2], sort=False):
            where = f", {dataset_name(dataset)}, {MODELS[model]}" if several else ""
            digits = 0 if column in counts else 4
            means = summarized(rows, column, ["line", "setting", "epsilon"])
            table = _by_budget(part, means, digits)
            yield f"{column.capitalize()}{where}:\n\n{table}"


def _by_budget(part: Part, means: pd.DataFrame, digits: int) -> str:
    wanted = part.experiment
    texts = {
        (row.line, row.setting, row.epsilon): Mean(row.value, row.error, row.runs)
        for row in means.itertuples()
    }
    rows = []
    for series in wanted.series:
        for setting in wanted.settings():
            name = shown(series.label)
            rows.append([name if setting == NO_SETTING else f"{name}, {setting}"])
            for epsilon in wanted.epsilons:
                mean = texts.get((series.label, setting, epsilon))
                rows[-1].append("" if mean is None else mean.rounded(digits))
    return markdown(["epsilon", *(f"{eps:g}" for eps in wanted.epsilons)], rows)


def network_table(part: Part) -> str:
    """Return accuracy, objective and both epsilons of the last iteration."""
    lines = []
    keys = ["dataset", "epsilon", "line", "setting"]
    for key, rows in at_the_end(part.table).groupby(keys, sort=False):
        dataset, epsilon, line, setting = key
        epsilons = (mean_of(rows, column).value for column in ("spent", "printed"))
        lines.append(
            [
                dataset_name(dataset),
                shown(line) + ("" if setting == NO_SETTING else f", {setting}"),
                f"{epsilon:g}",
                mean_of(rows, "accuracy"),
                mean_of(rows, "objective"),
                *("none" if pd.isna(value) else f"{value:.3f}" for value in epsilons),
            ]
        )
    heads = ["data", "line", "budget", "accuracy", "objective", "epsilon, sound"]
    return markdown([*heads, "epsilon, as published: no guarantee"], lines)


def chosen_table(part: Part) -> str:
    """Return the setting with the best mean test accuracy: hindsight, not private."""
    lines = []
    for key, rows in at_the_end(part.table).groupby(PLACE, sort=False):
        means = rows.groupby("setting")["accuracy"].mean()
        best = str(means.idxmax())
        mean = mean_of(rows[rows["setting"] == best], "accuracy")
        lines.append([*place_of(key), best, mean, len(means)])
    heads = ["data", "model", "epsilon", "best setting", "accuracy", "settings tried"]
    return markdown(heads, lines)


def zero_tuning_table(part: Part) -> str:
    """Return auto beside the others by setting, and how often it leads or misses."""
    series = part.experiment.series
    auto = next(line.label for line in series if line.method.startswith("auto"))
    others = [line.label for line in series if line.label != auto]
    lines, leads = [], []
    for key, rows in at_the_end(part.table).groupby(PLACE, sort=False):
        of = {label: rows[rows["line"] == label] for label in (auto, *others)}
        if any(some.empty for some in of.values()):
            continue
        means = {label: mean_of(some, "accuracy") for label, some in of.items()}
        best = max(others, key=lambda label: means[label].value)
        lead = difference(of[auto], of[best], "accuracy")
        leads.append(lead.value)
        lines.append([*place_of(key), *means.values(), lead.signed()])
    heads = ["data", "model", "epsilon", *map(shown, (auto, *others))]
    heads.append("auto minus the best other")
    above = sum(lead > 0 for lead in leads)
    missed = sum(lead < -TOLERANCE for lead in leads)
    return (
        f"auto is above the best other in {above} of {len(leads)} settings, and more "
        f"than {TOLERANCE} below it in {missed}.\n\n{markdown(heads, lines)}"
    )


def robust_table(part: Part) -> str:
    """Return auto beside the majority class, and where it comes lowest beside it."""
    leads: dict[tuple[str, str, float], float] = {}
    lines = []
    for (dataset, model), rows in part.table.groupby(PLACE[:2], sort=False):
        auto, majority = (rows[rows["line"] == name] for name in ("auto", "majority"))
        mean = "" if majority.empty else mean_of(majority, "accuracy")
        lines.append([dataset_name(dataset), MODELS[model], str(mean)])
        for epsilon in part.experiment.epsilons:
            ours = auto[auto["epsilon"] == epsilon]
            theirs = majority[majority["epsilon"] == epsilon]
            lead = difference(ours, theirs, "accuracy")
            if lead.runs:
                leads[dataset, model, epsilon] = lead.value
            lines[-1].append("" if ours.empty else str(mean_of(ours, "accuracy")))
    epsilons = (f"auto at {eps:g}" for eps in part.experiment.epsilons)
    table = markdown(["data", "loss", "majority class", *epsilons], lines)
    if not leads:
        return f"There are no pairs to compare yet.\n\n{table}"
    where = min(leads, key=lambda key: leads[key])
    return (
        f"Lowest of {len(leads)} settings: {leads[where]:+.4f} to the majority class "
        f"({', '.join(place_of(where)[:2])}, epsilon {where[2]:g}).\n\n{table}"
    )


def ablation_table(part: Part) -> str:
    """Return each variant in each setting (mean of the losses), and its mean lead."""
    where = ["dataset", "epsilon"]
    means = part.table.groupby(["line", *where])["accuracy"].mean()
    paired = part.table.groupby([*PLACE, "fold", "line"])["accuracy"].mean().unstack()
    pairs = part.table[where].drop_duplicates()
    columns = list(pairs.itertuples(index=False, name=None))
    lines = []
    for label in (series.label for series in part.experiment.series):
        values = (means.get((label, *column)) for column in columns)
        lines.append([label, *("" if v is None else f"{v:.4f}" for v in values), ""])
        if label != "auto" and label in paired:
            leads = (paired[label] - paired["auto"]).dropna().rename("accuracy")
            lines[-1][-1] = mean_of(leads.reset_index(), "accuracy").signed()
    heads = (f"{dataset_name(name)} {epsilon:g}" for name, epsilon in columns)
    return markdown(["line", *heads, "minus auto"], lines)


TABLES: dict[str, Callable[[Part], str]] = {
    "zero-tuning": zero_tuning_table,
    "zero-tuning-networks": zero_tuning_table,
    "zero-tuning-ablation": ablation_table,
    "zero-tuning-robust": robust_table,
}
"""Groups of experiments that have a table of their own."""


def claims_table(parts: Sequence[Part]) -> str:
    """Return every claim with what was measured and the verdict."""
    rows, section = [], ""
    for claim in CLAIMS:
        finding = claim.finding(parts)
        if claim.section != section:
            section = claim.section
            rows.append([f"**{section}**", "", "", ""])
        groups = ", ".join(claim.groups)
        rows.append([claim.text, groups, finding.measured, f"**{finding.verdict}**"])
    return markdown(["claim", "experiments", "measured", "verdict"], rows)


def figures_list(drawn: Mapping[str, Sequence[Path]], page: Path) -> str:
    """Return every figure as an image with its caption and a link to the vector."""
    images = []
    for name, paths in drawn.items():
        image, vector = (os.path.relpath(path, page.parent) for path in paths)
        caption = f"{FIGURES[name]['caption']} [SVG]({vector})"
        images.append(f"### {name}\n\n![{name}]({image})\n\n{caption}")
    return "\n\n".join(images)


def runs_table(parts: Sequence[Part]) -> str:
    """Return for each experiment its command, how many runs there are, and the time."""
    counts = {part.experiment.name: part.run_counts() for part in parts}
    rows, all_hours = [], 0.0
    for name in experiment_names():
        done, total, hours = counts.get(name, (0, 0, 0.0))
        all_hours += hours
        summary = f"{done:,} of {total:,}" if done else NOT_RUN
        rows.append([f"`make reproduce NAME={name}`", summary, f"{hours:.2f}"])
    rows.append(["in all", "", f"{all_hours:.2f}"])
    return markdown(["command", "runs", "hours of one core"], rows)


def versions_table(parts: Sequence[Part], results: Path) -> str:
    """Return the versions of every build that made a row, and how many it made."""
    path = results / BUILDS
    builds = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    counts = sum((Counter(part.table["build"]) for part in parts), Counter[str]())
    lines = []
    for name, count in counts.items():
        versions = builds.get(name, {"versions": "not written down"})
        summary = ", ".join(f"{key} {value}" for key, value in versions.items())
        lines.append([f"`{name}`", f"{count:,}", summary])
    return markdown(["build", "rows", "versions"], lines)


def blocks_of(
    parts: Sequence[Part],
    drawn: Mapping[str, Sequence[Path]],
    page: Path,
    results: Path,
) -> dict[str, str]:
    """Return the content of every measured part of the page."""
    blocks = {
        "claims": claims_table(parts),
        "figures": figures_list(drawn, page),
        "runs": runs_table(parts),
        "versions": versions_table(parts, results),
    }
    for group, table in TABLES.items():
        titled = group == "zero-tuning-robust"
        blocks[group] = "\n\n".join(
            f"**{part.experiment.title}** (`{part.experiment.name}`). " * titled
            + table(part)
            for part in in_group(parts, group)
        )
    return {name: content or f"{NOT_RUN}." for name, content in blocks.items()}


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
