# SPDX-License-Identifier: Apache-2.0
"""Figures of the convex experiments."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from armijo_reproduction.figures_style import (
    BLUE,
    DATASETS,
    GREEN,
    MODELS,
    NO_GUARANTEE,
    PRINTED,
    RED,
    draw_line,
    figure_of,
    legend_below,
    log_axis,
    save,
    shown,
    style_of,
)
from armijo_reproduction.spec import Experiment
from armijo_reproduction.summary import GIVEN, Part, difference, summarized

OWN = ("DP-BLSGD", "DP-BLSGD-AC", "DP-BLGD")
"""The three methods of the paper."""
_NAMES = {
    "slope": "Armijo constant alpha",
    "shrink": "factor beta",
    "search": "noise of the search",
    "sampling_prob": "sampling ratio q",
    "adapt": "budget strategy",
    "clip_decay": "clip decay zeta",
}
_WORDS = {"never": "no", "always": "must", "angle": "adap"}


def _with_setting(part: Part, column: str) -> tuple[str, pd.DataFrame]:
    """Return what varies, and the summary with its values in a column ``x``."""
    rows = summarized(part.table, column, GIVEN)
    options = rows["setting"].map(part.experiment.options_of)
    name = next(iter(part.experiment.vary))
    return name, rows.assign(x=[each[name] for each in options])


def hyper_parameters(parts: Sequence[Part], folder: Path, name: str) -> list[Path]:
    """Draw one panel for each parameter that varies, a line for each budget."""
    columns = min(3, len(parts))
    lines = -(-len(parts) // columns)
    with figure_of(lines, columns, size=(3.6, 2.9)) as figure:
        for ax, part in zip(figure.axes, parts, strict=False):
            _hyper_panel(ax, part)
        for ax in figure.axes[len(parts) :]:
            ax.set_visible(False)
        legend_below(figure, 3)
        return save(figure, folder, name)


def _hyper_panel(ax: Any, part: Part) -> None:
    """Draw accuracy against the values of one parameter."""
    name, rows = _with_setting(part, "accuracy")
    words = part.experiment.vary[name]
    if isinstance(words[0], str):
        rows["x"] = rows["x"].map(words.index)
        ax.set_xticks(range(len(words)), [_WORDS.get(each, each) for each in words])
        ax.set_xlim(-0.4, len(words) - 0.6)
    if name == "sampling_prob":
        log_axis(ax, words)
    looks = ((BLUE, "^", "-"), (RED, "v", "--"), (GREEN, "o", ":"))
    budgets = sorted(rows["epsilon"].unique())
    for epsilon, (color, marker, dashes) in zip(budgets, looks, strict=False):
        draw_line(
            ax,
            rows[rows["epsilon"] == epsilon],
            "x",
            f"epsilon = {epsilon:g}",
            color=color,
            marker=marker,
            linestyle=dashes,
            markersize=6,
        )
    ax.set_xlabel(_NAMES.get(name, name))
    ax.set_ylabel("test accuracy")
    ax.set_title(_title(part, "\n"))


def _title(part: Part, between: str) -> str:
    """Return the method, and in words if its epsilon is a label only."""
    label = part.experiment.series[0].label
    return label.replace(PRINTED, f"{between}{NO_GUARANTEE}")


def evaluations(parts: Sequence[Part], folder: Path, name: str) -> list[Path]:
    """Draw evaluations against the sampling ratio: of batches, and passes over rows."""
    part = parts[0]
    experiment = part.experiment
    with figure_of(1, 2, size=(4.6, 3.9)) as figure:
        for ax, unit, in_passes in zip(
            figure.axes,
            ("evaluations on a batch", "passes over all rows: q times as many"),
            (False, True),
            strict=True,
        ):
            _evaluation_panel(ax, part, in_passes=in_passes)
            ax.set_title(unit)
        cap = "" if experiment.max_batches is None else f"{experiment.max_batches:,}"
        figure.suptitle(
            f"{_title(part, ', ')}, epsilon = {experiment.epsilons[0]:g}"
            + (f"; a run ends after {cap} batches at the latest" if cap else "")
        )
        legend_below(figure, 2)
        return save(figure, folder, name)


def _evaluation_panel(ax: Any, part: Part, *, in_passes: bool) -> None:
    """Draw gradient and objective evaluations, open where the cap ended runs."""
    from matplotlib.ticker import LogLocator

    looks = {
        "gradients": ("gradient evaluations", BLUE, "o", "-"),
        "objectives": ("objective evaluations", RED, "D", "--"),
    }
    for column, (label, color, marker, dashes) in looks.items():
        _, rows = _with_setting(part, column)
        scale = rows["x"] if in_passes else 1.0
        rows = rows.assign(value=rows["value"] * scale, error=rows["error"] * scale)
        draw_line(ax, rows, "x", label, color=color, marker=marker, linestyle=dashes)
        ended = _ended_by_cap(part)
        capped = rows[rows["setting"].isin(ended)]
        if len(capped):
            ax.plot(
                capped["x"],
                capped["value"],
                marker,
                color=color,
                markerfacecolor="white",
                markersize=7,
                label=f"{label}, ended by the cap",
            )
    ax.set_yscale("log", subs=[])
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter("{x:g}")
    log_axis(ax, part.experiment.vary["sampling_prob"])
    ax.set_xlabel(_NAMES["sampling_prob"])


def _ended_by_cap(part: Part) -> set[str]:
    """Return the settings of which a run ended because of its number of batches."""
    cap = part.experiment.max_batches
    if cap is None:
        return set()
    return set(part.table.loc[part.table["batches"] >= cap, "setting"])


def methods(parts: Sequence[Part], folder: Path, name: str) -> list[Path]:
    """Draw accuracy and objective against the budget, sound accounting only."""

    def lines(experiment: Experiment) -> list[str]:
        return [each.label for each in experiment.series if each.accounting == "sound"]

    return _grid(parts, folder, name, lines, columns=min(4, len(parts) + 1))


def printed(parts: Sequence[Part], folder: Path, name: str) -> list[Path]:
    """Draw the paper's methods under both accountings."""

    def lines(experiment: Experiment) -> list[str]:
        labels = [each.label for each in experiment.series]
        frame = [each for each in ("majority", "non-private") if each in labels]
        both = [
            label for own in OWN for label in (own, own + PRINTED) if label in labels
        ]
        return both + frame

    return _grid(parts, folder, name, lines, columns=2)


