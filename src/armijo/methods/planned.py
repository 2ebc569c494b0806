# SPDX-License-Identifier: Apache-2.0
"""Automatic methods: releases that are all planned beforehand, as one Gaussian.

A method with nothing to set first pays for what makes its coordinates (norms or counts,
a mean, second moments), then for the steps of :mod:`armijo.methods.descent`.  All
releases are on all rows and Gaussian, and public numbers alone decide their number and
noise: together they are one Gaussian mechanism (Dong, Roth and Su 2022).  Presets of it
are :mod:`armijo.methods.auto` for rows of numbers, :mod:`armijo.methods.additive` for
tables as they come, and :mod:`armijo.methods.whitened` for many features of norm one.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

from torch import Tensor

from armijo.accounting.budget import Budget
from armijo.accounting.mechanisms import Gaussian
from armijo.data.gate import BatchPlan, refuse_unsampleable
from armijo.methods.base import (
    SOLVED,
    Method,
    Problem,
    Schedule,
    State,
    T,
    calibrated,
    schedule_of,
    solved,
    with_solved_noise,
)


class Batch(NamedTuple):
    """What one batch is for: its kind, the phase, and the number within the phase.

    A batch of the kind ``"step"`` releases a gradient and, unless searches have no
    share, loss drops.
    """

    kind: str
    phase: int = 0
    update: int = 0


class PlannedState(State, Protocol):
    """A state that counts its batches."""

    @property
    def batches(self) -> int:
        """How many batches were used."""


P = TypeVar("P", bound=PlannedState)


@dataclass(frozen=True, kw_only=True)
class Planned(Method[P]):
    """A method whose batches and releases are fixed by public numbers.

    Attributes
    ----------
    noise_multiplier, problem : float or None, Problem or None
        Noise of the whole run, and what it was calibrated for.
    """

    only_sums: ClassVar[bool] = True

    noise_multiplier: float | None = solved()
    problem: Problem | None = solved()
    _known: dict[str, Any] = field(
        default_factory=dict, repr=False, compare=False, metadata={SOLVED: True}
    )

    @property
    @abstractmethod
    def batches(self) -> tuple[Batch, ...]:
        """What all batches are for, in their order."""

    @abstractmethod
    def _mechanisms(self, batch: Batch) -> tuple[Gaussian, ...]:
        """Return the releases of a batch."""

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the noise for the budget."""
        method = with_solved_noise(replace(self, problem=problem, _known={}), budget)
        for plan in method.plans():
            refuse_unsampleable(plan)
        return method

    @property
    def _noise(self) -> float:
        return calibrated(noise_multiplier=self.noise_multiplier)

    @property
    def _n_rows(self) -> int:
        return calibrated(problem=self.problem).n_rows

    def schedule(self) -> Schedule:
        """Return all batches in their order."""
        return schedule_of(self.plans())

    def plans(self) -> Iterator[BatchPlan]:
        """Yield the plans of all batches in their order."""
        return (BatchPlan(mechanisms=self._mechanisms(batch)) for batch in self.batches)

    def plan(self, state: P) -> BatchPlan:
        """Name the releases of the next batch; past the end, one that is refused."""
        batch = self.batches[min(state.batches, len(self.batches) - 1)]
        return BatchPlan(mechanisms=self._mechanisms(batch))

    def releases(self) -> list[dict[str, Any]]:
        """Return name, number, L2 sensitivity and share of the releases, in order."""
        found: dict[str, dict[str, Any]] = {}
        phases = 1 + max(batch.phase for batch in self.batches)
        for batch in self.batches:
            names: tuple[str, ...] = (batch.kind,)
            if batch.kind == "step":
                names = ("gradients", "loss drops")
            if phases > 1 and batch.kind in ("step", "moments"):
                names = tuple(f"{name}, phase {batch.phase + 1}" for name in names)
            for place, used in enumerate(self._mechanisms(batch)):
                name = names[min(place, len(names) - 1)]
                start = {"release": name, "number": 0, "sensitivity": 0.0, "share": 0.0}
                entry = found.setdefault(name, start)
                entry["number"] += 1
                entry["sensitivity"] = max(entry["sensitivity"], used.sensitivity)
                entry["share"] += (self._noise / used.noise_multiplier) ** 2
        return list(found.values())

    def _following(
        self, name: str, release: Tensor | None, compute: Callable[[], T]
    ) -> T:
        """Return what follows from a release, computed once for this one.

        The release is compared as an object: a method may serve several runs.
        """
        held = self._known.get(name)
        if held is None or held[0] is not release:
            held = self._known[name] = (release, compute())
        found: T = held[1]
        return found


def tail_mean(
    total: Tensor | None, point: Tensor, counted: int
) -> tuple[Tensor | None, Tensor]:
    """Return sum and mean of the last iterates, of which ``point`` is the newest.

    ``counted`` is how many of them are in the mean; before the first one the iterate
    itself takes its place.
    """
    if counted <= 0:
        return total, point
    total = point if total is None else total + point
    return total, total / counted
