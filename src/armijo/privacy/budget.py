# SPDX-License-Identifier: Apache-2.0
"""What is promised: a budget, the relation it protects, and RDP -> (epsilon, delta).

A run is judged at Renyi orders; :func:`rdp_limit` says how much Renyi divergence an
order may use up for the promise ``Budget(epsilon, delta)`` to hold, and
:func:`rdp_to_epsilon` is its inverse.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from armijo import _validate

FloatArray = NDArray[np.float64]


class Neighboring(StrEnum):
    """Which two data sets an attacker may not tell apart.

    ``ADD_REMOVE``: one row more or less.  ``ZERO_OUT``: one row replaced by a row that
    contributes nothing, which makes the number of rows public by definition; sums have
    the same sensitivity as under add/remove.  ``REPLACE_ONE``: one row exchanged; sums
    move twice as far, and Poisson amplification as used here does not apply.
    """

    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The promise (epsilon, delta).

    >>> Budget(epsilon=1.0, delta=1e-5)
    Budget(epsilon=1.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Check both numbers before anything is planned with them."""
        _validate.positive(epsilon=self.epsilon)
        _validate.open_unit(delta=self.delta)


def as_budget(
    budget: Budget | None, *, epsilon: float | None = None, delta: float | None = None
) -> Budget:
    """Return a budget given as one object or as its two numbers.

    >>> as_budget(None, epsilon=1.0, delta=1e-5)
    Budget(epsilon=1.0, delta=1e-05)
    """
    if budget is not None and not isinstance(budget, Budget):
        plain = isinstance(budget, int | float | str)
        raise ValueError(
            "Expected budget to be an armijo.Budget, got "
            f"{repr(budget) if plain else type(budget).__name__}; give "
            "Budget(epsilon=..., delta=...), or the numbers as epsilon= and delta=. "
            "Nothing was spent."
        )
    numbers = f"epsilon={epsilon!r} and delta={delta!r}"
    if budget is None:
        if epsilon is None or delta is None:
            raise ValueError(
                f"Expected a budget, or both epsilon and delta, got {numbers}; give "
                "Budget(epsilon=..., delta=...) or both numbers. Nothing was spent."
            )
        return Budget(epsilon=epsilon, delta=delta)
    if epsilon is not None or delta is not None:
        raise ValueError(
            f"Expected either a budget or epsilon and delta, got {budget} with "
            f"{numbers}; leave one of them out. Nothing was spent."
        )
    return budget


EXACT_SAMPLER = "exact, rounded to a public lattice"
LATTICE_SUMS = "exact sums of integers"


@dataclass(frozen=True, kw_only=True)
class Computed:
    """How the numbers of a run are computed, for its guarantee to name.

    Attributes
    ----------
    arithmetic : str
        How sums are taken.
    assumptions : tuple of str
        What is taken for granted, and how it was tested.
    uncovered : tuple of str
        Why the proof does not cover the arithmetic; it breaks the guarantee.
    """

    arithmetic: str = LATTICE_SUMS
    assumptions: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What may be said about a finished or running computation.

    Attributes
    ----------
    budget : Budget
        The preset promise.  It is what the run guarantees; a smaller "spent so far" is
        not a guarantee when the run chose its own stopping time.
    relation : Neighboring
        The neighboring relation that the proof uses.
    accountant : str
        Which accountant watched the run.
    broken_premises : tuple of str
        Reasons why the promise does *not* hold; empty for a sound run.
    sampler, arithmetic : str
        How noise is drawn and sums are taken, as far as the proof covers them.
    assumptions : tuple of str
        What the proof takes for granted; where a test on this machine did not refute
        it, the test is named.
    """

    budget: Budget
    relation: Neighboring
    accountant: str
    broken_premises: tuple[str, ...] = ()
    sampler: str = EXACT_SAMPLER
    arithmetic: str = LATTICE_SUMS
    assumptions: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether (epsilon, delta) is a guarantee at all."""
        return not self.broken_premises

    def sentence(self) -> str:
        """Say it in one plain sentence."""
        epsilon, delta = self.budget.epsilon, self.budget.delta
        if self.holds:
            return (
                f"({epsilon:g}, {delta:g})-differentially private under the "
                f"{self.relation.value} relation, accountant: {self.accountant}; "
                f"noise: {self.sampler}; sums: {self.arithmetic}{self._assumed()}."
            )
        return (
            f"NO GUARANTEE: labelled epsilon {epsilon:g} at delta {delta:g} is not a "
            f"valid differential privacy guarantee ({'; '.join(self.broken_premises)})."
        )

    def _assumed(self) -> str:
        """Name the assumptions, if there are any."""
        return f"; assumes: {'; '.join(self.assumptions)}" * bool(self.assumptions)

    def to_dict(self) -> dict[str, object]:
        """Return a JSON object for ledgers and reports."""
        return {
            **asdict(self.budget),
            "relation": self.relation.value,
            "accountant": self.accountant,
            "guarantee": self.holds,
            "broken_premises": list(self.broken_premises),
            "sampler": self.sampler,
            "arithmetic": self.arithmetic,
            "assumptions": list(self.assumptions),
        }


