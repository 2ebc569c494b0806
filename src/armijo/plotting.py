# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run and of a model, from released values."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from armijo.accounting.budget import Guarantee

BLUE, ORANGE, GRAY = "#0072B2", "#D55E00", "#767676"


def plot_history(history: pd.DataFrame, guarantee: Guarantee, axes: Any = None) -> Any:
    """Draw step sizes, per-step budgets and spent epsilon; return the three axes."""
    import matplotlib.pyplot as plt

    if axes is None:
        _, axes = plt.subplots(
            3, 1, figsize=(7.0, 7.5), sharex=True, layout="constrained"
        )
    draw_steps(axes[0], history)
    draw_budgets(axes[1], history)
    draw_spent(axes[2], history, guarantee)
    axes[2].set_xlabel("batch")
    return axes


def draw_steps(ax: Any, history: pd.DataFrame) -> None:
    """Draw the chosen step size of each update, and where a search found none."""
    history = history[history["step_size"].notna()]
    found = history["step_size"] > 0
    if found.any():
        ax.plot(
            history["batch"][found],
            history["step_size"][found],
            ".",
            color=BLUE,
            markersize=4,
            label="chosen step size",
        )
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        sizes = history["step_size"][found]
        if sizes.max() < 10 * sizes.min():  # no power of ten may lie between them
            ax.yaxis.set_minor_formatter("{x:g}")
    if history["initial_step"].notna().any():
        ax.plot(
            history["batch"],
            history["initial_step"],
            color=GRAY,
            lw=1,
            label="first candidate",
        )
    missed = history["batch"][~found]
    if len(missed):
        floor = history["step_size"][found].min() if found.any() else 1.0
        ax.plot(
            missed,
            np.full(len(missed), floor),
            "x",
            color=ORANGE,
            markersize=4,
            label="none found",
        )
    ax.set_ylabel("step size")
    ax.margins(y=0.2)  # room for the legend
    _legend(ax)
    _tidy(ax)


def draw_budgets(ax: Any, history: pd.DataFrame) -> None:
    """Draw the un-amplified budgets of gradient and search."""
    gradient = np.sqrt(2 * history["gradient_rho"].astype(float))
    for name, values, color, style in (
        ("gradient: sqrt(2 rho)", gradient, BLUE, "-"),
        ("search: epsilon", history["search_epsilon"], ORANGE, "--"),
    ):
        if values.notna().any():
            ax.plot(history["batch"], values, color=color, linestyle=style, label=name)
    ax.set_ylabel("budget per batch")
    ax.margins(y=0.2)  # room for the legend
    ax.set_ylim(bottom=0)
    _legend(ax)
    _tidy(ax)


def draw_spent(ax: Any, history: pd.DataFrame, guarantee: Guarantee) -> None:
    """Draw spent epsilon against the budget of the guarantee."""
    epsilon = guarantee.budget.epsilon
    ax.plot(history["batch"], history["epsilon"], color=BLUE, label="spent")
    label = "guaranteed" if guarantee.holds else "label only: no guarantee"
    ax.axhline(epsilon, color=ORANGE, linestyle="--", label=f"{label}: {epsilon:g}")
    ax.set_ylabel("epsilon")
    ax.set_ylim(bottom=0)
    ax.legend(loc="lower right", frameon=False, fontsize=8)
    _tidy(ax)


def draw_angles(ax: Any, history: pd.DataFrame) -> None:
    """Draw the angle of each direction to the one it was compared with."""
    ax.plot(history["batch"], history["angle"], ".", color=BLUE, markersize=4)
    ax.axhline(90, color=GRAY, lw=1)
    ax.set_ylabel("angle (degrees)")
    ax.set_ylim(0, 180)
    ax.set_yticks([0, 45, 90, 135, 180])
    _tidy(ax)


def _legend(ax: Any) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="best", frameon=False, fontsize=8)


def _tidy(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)


_COLUMNS = 3  # of panels
_MOST_LEVELS = 12  # of a category that are drawn
_BINS = 40
_ENDS = (0.01, 0.99)  # ranks between which a shape is drawn
_LEAST_SHARE = 0.005  # of the rows, of a level that is drawn
_PALETTE = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", GRAY, "#000000")


def plot_shapes(
    shapes: Sequence[Any],
    level_names: Mapping[str, Sequence[str]] | None = None,
    outputs: Sequence[str] = (),
    axes: Any = None,
) -> Any:
    """Draw what each column adds to the score, the column that matters most first.

    Parameters
    ----------
    shapes : sequence of armijo.methods.additive_model.Shape
        Released shapes.
    level_names : mapping or None
        The names of the levels of each category.
    outputs : sequence of str
        The classes, if there is a line for each.
    axes : array of axes or None
        Where to draw, one for each column; None makes a figure.

    Returns
    -------
    array of axes
        One for each column.
    """
    import matplotlib.pyplot as plt

    if axes is None:
        axes = shape_axes(len(shapes), plt.figure)
        axes[0].figure.supylabel("contribution to the score", fontsize=9)
    ordered = sorted(shapes, key=importance, reverse=True)
    for ax, shape in zip(axes, ordered, strict=True):
        draw_shape(ax, shape, (level_names or {}).get(shape.name, ()), outputs)
    if outputs:
        axes[0].legend(fontsize=7, frameon=False, handlelength=1.2)
    return np.asarray(axes)


