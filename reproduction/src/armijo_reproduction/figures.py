# SPDX-License-Identifier: Apache-2.0
"""The paper's figures, from whatever result files are there: the same bytes every time.

``figures.toml`` has the figures with their captions, and how each series looks.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from armijo.errors import ArmijoError
from armijo_reproduction.claims import PROPOSED
from armijo_reproduction.results import (
    GIVEN,
    Part,
    by_accounting,
    difference,
    in_group,
    summarized,
)
from armijo_reproduction.spec import (
    DATASETS,
    MODELS,
    NO_SETTING,
    PUBLISHED,
    Experiment,
    shown,
)

NO_GUARANTEE = "published analysis: no guarantee"
DOCUMENT: dict[str, Any] = tomllib.loads(
    (files("armijo_reproduction") / "figures.toml").read_text(encoding="utf-8")
)
FIGURES: dict[str, dict[str, Any]] = DOCUMENT["figures"]
COLORS: dict[str, str] = DOCUMENT["colors"]
NAMES: dict[str, dict[str, str]] = DOCUMENT["names"]
_MARKERS = "v^<>sDPX"


def draw_figures(
    parts: Sequence[Part], folder: Path, names: Sequence[str] = ()
) -> dict[str, list[Path]]:
    """Draw figures, all if none is named; return PNG and SVG of those with results."""
    for name in names:
        if name not in FIGURES:
            raise ArmijoError(
                f"There is no figure {name!r}; there are {', '.join(FIGURES)}."
            )
    from matplotlib import rc_context

    drawn = {}
    for name in names or FIGURES:
        draw: Callable[[Sequence[Part]], Any] = globals()[FIGURES[name]["draw"]]
        panels = in_group(parts, *FIGURES[name]["groups"])
        if draw in (hyper_parameters, evaluations):
            published = name.endswith("-published")
            panels = by_accounting(panels, published=published)
        if panels:
            with rc_context(DOCUMENT["look"]):
                drawn[name] = save(draw(panels), folder, name)
    if not drawn:
        raise ArmijoError(
            f"There are no results yet for {', '.join(names or FIGURES)}; `python -m "
            "armijo_reproduction list` names the experiments that make them."
        )
    return drawn


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write PNG and SVG, without a date, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    figure.savefig(png, dpi=150, metadata={"Software": None})
    figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]


def figure_of(rows: int, columns: int, *, size: tuple[float, float]) -> Any:
    """Return a figure with axes; ``size`` is that of one panel in inches."""
    from matplotlib.figure import Figure

    width = max(size[0] * columns, 6.4)
    figure = Figure(figsize=(width, size[1] * rows), layout="constrained")
    figure.subplots(rows, columns, squeeze=False)
    return figure


def style_of(label: str) -> dict[str, Any]:
    """Return how a series looks; as published like its sound version."""
    styles = DOCUMENT["styles"]
    plain = shown(label.removesuffix(PUBLISHED))
    color, marker, dashes, width = styles.get(plain, styles["other"])
    offset = DOCUMENT["dashes"][dashes]
    return {
        "color": COLORS[color],
        "marker": marker,
        "linestyle": offset if isinstance(offset, str) else tuple(offset),
        "linewidth": width,
        "markersize": 5,
    }


def draw_line(ax: Any, rows: pd.DataFrame, x: str, line: str, **changed: Any) -> None:
    """Draw ``value`` against a column, with standard errors where there are some."""
    rows = rows.sort_values(x)
    look = {**style_of(line), "label": shown(line), **changed}
    bars = rows["error"] if rows["error"].notna().any() else None
    ax.errorbar(rows[x], rows["value"], yerr=bars, elinewidth=0.9, capsize=2, **look)


def log_axis(ax: Any, values: Iterable[float]) -> None:
    """Make the horizontal axis logarithmic, with each value named by its number."""
    ax.set_xscale("log")
    known = sorted(set(values))
    ax.set_xticks(known, [f"{value:g}" for value in known])
    ax.set_xticks([], minor=True)


def with_legend(
    figure: Any, columns: int, order: Callable[[str], int] = lambda _: 0
) -> Any:
    """Name every line once, under all panels, in as many columns as have room."""
    named: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    labels = sorted(named, key=order)
    for count in range(min(columns, len(labels)), 0, -1):
        legend = figure.legend(
            [named[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=count,
            frameon=False,
            handlelength=3.2,
        )
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    return figure


def _with_setting(part: Part, column: str) -> tuple[str, pd.DataFrame]:
    """Return what varies, and the summary with its values in a column ``x``."""
    rows = summarized(part.table, column, GIVEN)
    name = next(iter(part.experiment.vary))
    options = rows["setting"].map(part.experiment.options_of)
    return name, rows.assign(x=[values[name] for values in options])


def hyper_parameters(parts: Sequence[Part]) -> Any:
    """Draw one panel for each parameter that varies, a line for each budget."""
    columns = min(3, len(parts))
    lines = -(-len(parts) // columns)
    figure = figure_of(lines, columns, size=(3.6, 2.9))
    for ax, part in zip(figure.axes, parts, strict=False):
        _hyper_panel(ax, part)
    for ax in figure.axes[len(parts) :]:
        ax.set_visible(False)
    return with_legend(figure, 3)


def _hyper_panel(ax: Any, part: Part) -> None:
    name, rows = _with_setting(part, "accuracy")
    words = part.experiment.vary[name]
    if isinstance(words[0], str):
        rows["x"] = rows["x"].map(words.index)
        ax.set_xticks(
            range(len(words)), [NAMES["values"].get(word, word) for word in words]
        )
        ax.set_xlim(-0.4, len(words) - 0.6)
    if name == "sampling_prob":
        log_axis(ax, words)
    looks = (("blue", "^", "-"), ("red", "v", "--"), ("green", "o", ":"))
    budgets = sorted(rows["epsilon"].unique())
    for epsilon, (color, marker, dashes) in zip(budgets, looks, strict=False):
        draw_line(
            ax,
            rows[rows["epsilon"] == epsilon],
            "x",
            f"epsilon = {epsilon:g}",
            color=COLORS[color],
            marker=marker,
            linestyle=dashes,
            markersize=6,
        )
    ax.set_xlabel(NAMES["parameters"].get(name, name))
    ax.set_ylabel("test accuracy")
    ax.set_title(_title(part, "\n"))


def _title(part: Part, between: str) -> str:
    """Return the method, and in words if its epsilon is a label only."""
    label = part.experiment.series[0].label
    return label.replace(PUBLISHED, f"{between}{NO_GUARANTEE}")


def evaluations(parts: Sequence[Part]) -> Any:
    """Draw evaluations against the sampling ratio: of batches, and passes over rows."""
    part = parts[0]
    experiment = part.experiment
    units = "evaluations on a batch", "passes over all rows: q times as many"
    figure = figure_of(1, 2, size=(4.6, 3.9))
    for ax, unit in zip(figure.axes, units, strict=True):
        _evaluation_panel(ax, part, in_passes=unit.startswith("passes"))
        ax.set_title(unit)
    cap = "" if experiment.max_batches is None else f"{experiment.max_batches:,}"
    figure.suptitle(
        f"{_title(part, ', ')}, epsilon = {experiment.epsilons[0]:g}"
        + (f"; a run ends after {cap} batches at the latest" if cap else "")
    )
    return with_legend(figure, 2)


def _evaluation_panel(ax: Any, part: Part, *, in_passes: bool) -> None:
    """Draw gradient and objective evaluations, open where the cap ended runs."""
    from matplotlib.ticker import LogLocator

    cap = part.experiment.max_batches or math.inf
    ended = set(part.table.loc[part.table["batches"] >= cap, "setting"])
    looks = {
        "gradients": ("gradient evaluations", COLORS["blue"], "o", "-"),
        "objectives": ("objective evaluations", COLORS["red"], "D", "--"),
    }
    for column, (label, color, marker, dashes) in looks.items():
        _, rows = _with_setting(part, column)
        scale = rows["x"] if in_passes else 1.0
        rows = rows.assign(value=rows["value"] * scale, error=rows["error"] * scale)
        draw_line(ax, rows, "x", label, color=color, marker=marker, linestyle=dashes)
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
    ax.set_xlabel(NAMES["parameters"]["sampling_prob"])


def methods(parts: Sequence[Part]) -> Any:
    """Draw accuracy and objective against the budget, sound accounting only."""

    def lines(experiment: Experiment) -> list[str]:
        return [line.label for line in experiment.series if line.accounting == "sound"]

    return _grid(parts, lines, columns=min(4, len(parts) + 1))


def both_accountings(parts: Sequence[Part]) -> Any:
    """Draw the paper's methods under both accountings."""

    def lines(experiment: Experiment) -> list[str]:
        labels = {line.label for line in experiment.series}
        pairs = [label for name in PROPOSED for label in (name, name + PUBLISHED)]
        return [e for e in (*pairs, "majority", "non-private") if e in labels]

    return _grid(parts, lines, columns=2)