def rdp_to_epsilon(order: ArrayLike, rdp: ArrayLike, delta: float) -> FloatArray:
    """Convert Renyi divergence at an order to epsilon at ``delta``.

    ``epsilon = R + log(1 - 1/a) - (log(delta) + log(a)) / (a - 1)``, Canonne, Kamath
    and Steinke (2020), Proposition 12; never below zero.

    >>> float(rdp_to_epsilon(31, 0.5, 1e-8).round(12))
    0.966766628493
    """
    _validate.open_unit(delta=delta)
    a = np.asarray(order, dtype=float)
    slack = np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return np.maximum(np.asarray(rdp, dtype=float) + slack, 0.0)


def rdp_limit(order: ArrayLike, budget: Budget) -> FloatArray:
    """Return the largest Renyi divergence at ``order`` that still keeps the budget.

    The inverse of :func:`rdp_to_epsilon`; zero or negative where the order cannot be
    used for this budget.
    """
    a = np.asarray(order, dtype=float)
    return (
        budget.epsilon
        - np.log1p(-1 / a)
        + (math.log(budget.delta) + np.log(a)) / (a - 1)
    )


_LARGEST_ORDER = 2**40


def best_order(budget: Budget) -> int:
    """Return the integer order that affords most when costs are linear in the order.

    ``argmax rdp_limit(a) / a``, the choice of accounting rule for every setting whose
    noise multiplier is about 2 or more.  The optimum lies near
    ``2 log(1/delta) / epsilon``, so all integers up to twice that are tried, as far as
    doubles tell neighboring integers safely apart; below that epsilon of about 1e-11 a
    smaller order is as valid.

    >>> best_order(Budget(epsilon=1.0, delta=1e-8))
    31
    """
    reach = -4 * math.log(budget.delta) / budget.epsilon
    low, high = 2.0, float(max(64, math.ceil(min(reach, _LARGEST_ORDER))))
    while True:  # the ratio has one maximum: close in on it, whatever the reach
        orders = np.unique(np.rint(np.geomspace(low, high, 2048)))
        at = int(np.argmax(rdp_limit(orders, budget) / orders))
        if orders.size == high - low + 1:
            return int(orders[at])
        low, high = orders[max(at - 1, 0)], orders[min(at + 1, orders.size - 1)]


def order_grid(budget: Budget) -> NDArray[np.int64]:
    """Return integer orders from 2 to well past the best one, dense at first."""
    top = 4 * best_order(budget)
    sparse = np.geomspace(64, max(top, 65), 120)
    grid = np.concatenate([np.arange(2, 65), np.rint(sparse)])
    return np.unique(grid).astype(np.int64)


def between(orders: FloatArray, at: int) -> FloatArray:
    """Return the integers around one order of a grid (at most 64 of them)."""
    low, high = orders[max(at - 1, 0)], orders[min(at + 1, orders.size - 1)]
    return np.unique(np.rint(np.linspace(low, high, 64)))


def smallest_epsilon(curve: Callable[[FloatArray], FloatArray], delta: float) -> float:
    """Return epsilon of a Renyi curve at the best of all useful integer orders.

    Which orders are useful depends on the answer: the grid is moved to larger orders
    as long as that finds a much smaller epsilon, then refined around the best.
    """
    best, guess = math.inf, 1.0
    while guess >= 1e-4:
        orders = order_grid(Budget(epsilon=guess, delta=delta)).astype(float)
        epsilons = rdp_to_epsilon(orders, curve(orders), delta)
        best = min(best, float(np.min(epsilons)))
        if best > guess / 2:
            break
        guess = min(best, guess / 5)
    near = between(orders, int(np.argmin(epsilons)))
    return min(best, float(np.min(rdp_to_epsilon(near, curve(near), delta))))
