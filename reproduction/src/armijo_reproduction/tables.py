# SPDX-License-Identifier: Apache-2.0
"""Mean ± standard error of the results as Markdown tables."""

from collections.abc import Iterable, Sequence

import pandas as pd

from armijo_reproduction.figures_style import MODELS, dataset_name, shown
from armijo_reproduction.markdown import markdown, place_of
from armijo_reproduction.results import at_the_end
from armijo_reproduction.spec import KEY, NO_SETTING
from armijo_reproduction.summary import (
    Mean,
    Part,
    mean_of,
    seconds_of,
    summarized,
)
from armijo_reproduction.tables_tuning import (
    ablation_table,
    robust_table,
    zero_tuning_table,
)

CHOSEN = ("zero-tuning-grid", "zero-tuning-objpert", "zero-tuning-networks-grid")
"""Experiments that serve only to choose a setting in hindsight."""


HEAD = """# Tables of the reproduction

Mean ± standard error over folds, written by `armijo figures --tables` from the results
behind the [reproduction](reproduction.md). *(printed)* marks the printed analysis,
which gives no guarantee.

"""


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
    total = sum(1 for _ in part.experiment.cells())
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
    for line in part.experiment.lines:
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