def _grid(
    parts: Sequence[Part], lines_of: Callable[[Experiment], list[str]], *, columns: int
) -> Any:
    """Draw a column for each data set: accuracy above, objective below."""
    figure = figure_of(2, len(parts), size=(2.9, 3.1))
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
    return with_legend(
        figure,
        columns,
        lambda name: order.index(name.replace(f", {NO_GUARANTEE}", PUBLISHED)),
    )


def _budget_panel(ax: Any, part: Part, column: str, labels: Sequence[str]) -> None:
    rows = summarized(part.table, column, ["line", "epsilon"])
    for label in labels:
        line = rows[rows["line"] == label]
        if line.empty:
            continue
        if part.experiment.series_named(label).once:
            look = style_of(label) | {"marker": None}
            ax.axhline(line["value"].iloc[0], label=shown(label), **look)
        elif label.endswith(PUBLISHED):
            changed = {"linestyle": "--", "markerfacecolor": "white"}
            name = label.replace(PUBLISHED, f", {NO_GUARANTEE}")
            draw_line(ax, line, "epsilon", label, label=name, **changed)
        else:
            draw_line(ax, line, "epsilon", label)
    log_axis(ax, part.experiment.epsilons)


def _objective_limits(ax: Any, part: Part) -> None:
    """Show the range of useful models, up to twice the objective of all zeros."""
    zero = math.log(2.0) if part.experiment.models[0] == "logistic" else 1.0
    lowest = float(part.table["objective"].min())
    top = float(summarized(part.table, "objective", ["line", "epsilon"])["value"].max())
    ax.set_ylim(lowest - 0.05 * zero, min(top + 0.05 * zero, 2.0 * zero))


