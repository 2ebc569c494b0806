# SPDX-License-Identifier: Apache-2.0
"""Draw the paper's figures from result files: whatever results are there."""

from collections.abc import Callable, Sequence
from pathlib import Path

from armijo.errors import ArmijoError
from armijo_reproduction import figures_convex, figures_networks
from armijo_reproduction.summary import Part, by_accounting, in_group

Drawing = Callable[[Sequence[Part], Path, str], list[Path] | None]
"""Writes the files of a figure; None where nothing is there to draw."""


def _under(draw: Drawing, *, printed: bool) -> Drawing:
    """Return a drawing of the lines under one accounting alone."""

    def drawn(parts: Sequence[Part], folder: Path, name: str) -> list[Path] | None:
        found = by_accounting(parts, printed=printed)
        return draw(found, folder, name) if found else None

    return drawn


FIGURES: dict[str, tuple[tuple[str, ...], Drawing]] = {
    "hyper-parameters": (
        ("hyper-parameters",),
        _under(figures_convex.hyper_parameters, printed=False),
    ),
    "hyper-parameters-printed": (
        ("hyper-parameters",),
        _under(figures_convex.hyper_parameters, printed=True),
    ),
    "evaluations": (
        ("evaluations",),
        _under(figures_convex.evaluations, printed=False),
    ),
    "evaluations-printed": (
        ("evaluations",),
        _under(figures_convex.evaluations, printed=True),
    ),
    "logistic": (("logistic",), figures_convex.methods),
    "logistic-printed": (("logistic",), figures_convex.printed),
    "svm": (("svm",), figures_convex.methods),
    "svm-printed": (("svm",), figures_convex.printed),
    "networks": (("networks",), figures_networks.curves),
    "zero-tuning": (("zero-tuning",), figures_convex.zero_tuning),
    "zero-tuning-networks": (
        ("zero-tuning-networks", "zero-tuning-networks-grid"),
        figures_networks.zero_tuning,
    ),
}
"""The figures: of which groups of experiments, and how they are drawn."""


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
        groups, draw = FIGURES[name]
        found = in_group(parts, *groups)
        paths = draw(found, folder, name) if found else None
        if paths is not None:
            drawn[name] = paths
    if not drawn:
        raise ArmijoError(
            f"There are no results yet for {', '.join(names or FIGURES)}; `python -m "
            "armijo_reproduction list` names the experiments that make them."
        )
    return drawn
