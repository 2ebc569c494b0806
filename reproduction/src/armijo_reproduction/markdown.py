# SPDX-License-Identifier: Apache-2.0
"""Markdown tables, and how they name a cell."""

from collections.abc import Iterable, Sequence

from armijo_reproduction.figures_style import MODELS, dataset_name


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
