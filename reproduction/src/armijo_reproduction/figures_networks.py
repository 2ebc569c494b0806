# SPDX-License-Identifier: Apache-2.0
"""Figures of the networks: curves over the iterations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from armijo_reproduction.figures_style import (
    BLUE,
    DATASETS,
    MODELS,
    RED,
    draw_line,
    figure_of,
    legend_below,
    save,
    shown,
)
from armijo_reproduction.spec import NO_SETTING
from armijo_reproduction.summary import GIVEN, Part, summarized

_MEASURES = {
    "accuracy": "test accuracy",
    "objective": "training objective",
    "spent": "epsilon",
    "step_size": "chosen step size",
}


_MARKERS = "v^<>sDPX"


def curves(parts: Sequence[Part], folder: Path, name: str) -> list[Path]:
    """Draw accuracy, objective, epsilon and step size, a column for each network."""
    with figure_of(len(_MEASURES), len(parts), size=(2.3, 2.2)) as figure:
        for number, ax in enumerate(figure.axes):
            part = parts[number % len(parts)]
            column = list(_MEASURES)[number // len(parts)]
            {"spent": _epsilons, "step_size": _steps}.get(column, _lines)(
                ax, part, column
            )
            if number < len(parts):
                ax.set_title(_title(part))
            if number % len(parts) == 0:
                ax.set_ylabel(_MEASURES[column])
            if number >= len(parts) * (len(_MEASURES) - 1):
                ax.set_xlabel("iteration")
        legend_below(figure, 3)
        return save(figure, folder, name)


def _title(part: Part) -> str:
    """Return the data set and the network."""
    wanted = part.experiment
    return f"{DATASETS[wanted.datasets[0]]}\n{MODELS[wanted.models[0]]}"


def _every(part: Part) -> int:
    """Return how many points a curve has for one marker: about six markers in all."""
    return max(1, part.table["iteration"].nunique() // 6)


def _lines(ax: Any, part: Part, column: str) -> None:
    """Draw one measure of all lines."""
    rows = summarized(part.table, column, ["line", "iteration"])
    for line in part.experiment.series:
        found = rows[rows["line"] == line.label]
        if len(found):
            draw_line(ax, found, "iteration", line.label, markevery=_every(part))


def _private(part: Part) -> str:
    """Return the line of the paper's own method."""
    return next(e.label for e in part.experiment.series if e.method == "blsgd")


def _epsilons(ax: Any, part: Part, _: str) -> None:
    """Draw the sound epsilon of the steps so far beside the printed label."""
    own = part.table[part.table["line"] == _private(part)]
    for column, label, color, dashes in (
        ("spent", "epsilon, sound", BLUE, "-"),
        ("printed", "epsilon, printed analysis: no guarantee", RED, "--"),
    ):
        rows = own.groupby("iteration")[column].mean()
        ax.plot(rows.index, rows, color=color, ls=dashes, lw=2, label=label)
    ax.set_ylim(bottom=0)


def _steps(ax: Any, part: Part, column: str) -> None:
    """Draw the step sizes that the search chose."""
    own = _private(part)
    found = part.table[part.table["line"] == own].dropna(subset=[column])
    rows = summarized(found, column, ["iteration"])
    draw_line(ax, rows, "iteration", own, linestyle="", markersize=4)
    ax.set_ylim(bottom=0)


def zero_tuning(parts: Sequence[Part], folder: Path, name: str) -> list[Path]:
    """Draw accuracy of all settings, a column for each data set and budget."""
    panels = list(
        dict.fromkeys(
            (dataset, epsilon)
            for part in parts
            for dataset in part.experiment.datasets
            for epsilon in part.experiment.epsilons
        )
    )
    with figure_of(1, len(panels), size=(2.8, 3.2)) as figure:
        for ax, (dataset, epsilon) in zip(figure.axes, panels, strict=True):
            for part in parts:
                _settings(ax, part, dataset, epsilon)
            ax.set_title(f"{DATASETS[dataset]}\nepsilon = {epsilon:g}")
            ax.set_xlabel("iteration")
        figure.axes[0].set_ylabel("test accuracy")
        legend_below(figure, 3)
        return save(figure, folder, name)


def _settings(ax: Any, part: Part, dataset: str, epsilon: float) -> None:
    """Draw each line, its settings from pale to full color and by marker."""
    rows = summarized(part.table, "accuracy", [*GIVEN, "iteration"])
    here = rows[(rows["dataset"] == dataset) & (rows["epsilon"] == epsilon)]
    settings = part.experiment.settings()
    for (label, setting), found in here.groupby(["line", "setting"], sort=False):
        look: dict[str, Any] = {"markevery": _every(part)}
        if setting != NO_SETTING:
            number = settings.index(setting)
            look["alpha"] = 0.4 + 0.6 * (number + 1) / len(settings)
            look["marker"] = _MARKERS[number % len(_MARKERS)]
            words = setting.replace("_", " ").replace("=", " ")
            look["label"] = f"{shown(label)}, {words}"
        draw_line(ax, found, "iteration", label, **look)
