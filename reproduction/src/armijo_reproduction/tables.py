# SPDX-License-Identifier: Apache-2.0
"""Mean ± standard error of the results as Markdown tables."""

from collections.abc import Iterable, Sequence

import pandas as pd

from armijo_reproduction.figures_style import MODELS, dataset_name, shown
from armijo_reproduction.results import at_the_end
from armijo_reproduction.spec import KEY, NO_SETTING
from armijo_reproduction.summary import (
    Mean,
    Part,
    difference,
    mean_of,
    seconds_of,
    summarized,
)

CHOSEN = ("zero-tuning-grid", "zero-tuning-objpert", "zero-tuning-networks-grid")
"""Experiments that serve only to choose a setting in hindsight."""
TOLERANCE = 0.002
"""How far below the best of the others the automatic method may be."""
HEAD = """# Tables of the reproduction

Mean ± standard error over folds, written by `make figures` from the results
behind the [reproduction](reproduction.md). *(printed)* marks the printed analysis,
which gives no guarantee.

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
        heading = f"## {wanted.name}\n\n{wanted.title}. {runs_of(part)}"
        if wanted.group in ("zero-tuning", "zero-tuning-networks"):
            bodies = [zero_tuning_table(part)]
        elif wanted.group == "zero-tuning-ablation":
            bodies = [ablation_table(part)]
        elif wanted.group == "zero-tuning-robust":
            bodies = [robust_table(part)]
        elif wanted.name in CHOSEN:
            bodies = [chosen_table(part)]
            if wanted.kind == "networks":
                bodies.append(network_table(part))
        elif wanted.kind == "networks":
            bodies = [network_table(part)]
        else:
            columns = ["gradients", "objectives"] * (wanted.group == "evaluations")
            bodies = [
                f"{measure.capitalize()}{where}:\n\n{table}"
                for measure in ("accuracy", "objective", *columns)
                for where, table in _convex_tables(part, measure)
            ]
        sections.append("\n\n".join([heading, *bodies]))
    return HEAD + ("\n\n".join(sections) or "There are no results yet.") + "\n"


def runs_of(part: Part) -> str:
    """Say how many runs of an experiment are there, and how long they took."""
    done = len(part.table[list(KEY)].drop_duplicates())
    total = sum(1 for _ in part.experiment.run_keys())
    hours = seconds_of(part) / 3600
    return f"{done:,} of {total:,} runs, {hours:.1f} hours of one core."


def _convex_tables(part: Part, column: str) -> Iterable[tuple[str, str]]:
    """Yield a table of lines and settings against budgets for data set and model."""
    several = len(part.experiment.datasets) * len(part.experiment.models) > 1
    for (dataset, model), rows in part.table.groupby(["dataset", "model"], sort=False):
        where = f", {dataset_name(dataset)}, {MODELS[model]}" if several else ""
        yield where, _by_budget(part, rows, column)


def _by_budget(part: Part, rows: pd.DataFrame, column: str) -> str:
    """Return the table of one data set and model."""
    epsilons = part.experiment.epsilons
    means = summarized(rows, column, ["line", "setting", "epsilon"])
    found = {
        (row.line, row.setting, row.epsilon): _cell(
            Mean(row.value, row.error, row.runs), column
        )
        for row in means.itertuples()
    }
    lines = []
    for line in part.experiment.series:
        for setting in part.experiment.settings():
            cells = [found.get((line.label, setting, each), "") for each in epsilons]
            name = line.label if setting == NO_SETTING else f"{line.label}, {setting}"
            lines.append([name, *cells])
    return markdown(["epsilon", *(f"{each:g}" for each in epsilons)], lines)


def _cell(found: Mean, column: str) -> str:
    """Return mean ± standard error, counts without many digits."""
    return found.rounded(0 if column in ("gradients", "objectives") else 4)


def network_table(part: Part) -> str:
    """Return accuracy, objective and both epsilons of the last iteration."""
    keys = ["dataset", "epsilon", "line", "setting"]
    lines = []
    for key, rows in at_the_end(part.table).groupby(keys, sort=False):
        dataset, epsilon, line, setting = key
        spent, printed = (mean_of(rows, each).value for each in ("spent", "printed"))
        lines.append(
            [
                dataset_name(dataset),
                shown(line) + ("" if setting == NO_SETTING else f", {setting}"),
                f"{epsilon:g}",
                mean_of(rows, "accuracy"),
                mean_of(rows, "objective"),
                "none" if pd.isna(spent) else f"{spent:.3f}",
                "none" if pd.isna(printed) else f"{printed:.3f}",
            ]
        )
    heads = ["data", "line", "budget", "accuracy", "objective", "epsilon, sound"]
    return markdown([*heads, "epsilon, printed: no guarantee"], lines)


def chosen_table(part: Part) -> str:
    """Return the setting with the best mean test accuracy: hindsight, not private."""
    lines = []
    keys = ["dataset", "model", "epsilon"]
    for key, rows in at_the_end(part.table).groupby(keys, sort=False):
        means = rows.groupby("setting")["accuracy"].mean()
        best = str(means.idxmax())
        found = mean_of(rows[rows["setting"] == best], "accuracy")
        lines.append([*place_of(key), best, found, len(means)])
    heads = ["data", "model", "epsilon", "best setting", "accuracy", "settings tried"]
    return markdown(heads, lines)


def zero_tuning_table(part: Part) -> str:
    """Return auto beside the others in each cell, and how often it leads or misses."""
    every = part.experiment.series
    auto = next(each.label for each in every if each.method == "auto")
    others = [each.label for each in every if each.label != auto]
    keys = ["dataset", "model", "epsilon"]
    lines, gaps = [], []
    for key, rows in at_the_end(part.table).groupby(keys, sort=False):
        of = {label: rows[rows["line"] == label] for label in (auto, *others)}
        if any(each.empty for each in of.values()):
            continue
        means = {label: mean_of(each, "accuracy") for label, each in of.items()}
        best = max(others, key=lambda label: means[label].value)
        gap = difference(of[auto], of[best], "accuracy")
        gaps.append(gap.value)
        lines.append([*place_of(key), *means.values(), _signed(gap)])
    heads = ["data", "model", "epsilon", *map(shown, (auto, *others))]
    heads.append("auto minus the best other")
    return f"{zero_tuning_count(gaps)}\n\n{markdown(heads, lines)}"


def zero_tuning_count(gaps: Sequence[float]) -> str:
    """Say in how many cells auto is above the best other, and below the tolerance.

    >>> zero_tuning_count([0.01, -0.001, -0.004])
    'auto is above the best other in 1 of 3 cells, and more than 0.002 below it in 1.'
    """
    above = sum(gap > 0 for gap in gaps)
    missed = sum(gap < -TOLERANCE for gap in gaps)
    return (
        f"auto is above the best other in {above} of {len(gaps)} cells, and more than "
        f"{TOLERANCE} below it in {missed}."
    )


def _signed(gap: Mean) -> str:
    """Return a difference with its sign."""
    return f"+{gap}" if gap.value >= 0 else str(gap)


def robust_table(part: Part) -> str:
    """Return auto beside the largest class, and where it comes lowest beside it."""
    gaps: dict[tuple[str, str, float], float] = {}
    lines = []
    for (dataset, model), rows in part.table.groupby(["dataset", "model"], sort=False):
        auto, majority = (rows[rows["line"] == each] for each in ("auto", "majority"))
        cells = []
        for epsilon in part.experiment.epsilons:
            ours = auto[auto["epsilon"] == epsilon]
            theirs = majority[majority["epsilon"] == epsilon]
            gap = difference(ours, theirs, "accuracy")
            if gap.runs:
                gaps[dataset, model, epsilon] = gap.value
            cells.append("" if ours.empty else str(mean_of(ours, "accuracy")))
        largest = "" if majority.empty else mean_of(majority, "accuracy").rounded(4)
        lines.append([dataset_name(dataset), MODELS[model], largest, *cells])
    epsilons = (f"auto at {each:g}" for each in part.experiment.epsilons)
    table = markdown(["data", "loss", "largest class", *epsilons], lines)
    return f"{lowest_of(gaps)}\n\n{table}"


def lowest_of(gaps: dict[tuple[str, str, float], float]) -> str:
    """Say where the mean accuracy of auto is lowest beside the largest class.

    >>> lowest_of({("adult", "svm", 0.1): 0.01, ("bank", "svm", 0.1): -0.004})
    'Lowest of 2 cells: -0.0040 to the largest class (Bank, SVM, epsilon 0.1).'
    """
    if not gaps:
        return "There are no pairs to compare yet."
    where = min(gaps, key=lambda each: gaps[each])
    dataset, model, epsilon = place_of(where)
    return (
        f"Lowest of {len(gaps)} cells: {gaps[where]:+.4f} to the largest class "
        f"({dataset}, {model}, epsilon {epsilon})."
    )


def ablation_table(part: Part) -> str:
    """Return each variant in each cell (mean of the losses), and its mean lead."""
    table, keys = part.table, ["dataset", "epsilon"]
    columns = list(table[keys].drop_duplicates().itertuples(index=False, name=None))
    auto = table[table["line"] == "auto"]
    lines = []
    for line in part.experiment.series:
        rows = table[table["line"] == line.label]
        cells = [_accuracy_at(rows, *column) for column in columns]
        lead = "" if line.label == "auto" else _signed(_paired(rows, auto))
        lines.append([line.label, *cells, lead])
    heads = (f"{dataset_name(name)} {epsilon:g}" for name, epsilon in columns)
    return markdown(["line", *heads, "minus auto"], lines)


def _accuracy_at(rows: pd.DataFrame, dataset: str, epsilon: float) -> str:
    """Return the mean accuracy of some rows on a data set at a budget."""
    of = rows[(rows["dataset"] == dataset) & (rows["epsilon"] == epsilon)]
    return "" if of.empty else f"{of['accuracy'].mean():.4f}"


def _paired(rows: pd.DataFrame, auto: pd.DataFrame) -> Mean:
    """Return the mean difference to auto over the cells that both have, by folds."""
    keys = ["dataset", "model", "epsilon", "fold"]
    means = (each.groupby(keys)["accuracy"].mean() for each in (rows, auto))
    first, second = means
    gaps = (first - second).dropna().rename("accuracy").reset_index()
    return mean_of(gaps, "accuracy")