def zero_tuning(parts: Sequence[Part]) -> Any:
    """Draw the accuracy of auto minus that of each other line, paired by folds."""
    part = parts[0]
    wanted = part.experiment
    figure = figure_of(len(wanted.models), len(wanted.datasets), size=(3.6, 3.0))
    places = product(wanted.models, wanted.datasets)
    for ax, (model, dataset) in zip(figure.axes, places, strict=True):
        _difference_panel(ax, part, dataset, model)
    return with_legend(figure, 3)


def _difference_panel(ax: Any, part: Part, dataset: str, model: str) -> None:
    ax.axhline(0.0, color="black", lw=0.9)
    ax.axhline(-0.002, color="black", lw=0.9, ls=":", label="0.002 below")
    for line in part.experiment.series:
        diffs = []
        for epsilon, rows in part.of(dataset=dataset, model=model).groupby("epsilon"):
            auto, other = (rows[rows["line"] == e] for e in ("auto", line.label))
            diff = difference(auto, other, "accuracy")
            if diff.runs and line.label != "auto":
                diffs.append((epsilon, diff.value, diff.error))
        if diffs:
            rows = pd.DataFrame(diffs, columns=["epsilon", "value", "error"])
            name = f"auto minus {shown(line.label)}"
            draw_line(ax, rows, "epsilon", line.label, label=name)
    log_axis(ax, part.experiment.epsilons)
    ax.set_xlabel("epsilon")
    ax.set_ylabel("difference of accuracy")
    ax.set_title(f"{DATASETS[dataset]}, {MODELS[model]}")