def _grid(
    parts: Sequence[Part],
    folder: Path,
    name: str,
    lines_of: Callable[[Experiment], list[str]],
    *,
    columns: int,
) -> list[Path]:
    """Draw a column for each data set: accuracy above, objective below."""
    with figure_of(2, len(parts), size=(2.9, 3.1)) as figure:
        panels = [figure.axes[: len(parts)], figure.axes[len(parts) :]]
        for (upper, lower), part in zip(zip(*panels, strict=True), parts, strict=True):
            labels = lines_of(part.experiment)
            _budget_panel(upper, part, "accuracy", labels)
            _budget_panel(lower, part, "objective", labels)
            _objective_limits(lower, part)
            lower.set_xlabel("epsilon")
            upper.set_title(DATASETS[part.experiment.datasets[0]])
        panels[0][0].set_ylabel("test accuracy")
        panels[1][0].set_ylabel("training objective")
        order = lines_of(parts[0].experiment)
        legend_below(figure, columns, lambda name: _place(name, order))
        return save(figure, folder, name)


def _place(name: str, order: Sequence[str]) -> int:
    """Return where the line of a name in the legend stands among the lines."""
    return order.index(name.replace(f", {NO_GUARANTEE}", PRINTED))


def _budget_panel(ax: Any, part: Part, column: str, labels: Sequence[str]) -> None:
    """Draw one measure of all lines against the budget."""
    rows = summarized(part.table, column, ["line", "epsilon"])
    for label in labels:
        found = rows[rows["line"] == label]
        if found.empty:
            continue
        if part.experiment.series_named(label).once:
            keywords = style_of(label).keywords() | {"marker": None}
            ax.axhline(found["value"].iloc[0], label=shown(label), **keywords)
        elif label.endswith(PRINTED):
            own = label.removesuffix(PRINTED)
            draw_line(
                ax,
                found,
                "epsilon",
                own,
                linestyle="--",
                markerfacecolor="white",
                label=f"{own}, {NO_GUARANTEE}",
            )
        else:
            draw_line(ax, found, "epsilon", label)
    log_axis(ax, part.experiment.epsilons)


def _objective_limits(ax: Any, part: Part) -> None:
    """Show the range of useful models, up to twice the objective of all zeros."""
    zero = math.log(2.0) if part.experiment.models[0] == "logistic" else 1.0
    lowest = float(part.table["objective"].min())
    top = float(summarized(part.table, "objective", ["line", "epsilon"])["value"].max())
    ax.set_ylim(lowest - 0.05 * zero, min(top + 0.05 * zero, 2.0 * zero))


def zero_tuning(parts: Sequence[Part], folder: Path, name: str) -> list[Path]:
    """Draw the accuracy of auto minus that of each other line, paired by folds."""
    part = parts[0]
    wanted = part.experiment
    with figure_of(len(wanted.models), len(wanted.datasets), size=(3.6, 3.0)) as figure:
        for number, ax in enumerate(figure.axes):
            model = wanted.models[number // len(wanted.datasets)]
            dataset = wanted.datasets[number % len(wanted.datasets)]
            _gap_panel(ax, part, dataset, model)
        legend_below(figure, 3)
        return save(figure, folder, name)


def _gap_panel(ax: Any, part: Part, dataset: str, model: str) -> None:
    """Draw the differences of one data set and loss."""
    of = part.table[(part.table["dataset"] == dataset) & (part.table["model"] == model)]
    others = [each.label for each in part.experiment.series if each.label != "auto"]
    ax.axhline(0.0, color="black", lw=0.9)
    ax.axhline(-0.002, color="black", lw=0.9, ls=":", label="0.002 below")
    for label in others:
        rows = gaps_to(of, label)
        if len(rows):
            draw_line(ax, rows, "epsilon", label, label=f"auto minus {shown(label)}")
    log_axis(ax, part.experiment.epsilons)
    ax.set_xlabel("epsilon")
    ax.set_ylabel("difference of accuracy")
    ax.set_title(f"{DATASETS[dataset]}, {MODELS[model]}")


def gaps_to(rows: pd.DataFrame, other: str) -> pd.DataFrame:
    """Return ``value`` and ``error`` of auto minus another line at every budget."""
    found = []
    for epsilon, part in rows.groupby("epsilon"):
        gap = difference(
            part[part["line"] == "auto"], part[part["line"] == other], "accuracy"
        )
        if gap.runs:
            found.append((epsilon, gap.value, gap.error))
    return pd.DataFrame(found, columns=["epsilon", "value", "error"])
