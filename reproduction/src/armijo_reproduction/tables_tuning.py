# SPDX-License-Identifier: Apache-2.0
"""Tables of the automatic method: beside others, without its parts, on other tables."""

from collections.abc import Sequence

import pandas as pd

from armijo_reproduction.figures_style import MODELS, dataset_name, shown
from armijo_reproduction.markdown import markdown, place_of
from armijo_reproduction.results import at_the_end
from armijo_reproduction.summary import Mean, Part, difference, mean_of

TOLERANCE = 0.002
"""How far below the best of the others the automatic method may be."""


def zero_tuning_table(part: Part) -> str:
    """Return auto beside the others in each cell, and how often it leads or misses."""
    every = part.experiment.lines
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
    for line in part.experiment.lines:
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
