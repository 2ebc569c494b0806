# SPDX-License-Identifier: Apache-2.0
"""How lines look, and how a figure becomes the same bytes every time.

The colors are those of Okabe and Ito (2008), which readers with any color vision can
tell apart; marker and line style repeat what the color says.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PURPLE, GRAY = "#0072B2", "#D55E00", "#CC79A7", "#767676"
PRINTED = " (printed)"
NO_GUARANTEE = "printed analysis: no guarantee"
_DASHED, _DOTTED, _MIXED = (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5))

DATASETS = {
    "adult": "Adult",
    "ipums-br": "IPUMS-BR",
    "acs-national": "US census (ACS)\nnot IPUMS-US",
    "bank": "Bank",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar-10-subset": "CIFAR-10 subset",
}
MODELS = {
    "logistic": "logistic regression",
    "svm": "SVM",
    "mlp_1000": "MLP",
    "mlp_256": "MLP",
    "cnn_small": "CNN",
    "cnn_cifar": "CNN",
}


@dataclass(frozen=True)
class Style:
    """Color, marker, line style and width of a line."""

    color: str
    marker: str = ""
    dashes: Any = "-"
    width: float = 1.3

    def keywords(self) -> dict[str, Any]:
        """Return what matplotlib calls them."""
        return {
            "color": self.color,
            "marker": self.marker,
            "linestyle": self.dashes,
            "linewidth": self.width,
            "markersize": 5,
        }


STYLES = {
    "DP-BLSGD": Style(BLUE, "o", width=2.0),
    "DP-BLSGD-AC": Style(SKY, "s", width=2.0),
    "DP-BLGD": Style(RED, "D", width=2.0),
    "DP-AGD": Style(ORANGE, "^", _DASHED),
    "DP-SGD": Style(GREEN, "v", _DASHED),
    "DP-Adam": Style(PURPLE, "X", _DASHED),
    "Outpert-RSGD": Style(PURPLE, "P", _DASHED),
    "Outpert-GD": Style(PURPLE, "X", _DOTTED),
    "ObjPert": Style(BLACK, "<", _DASHED),
    "ObjPert (tight)": Style(BLACK, ">", _MIXED),
    "PrivGene": Style(ORANGE, "*", _DOTTED),
    "majority": Style(GRAY, "", _DOTTED, 1.8),
    "non-private": Style(GRAY, "", "-", 1.8),
    "Adam, non-private": Style(GRAY, "", "-", 1.8),
    "auto": Style(BLUE, "o", width=2.0),
    "DP-SGD, best step": Style(RED, "D", width=2.0),
    "DP-SGD (hindsight)": Style(GREEN, "v", _DASHED),
    "ObjPert (hindsight)": Style(BLACK, ">", _MIXED),
}
_OTHER = Style(GRAY, ".", _DASHED)


def dataset_name(name: str) -> str:
    """Return a data set's name on one line.

    >>> dataset_name("acs-national")
    'US census (ACS), not IPUMS-US'
    >>> dataset_name("adult/4")
    'Adult/4'
    """
    whole, *parts = name.split("/")
    return "/".join([DATASETS.get(whole, whole).replace("\n", ", "), *parts])


def shown(label: str) -> str:
    """Return a line's name as a figure shows it, without where its parameters are from.

    >>> shown("DP-SGD (network)"), shown("DP-SGD (CIFAR)"), shown("ObjPert (tight)")
    ('DP-SGD', 'DP-SGD', 'ObjPert (tight)')
    """
    for suffix in (" (network)", " (CIFAR)", " (steps)"):
        label = label.removesuffix(suffix)
    return label


def style_of(label: str) -> Style:
    """Return the style of a line, that of its sound version for a printed one."""
    return STYLES.get(shown(label).removesuffix(PRINTED), _OTHER)


def draw_line(ax: Any, rows: pd.DataFrame, x: str, line: str, **changed: Any) -> None:
    """Draw ``value`` against a column, with standard errors where there are some."""
    rows = rows.sort_values(x)
    look = {**style_of(line).keywords(), "label": shown(line), **changed}
    bars = rows["error"] if rows["error"].notna().any() else None
    ax.errorbar(rows[x], rows["value"], yerr=bars, elinewidth=0.9, capsize=2, **look)


def log_axis(ax: Any, values: Iterable[float]) -> None:
    """Make the horizontal axis logarithmic, with each value named by its number."""
    ax.set_xscale("log")
    known = sorted(set(values))
    ax.set_xticks(known, [f"{each:g}" for each in known])
    ax.set_xticks([], minor=True)


def legend_below(
    figure: Any, columns: int, order: Callable[[str], int] = lambda _: 0
) -> None:
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
        if legend.get_window_extent().width <= figure.bbox.width:
            return
        if count > 1:
            legend.remove()


@contextmanager
def figure_of(rows: int, columns: int, *, size: tuple[float, float]) -> Iterator[Any]:
    """Yield a figure with tidy axes; ``size`` is that of one panel in inches."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    look: dict[Any, Any] = {
        "svg.hashsalt": "armijo",
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
    }
    with rc_context(look):
        width = max(size[0] * columns, 6.4)
        figure = Figure(figsize=(width, size[1] * rows), layout="constrained")
        figure.subplots(rows, columns, squeeze=False)
        yield figure


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write PNG and SVG, without a date, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    figure.savefig(png, dpi=150, metadata={"Software": None})
    figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]
