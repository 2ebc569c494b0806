# SPDX-License-Identifier: Apache-2.0
"""The planned accountant: every charge is fixed in advance, so the bound is tighter.

When all mechanisms and their number are settled before the first row is read, ordinary
composition applies in any order of the charges, even one that is chosen during the run
(docs/proofs.md, "Planned charges in any order"), and for Gaussian noise the privacy
loss distribution (PLD, through ``dp-accounting``) replaces the Renyi curve.
Several Gaussians on one batch are together one Gaussian: 1/sigma^2 adds up (adaptive
Gaussian-DP composition, Dong, Roth and Su 2022), and Poisson sampling amplifies that
one mechanism.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Self, Unpack

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import PLDAccountant

from armijo import _validate
from armijo.accounting.accountant import Accountant, RunTerms
from armijo.accounting.budget import Budget, FloatArray
from armijo.accounting.conversion import smallest, smallest_epsilon
from armijo.accounting.ledger import MemoryLedger
from armijo.accounting.mechanisms import Gaussian, Mechanism, Repeated, describe, parts
from armijo.errors import BudgetExceeded, UnchargedAccess

Plan = Sequence[tuple[Mechanism, int]]
ROUNDING = 1e-9
"""Share of epsilon that the search in a profile, to ten digits, may add."""

_SMALLEST_PLD, _LARGEST_PLD = 1e-3, 50.0  # beyond them its grid fills the memory
_SMALLEST_PROFILE, _LARGEST_PROFILE = 5e-7, 5e5


def _event(mechanism: Mechanism) -> dpa.DpEvent | None:
    """Translate to an event the PLD accountant knows; None if there is none."""
    if any(isinstance(part, Repeated) for part in parts(mechanism)):
        return None  # a plan counts equal charges; what is repeated inside has a curve
    event = mechanism.dp_event()
    return event if event is not None and PLDAccountant().supports(event) else None


def planned_epsilon(
    plan: Plan, delta: float, *, coarseness: float = 1.0
) -> tuple[float, str]:
    """Return epsilon of a whole plan at ``delta`` and the name of what proves it.

    ``"planned-profile"`` for one release with its own profile of (epsilon, delta), as
    all Gaussians on all rows are together (Balle and Wang 2018, Theorem 8);
    ``"planned-pld"`` where every mechanism has a privacy loss distribution, else (and
    where epsilon is so small or large that the distribution would fill the memory)
    ``"planned-rdp"``: the sum of Renyi curves at the best order.  Losses are rounded
    up, so a larger ``coarseness`` is faster and looser but always valid.
    """
    _validate.open_unit(delta=delta)
    return _epsilon_of(tuple(plan), delta, coarseness)


# Repeated fits of one table, or of one plan's folds, ask for the same number again.
@lru_cache(maxsize=256)
def _epsilon_of(
    plan: tuple[tuple[Mechanism, int], ...], delta: float, coarseness: float
) -> tuple[float, str]:
    folded = _on_all_rows_as_one(merged(plan))
    by_profile = _profile_epsilon(folded, delta)
    if by_profile < math.inf:
        return by_profile, "planned-profile"
    by_rdp = _rdp_epsilon(folded, delta)
    events = [_event(mechanism) for mechanism, _ in folded]
    if None in events or not _SMALLEST_PLD < by_rdp < _LARGEST_PLD:
        return by_rdp, "planned-rdp"
    # In proportion to epsilon, so that rounding the loss up stays below 0.1 % of it.
    width = coarseness * min(1e-4, max(by_rdp * 1e-4, 1e-7))
    accountant = PLDAccountant(value_discretization_interval=width)
    try:
        for event, (_, count) in zip(events, folded, strict=True):
            accountant.compose(event, count)
        return min(float(accountant.get_epsilon(delta)), by_rdp), "planned-pld"
    except (OverflowError, MemoryError):  # noise or steps beyond its grid
        return by_rdp, "planned-rdp"


def merged(plan: Plan) -> Plan:
    """Count equal charges together: a composition does not depend on the order."""
    counts: dict[Mechanism, int] = {}
    for mechanism, count in plan:
        counts[mechanism] = counts.get(mechanism, 0) + count
    return tuple(counts.items())


def _on_all_rows_as_one(plan: Plan) -> Plan:
    """Count all Gaussians on all rows as the one that they are together."""
    rho, others = 0.0, []
    for mechanism, count in plan:
        gaussian = mechanism.as_gaussian()
        if gaussian is not None and gaussian.noise_scale > 0:
            rho += count * gaussian.rho
        else:
            others.append((mechanism, count))
    return (*others, *([(Gaussian.from_rho(rho), 1)] if rho else []))


def _delta_at(folded: Plan, epsilon: float) -> float:
    """Return delta by the own proof of a plan that is a single release, else one."""
    if len(folded) != 1 or folded[0][1] != 1:
        return 1.0
    return folded[0][0].delta_at(epsilon)


def _profile_epsilon(folded: Plan, delta: float) -> float:
    """Return the smallest epsilon, to ten digits, whose delta is small enough."""
    if _delta_at(folded, _LARGEST_PROFILE) > delta:
        return math.inf

    def keeps(epsilon: float) -> bool:
        return epsilon > _SMALLEST_PROFILE and _delta_at(folded, epsilon) <= delta

    start, rtol = 2 * _SMALLEST_PROFILE, ROUNDING / 10
    return smallest(keeps, start, rtol, arithmetic=True)


def reachable(budget: Budget) -> Budget:
    """Return the budget less what the search in a profile may add."""
    return Budget(epsilon=budget.epsilon * (1 - ROUNDING), delta=budget.delta)


def _rdp_epsilon(plan: Plan, delta: float) -> float:
    def total(orders: FloatArray) -> FloatArray:
        return np.asarray(
            np.sum([count * mechanism.rdp(orders) for mechanism, count in plan], axis=0)
        )

    return smallest_epsilon(total, delta)


def _key(description: Mapping[str, object]) -> str:
    """Return a description as text that does not depend on the order of its keys."""
    return json.dumps(description, sort_keys=True)


class PlannedAccountant(Accountant):
    """Accountant for runs whose every charge is fixed before the first.

    Parameters
    ----------
    budget : Budget
        The preset guarantee.
    plan : sequence of (mechanism, count)
        All accesses.  A run may stop early; it may not do more, or anything else.
        Their order does not matter and may be chosen by what was released; an access
        that is left out only helps (docs/proofs.md).
    **terms
        The terms of the run, as for :class:`armijo.accounting.accountant.Accountant`.

    Raises
    ------
    BudgetExceeded
        If the whole plan does not fit into the budget.
    """

    def __init__(
        self,
        budget: Budget,
        plan: Iterable[tuple[Mechanism, int]],
        **terms: Unpack[RunTerms],
    ) -> None:
        self.plan = tuple(plan)
        if not self.plan:
            raise ValueError("Expected a plan with at least one access, got none.")
        for _, count in self.plan:
            _validate.at_least(1, count=count)
        found, name = planned_epsilon(self.plan, budget.delta)
        folded = _on_all_rows_as_one(merged(self.plan))
        # A profile is asked at the budget itself: the epsilon solved is rounded up.
        if found > budget.epsilon and _delta_at(folded, budget.epsilon) > budget.delta:
            raise BudgetExceeded(
                f"The plan costs epsilon {found:.6g} at delta {budget.delta:g}, the "
                f"budget is {budget.epsilon:g}; add noise, take fewer steps, or raise "
                "epsilon. Nothing was spent."
            )
        self.planned_epsilon = min(found, budget.epsilon)
        self._allowed = dict(merged(self.plan))
        self._used = dict.fromkeys(self._allowed, 0)
        limits = np.array([float(sum(self._allowed.values()))])
        super().__init__(budget, limits=limits, name=name, **terms)

    def attach(self, ledger: MemoryLedger) -> Self:
        """Go on in an opened ledger, whose charges count by kind."""
        super().attach(ledger)
        known = {_key(describe(kind)): kind for kind in self._allowed}
        for entry in ledger.charges:
            kind = known.get(_key(entry.mechanism))
            # What is not in the plan counts against every kind.
            for used in self._allowed if kind is None else (kind,):
                self._used[used] += 1
        return self

    def epsilon_spent(self) -> float:
        """Return the epsilon of the whole plan times the share that was done."""
        return self.planned_epsilon * float(self.spent[0] / self.limits[0])

    def header(self) -> dict[str, object]:
        """Add the plan to the ledger's first line: another one is another run."""
        plan = [[describe(mechanism), count] for mechanism, count in self.plan]
        return {**super().header(), "plan": plan}

    def affords(self, mechanism: Mechanism) -> bool:
        """Say whether the plan has such an access left."""
        self.cost(mechanism)
        return self._used[mechanism] < self._allowed[mechanism]

    def _cost(self, mechanism: Mechanism) -> FloatArray:
        if all(mechanism != planned for planned, _ in self.plan):
            raise UnchargedAccess(
                f"Asked to charge {mechanism!r}, which is not in the plan; plan it "
                "before the run, or use a privacy filter."
            )
        return np.ones(1)

    def _fits(self, total: FloatArray) -> bool:
        return bool(total[0] <= self.limits[0])

    def charge(
        self, mechanism: Mechanism, *, label: str = "", batch: int | None = None
    ) -> int:
        """Tick off an access of the plan; see :meth:`Accountant.charge`."""
        self.refuse_in_child()
        with self._turns:
            if not self.affords(mechanism):
                raise BudgetExceeded(
                    f"All {self._allowed[mechanism]} planned accesses of "
                    f"{mechanism!r} are used; stop here. Nothing was spent by this "
                    "request."
                )
            index = super().charge(mechanism, label=label, batch=batch)
            self._used[mechanism] += 1
        return index