def curves(parts: Sequence[Part]) -> Any:
    """Draw accuracy, objective, epsilon and step size, a column for each network."""
    measures = NAMES["measures"]
    figure = figure_of(len(measures), len(parts), size=(2.3, 2.2))
    for number, ax in enumerate(figure.axes):
        part = parts[number % len(parts)]
        column = list(measures)[number // len(parts)]
        {"spent": _epsilons, "step_size": _steps}.get(column, _lines)(ax, part, column)
        if number < len(parts):
            wanted = part.experiment
            ax.set_title(f"{DATASETS[wanted.datasets[0]]}\n{MODELS[wanted.models[0]]}")
        if number % len(parts) == 0:
            ax.set_ylabel(measures[column])
        if number >= len(parts) * (len(measures) - 1):
            ax.set_xlabel("iteration")
    return with_legend(figure, 3)


def _draw_curve(
    ax: Any, part: Part, rows: pd.DataFrame, line: str, **look: Any
) -> None:
    """Draw a line over the iterations, with about six markers in all."""
    every = max(1, part.table["iteration"].nunique() // 6)
    draw_line(ax, rows, "iteration", line, markevery=every, **look)


def _lines(ax: Any, part: Part, column: str) -> None:
    rows = summarized(part.table, column, ["line", "iteration"])
    for series in part.experiment.series:
        line = rows[rows["line"] == series.label]
        if len(line):
            _draw_curve(ax, part, line, series.label)


def _searched(part: Part) -> pd.DataFrame:
    """Return the rows of the paper's own method."""
    label = next(e.label for e in part.experiment.series if e.method == "blsgd")
    return part.of(line=label)


def _epsilons(ax: Any, part: Part, _: str) -> None:
    """Draw the sound epsilon of the steps so far beside the published label."""
    for column, label, color, dashes in (
        ("spent", "epsilon, sound", "blue", "-"),
        ("printed", f"epsilon, {NO_GUARANTEE}", "red", "--"),
    ):
        rows = _searched(part).groupby("iteration")[column].mean()
        ax.plot(rows.index, rows, color=COLORS[color], ls=dashes, lw=2, label=label)
    ax.set_ylim(bottom=0)


def _steps(ax: Any, part: Part, column: str) -> None:
    """Draw the step sizes that the search chose."""
    rows = summarized(_searched(part).dropna(subset=[column]), column, ["iteration"])
    draw_line(ax, rows, "iteration", "DP-BLSGD", linestyle="", markersize=4)
    ax.set_ylim(bottom=0)


def zero_tuning_networks(parts: Sequence[Part]) -> Any:
    """Draw accuracy of all settings, a column for each data set and budget."""
    wanted = [part.experiment for part in parts]
    panels = list(
        dict.fromkeys(p for e in wanted for p in product(e.datasets, e.epsilons))
    )
    figure = figure_of(1, len(panels), size=(2.8, 3.2))
    for ax, (dataset, epsilon) in zip(figure.axes, panels, strict=True):
        for part in parts:
            _settings(ax, part, dataset, epsilon)
        ax.set_title(f"{DATASETS[dataset]}\nepsilon = {epsilon:g}")
        ax.set_xlabel("iteration")
    figure.axes[0].set_ylabel("test accuracy")
    return with_legend(figure, 3)


def _settings(ax: Any, part: Part, dataset: str, epsilon: float) -> None:
    """Draw each line, its settings from pale to full color and by marker."""
    rows = part.of(dataset=dataset, epsilon=epsilon)
    rows = summarized(rows, "accuracy", [*GIVEN, "iteration"])
    settings = part.experiment.settings()
    for (label, setting), line in rows.groupby(["line", "setting"], sort=False):
        look: dict[str, Any] = {}
        if setting != NO_SETTING:
            number = settings.index(setting)
            look["alpha"] = 0.4 + 0.6 * (number + 1) / len(settings)
            look["marker"] = _MARKERS[number % len(_MARKERS)]
            words = setting.replace("_", " ").replace("=", " ")
            look["label"] = f"{shown(label)}, {words}"
        _draw_curve(ax, part, line, label, **look)