def shape_axes(count: int, new_figure: Callable[..., Any]) -> Any:
    """Return axes for so many shapes, on a figure of their size."""
    wide = min(_COLUMNS, count)
    high = -(-count // wide)
    size = (2.9 * wide + 0.4, 2.0 * high + 0.3)
    figure = new_figure(figsize=size, layout="constrained")
    grid = figure.subplots(high, wide, sharey=True, squeeze=False)
    for spare in grid.flat[count:]:
        spare.set_visible(False)
    return grid.flat[:count]


def importance(shape: Any) -> float:
    """Return the standard deviation of a column's contribution, over all scores."""
    weights = shape.density / max(float(shape.density.sum()), 1e-12)
    centered = shape.y - (shape.y @ weights)[:, None]
    return float(np.sqrt((centered**2 @ weights).mean()))


def draw_shape(
    ax: Any, shape: Any, levels: Sequence[str] = (), outputs: Sequence[str] = ()
) -> None:
    """Draw the contribution of one column above the released shares of its values."""
    ax.axhline(0, color=GRAY, lw=0.6, zorder=1)
    draw = _draw_levels if shape.kind == "category" else _draw_curve
    draw(ax, shape, [*levels, "missing"], outputs or ("",))
    ax.set_title(shape.name, fontsize=9, loc="left")
    ax.tick_params(labelsize=7)
    _tidy(ax)


def _draw_curve(ax: Any, shape: Any, _: Sequence[str], outputs: Sequence[str]) -> None:
    ranks = np.cumsum(shape.density) / max(float(shape.density.sum()), 1e-12)
    inside = np.flatnonzero((ranks >= _ENDS[0]) & (ranks - shape.density <= _ENDS[1]))
    if inside.size < 2 or shape.x[inside[0]] == shape.x[inside[-1]]:
        inside = np.arange(len(shape.x))
    x, shares = shape.x[inside], shape.density[inside]
    for line, name, color in zip(shape.y, outputs, _colors(shape), strict=False):
        ax.plot(x, line[inside], color=color, lw=1.4, label=name, zorder=3)
    heights, edges = np.histogram(x, bins=_BINS, weights=shares)
    _draw_shares(ax, (edges[1:] + edges[:-1]) / 2, heights, width=edges[1] - edges[0])
    ax.set_xlim(x[0], x[-1])
    ax.locator_params(axis="x", nbins=5)
    ax.xaxis.set_major_formatter(_short_number)


def _short_number(value: float, _: object) -> str:
    """Return a number as a tick shows it: 250000 as 250k.

    >>> [_short_number(x, None) for x in (0.25, -40, 2_500, 250_000, 3e7, 1e13)]
    ['0.25', '-40', '2500', '250k', '30M', '1e+13']
    """
    for power, letter in ((6, "M"), (4, "k")):
        if 10**power <= abs(value) < 10 ** (power + 4):
            return f"{value / 10 ** min(power, 3 * (power // 3)):g}{letter}"
    return f"{value:g}"


def _draw_levels(
    ax: Any, shape: Any, names: Sequence[str], outputs: Sequence[str]
) -> None:
    most = np.argsort(-shape.density, kind="stable")[:_MOST_LEVELS]
    frequent = shape.density[most] >= _LEAST_SHARE
    most = np.sort(most[frequent | (np.arange(len(most)) < 2)])
    places = np.arange(len(most))
    spread = 0.25 if len(shape.y) > 1 else 0.0
    offsets = np.linspace(-spread, spread, len(shape.y))
    for line, name, color, offset in zip(
        shape.y, outputs, _colors(shape), offsets, strict=False
    ):
        ax.plot(
            places + offset, line[most], "o", color=color, ms=4, label=name, zorder=3
        )
        ax.vlines(places + offset, 0, line[most], color=color, lw=1.2, zorder=2)
    _draw_shares(ax, places, shape.density[most], width=0.8)
    texts = [names[k] if k < len(names) else str(k) for k in most]
    texts = [text if len(text) <= 12 else text[:11] + "…" for text in texts]
    long = sum(map(len, texts)) > 26
    ax.set_xticks(
        places, texts, rotation=35 if long else 0, ha="right" if long else "center"
    )
    if len(most) < len(shape.x):
        ax.set_xlabel(f"the frequent ones of {len(shape.x)} levels", fontsize=7)


def _draw_shares(ax: Any, x: Any, shares: Any, *, width: float) -> None:
    """Draw released shares as gray bars in the lowest third, without a scale."""
    beside = ax.twinx()
    beside.bar(x, shares, width=width, color="#dddddd", zorder=0, linewidth=0)
    beside.set_ylim(0, 3 * max(float(np.max(shares)), 1e-12))
    beside.set_yticks([])
    beside.spines[:].set_visible(False)
    ax.set_zorder(beside.get_zorder() + 1)
    ax.patch.set_visible(False)


def _colors(shape: Any) -> list[str]:
    return [_PALETTE[k % len(_PALETTE)] for k in range(len(shape.y))]
