# SPDX-License-Identifier: Apache-2.0
"""Which of many like cases the fast suite takes."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def slow(cases: Iterable[Any]) -> list[Any]:
    """Leave cases, single values or tuples, to the slow suite."""
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow
        )
        for one in cases
    ]


def thinned(cases: Iterable[Any], every: int) -> list[Any]:
    """Take one of so many cases, the first among them; the others are slow.

    Of a product of lists whose lengths have no factor in common with ``every`` all
    values are taken in turn.
    """
    return [
        one if not place % every else slow([one])[0] for place, one in enumerate(cases)
    ]


def in_turn(cases: Iterable[tuple[Any, ...]], kinds: Sequence[Any]) -> list[Any]:
    """Join each case with every kind; the fast suite takes one of them, in turn."""
    return [
        (*case, kind) if kind is kinds[place % len(kinds)] else slow([(*case, kind)])[0]
        for place, case in enumerate(cases)
        for kind in kinds
    ]
