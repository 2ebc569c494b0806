# SPDX-License-Identifier: Apache-2.0
"""Draw the paper's figures from result files: whatever results are there."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from armijo.errors import ArmijoError
from armijo_reproduction import figures_convex as convex
from armijo_reproduction import figures_networks as networks
from armijo_reproduction.summary import Part, by_accounting, in_group

Drawing = Callable[[Sequence[Part], Path, str], list[Path] | None]
"""Writes the files of a figure; None where nothing is there to draw."""


def _under(
    draw: Drawing, parts: Sequence[Part], folder: Path, name: str
) -> list[Path] | None:
    """Draw the series under one accounting alone: the one that the name tells."""
    kept = by_accounting(parts, printed=name.endswith("-printed"))
    return draw(kept, folder, name) if kept else None


FIGURES: dict[str, Drawing] = {
    "hyper-parameters": partial(_under, convex.hyper_parameters),
    "hyper-parameters-printed": partial(_under, convex.hyper_parameters),
    "evaluations": partial(_under, convex.evaluations),
    "evaluations-printed": partial(_under, convex.evaluations),
    "logistic": convex.methods,
    "logistic-printed": convex.printed,
    "svm": convex.methods,
    "svm-printed": convex.printed,
    "networks": networks.curves,
    "zero-tuning": convex.zero_tuning,
    "zero-tuning-networks": networks.zero_tuning,
}
"""The figures, and how they are drawn."""


def groups_of(name: str) -> tuple[str, ...]:
    """Return the groups of experiments that a figure shows.

    >>> groups_of("svm-printed"), groups_of("zero-tuning-networks")
    (('svm',), ('zero-tuning-networks', 'zero-tuning-networks-grid'))
    """
    group = name.removesuffix("-printed")
    return (group, f"{group}-grid") if group == "zero-tuning-networks" else (group,)


def draw_figures(
    parts: Sequence[Part], folder: Path, names: Sequence[str] = ()
) -> dict[str, list[Path]]:
    """Draw figures as PNG and SVG, and return the paths of those with results.

    Parameters
    ----------
    parts : sequence of Part
        The experiments with their results, from `load_parts`.
    folder : path
        Where the figures go; made if missing.
    names : sequence of str
        Which figures; all of them if empty.
    """
    for name in names:
        if name not in FIGURES:
            raise ArmijoError(
                f"There is no figure {name!r}; there are {', '.join(FIGURES)}."
            )
    drawn = {}
    for name in names or FIGURES:
        shown = in_group(parts, *groups_of(name))
        paths = FIGURES[name](shown, folder, name) if shown else None
        if paths is not None:
            drawn[name] = paths
    if not drawn:
        raise ArmijoError(
            f"There are no results yet for {', '.join(names or FIGURES)}; `python -m "
            "armijo_reproduction list` names the experiments that make them."
        )
    return drawn
