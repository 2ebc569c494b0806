# SPDX-License-Identifier: Apache-2.0
"""What every method is: public settings that become an algorithm for a problem."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from armijo.methods.base import Method
from armijo.objectives.linear import LinearObjective
from armijo.privacy.budget import Budget, Neighboring


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The public facts a method is built from: no row is among them."""

    budget: Budget
    objective: LinearObjective
    n_rows: int


@dataclass(frozen=True, kw_only=True)
class MethodSettings(ABC):
    """Settings of one method; the fields are the parameters it takes.

    Attributes
    ----------
    multi_class : bool
        Whether it takes more than two classes.
    smooth : bool
        Whether it needs a smooth loss; the hinge is then replaced by its Huberized
        form.
    private : bool
        Whether it gives a guarantee at all.
    """

    multi_class: ClassVar[bool] = True
    smooth: ClassVar[bool] = False
    private: ClassVar[bool] = True

    @property
    def relation(self) -> Neighboring | None:
        """The relation of its proof; None where one row more or less is what counts."""
        return None

    @property
    def row_bound(self) -> float | None:
        """The norm to which rows are clipped in training, hence also to predict."""
        return None

    @abstractmethod
    def build(self, problem: Problem) -> Method[Any]:
        """Return the algorithm with its noise and budgets."""
