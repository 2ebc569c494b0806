# SPDX-License-Identifier: Apache-2.0
"""What is measured, beside what, and against which goal.

A module of this package takes part by defining ``rows()``, which returns the rows it
measured; ``under``, ``at_most`` and ``times_faster`` build a row and decide whether its
goal is met.  Times are in seconds.
"""

from typing import TypedDict


class Row(TypedDict):
    """One line of the report; ``ratio`` is the peer's figure divided by ours."""

    name: str
    ours: float
    peer: float | None
    ratio: float | None
    goal: str
    met: bool


def under(name: str, ours: float, limit: float, peer: float | None = None) -> Row:
    """Return a row whose goal is a ceiling for our own figure."""
    return Row(
        name=name,
        ours=ours,
        peer=peer,
        ratio=None if peer is None else peer / ours,
        goal=f"ours < {limit:g}",
        met=ours < limit,
    )


def times_faster(name: str, ours: float, peer: float, factor: float) -> Row:
    """Return a row whose goal is to need ``factor`` times less than the peer."""
    ratio = peer / ours
    return Row(
        name=name,
        ours=ours,
        peer=peer,
        ratio=ratio,
        goal=f"ratio >= {factor:g}",
        met=ratio >= factor,
    )


def at_most(name: str, ours: float, peer: float, factor: float) -> Row:
    """Return a row whose goal is to need at most ``factor`` times the peer's."""
    return Row(
        name=name,
        ours=ours,
        peer=peer,
        ratio=peer / ours,
        goal=f"ours <= {factor:g} x peer",
        met=ours <= factor * peer,
    )
