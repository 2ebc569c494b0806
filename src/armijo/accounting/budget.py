# SPDX-License-Identifier: Apache-2.0
"""What is guaranteed: a budget, the relation it protects, and why it may not hold."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from armijo import _validate

FloatArray = NDArray[np.float64]


class Neighboring(StrEnum):
    """Which two data sets an attacker may not tell apart.

    ``ADD_REMOVE``: one row more or less.  ``ZERO_OUT``: one row replaced by a row that
    contributes nothing, which makes the number of rows public by definition; sums have
    the same sensitivity as under add/remove.  ``REPLACE_ONE``: one row exchanged; sums
    have twice the sensitivity, and Poisson amplification as used here does not apply.
    """

    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The guarantee (epsilon, delta) to keep.

    >>> Budget(epsilon=1.0, delta=1e-5)
    Budget(epsilon=1.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
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


Unit = Literal["row", "person"]
"""What neighboring tables differ in."""


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
    unit : str
        What neighbors differ in: a row, or a person with all their rows.
    """

    arithmetic: str = LATTICE_SUMS
    assumptions: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()
    unit: Unit = "row"


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What may be said about a finished or running computation.

    Attributes
    ----------
    budget : Budget
        The preset guarantee, which is that of the run; a smaller "spent so far" is none
        when the run chose its own stopping time.
    relation : Neighboring
        The neighboring relation that the proof uses.
    accountant : str
        Which accountant watched the run.
    broken_premises : tuple of str
        Reasons why the guarantee does *not* hold; empty for a sound run.
    sampler, arithmetic : str
        How noise is drawn and sums are taken, as far as the proof covers them.
    assumptions : tuple of str
        What the proof takes for granted; where a test on this machine did not refute
        it, the test is named.
    unit : str
        What neighbors differ in: a row, or a person with all their rows.
    """

    budget: Budget
    relation: Neighboring
    accountant: str
    broken_premises: tuple[str, ...] = ()
    sampler: str = EXACT_SAMPLER
    arithmetic: str = LATTICE_SUMS
    assumptions: tuple[str, ...] = ()
    unit: Unit = "row"

    @property
    def holds(self) -> bool:
        """Whether (epsilon, delta) is a guarantee at all."""
        return not self.broken_premises

    def sentence(self) -> str:
        """Say it in one plain sentence."""
        epsilon, delta = self.budget.epsilon, self.budget.delta
        unit = "" if self.unit == "row" else f" (unit: a {self.unit}, with all rows)"
        assumed = f"; assumes: {'; '.join(self.assumptions)}" * bool(self.assumptions)
        if self.holds:
            return (
                f"({epsilon:g}, {delta:g})-differentially private under the "
                f"{self.relation.value} relation{unit}, accountant: {self.accountant}; "
                f"noise: {self.sampler}; sums: {self.arithmetic}{assumed}."
            )
        return (
            f"NO GUARANTEE: labelled epsilon {epsilon:g} at delta {delta:g} is not a "
            f"valid differential privacy guarantee ({'; '.join(self.broken_premises)})."
        )

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
            **({} if self.unit == "row" else {"unit": self.unit}),
        }
