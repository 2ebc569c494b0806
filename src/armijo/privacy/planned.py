# SPDX-License-Identifier: Apache-2.0
"""The planned accountant: every charge is fixed in advance, so the bound is tighter.

When all mechanisms and their number are settled before the first row is read, ordinary
composition applies in any order of the charges, even one that is chosen during the run
(docs/proofs.md, "Planned charges in any order"), and for Gaussian and Laplace noise the
privacy loss distribution (PLD, through ``dp-accounting``) replaces the Renyi curve.
Several Gaussians on one batch are together one Gaussian: 1/sigma^2 adds up (adaptive
Gaussian-DP composition, Dong, Roth and Su 2022), and Poisson sampling amplifies that
one mechanism.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import PLDAccountant

from armijo import _validate
from armijo.errors import BudgetExceeded, UnchargedAccess
from armijo.privacy.accountant import Accountant, LedgerFactory
from armijo.privacy.analytic import gaussian_delta
from armijo.privacy.budget import (
    Budget,
    Computed,
    FloatArray,
    Neighboring,
    smallest_epsilon,
)
from armijo.privacy.mechanisms import (
    Gaussian,
    Mechanism,
    Profile,
    Repeated,
    describe,
    event_of,
    fold_gaussians,
    parts,
)
from armijo.privacy.subsampling import Subsampled

Plan = Sequence[tuple[Mechanism, int]]
ROUNDING = 1e-9
"""Share of epsilon that the search in a profile, to ten digits, may add."""

_SMALLEST_PLD, _LARGEST_PLD = 1e-3, 50.0  # beyond them its grid fills the memory


def _event(mechanism: Mechanism) -> dpa.DpEvent | None:
    """Translate to an event the PLD accountant knows; None if there is none."""
    if any(isinstance(part, Repeated) for part in parts(mechanism)):
        return None  # a plan counts equal charges; what is repeated inside has a curve
    event = event_of(mechanism)
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
    """Return what :func:`planned_epsilon` promises."""
    folded = _on_all_rows_as_one(merged(plan))
    profile = _own_profile(folded)
    by_profile = math.inf if profile is None else _profile_epsilon(profile, delta)
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
        inner: Mechanism | None = mechanism
        if isinstance(mechanism, Subsampled):
            inner = mechanism.inner if mechanism.rate == 1 else None
        folded = None if inner is None else fold_gaussians(inner)
        if isinstance(folded, Gaussian) and folded.noise_scale > 0:
            rho += count * folded.rho
        else:
            others.append((mechanism, count))
    return (*others, *([(Gaussian.from_rho(rho), 1)] if rho else []))


@dataclass(frozen=True)
class _GaussianProfile:
    """The exact profile of one Gaussian release."""

    noise_multiplier: float

    def delta_at(self, epsilon: float) -> float:
        """Return the exact delta at ``epsilon``."""
        return gaussian_delta(epsilon, self.noise_multiplier)


def _own_profile(folded: Plan) -> Profile | None:
    """Return the profile of a plan that is one release on all rows, if it has one."""
    if len(folded) != 1 or folded[0][1] != 1:
        return None
    mechanism = folded[0][0]
    if isinstance(mechanism, Subsampled) and mechanism.rate == 1:
        mechanism = mechanism.inner
    if isinstance(mechanism, Gaussian) and mechanism.noise_scale > 0:
        return _GaussianProfile(mechanism.noise_multiplier)
    return mechanism if isinstance(mechanism, Profile) else None


def _profile_keeps(plan: Plan, budget: Budget) -> bool:
    """Ask a profile at the budget itself: the epsilon solved for it is rounded up."""
    profile = _own_profile(_on_all_rows_as_one(merged(plan)))
    return profile is not None and profile.delta_at(budget.epsilon) <= budget.delta


def _profile_epsilon(mechanism: Profile, delta: float) -> float:
    """Return the smallest epsilon, to ten digits, whose delta is small enough."""
    high = 1e-6
    while mechanism.delta_at(high) > delta:
        high *= 2
        if high > 1e6:
            return math.inf
    low = high / 2
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        if mechanism.delta_at(middle) <= delta:
            high = middle
        else:
            low = middle
    return high


def reachable(budget: Budget) -> Budget:
    """Return the budget less what the search in a profile may add."""
    return Budget(epsilon=budget.epsilon * (1 - ROUNDING), delta=budget.delta)


def _rdp_epsilon(plan: Plan, delta: float) -> float:
    """Return epsilon by Renyi composition at the best order."""

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
        The preset promise.
    plan : sequence of (mechanism, count)
        All accesses.  A run may stop early; it may not do more, or anything else.
        Their order does not matter and may be chosen by what was released; an access
        that is left out only helps (docs/proofs.md).
    relation : Neighboring, default=ADD_REMOVE
        The neighboring relation.
    insecure_deterministic : bool, default=False
        Say so when randomness comes from a seed: the promise is then void.
    leaky_diagnostics : bool, default=False
        Say so when exact values are recorded beside the run: the promise is void.
    computed : Computed or None
        How numbers are computed, for the guarantee to name.
    ledger : callable or None
        Opens the ledger from the header; None keeps the charges in memory.

    Raises
    ------
    BudgetExceeded
        If the whole plan does not fit into the budget.
    """

    def __init__(
        self,
        budget: Budget,
        plan: Iterable[tuple[Mechanism, int]],
        *,
        relation: Neighboring = Neighboring.ADD_REMOVE,
        insecure_deterministic: bool = False,
        leaky_diagnostics: bool = False,
        computed: Computed | None = None,
        ledger: LedgerFactory | None = None,
    ) -> None:
        self.plan = tuple(plan)
        if not self.plan:
            raise ValueError("Expected a plan with at least one access, got none.")
        for _, count in self.plan:
            _validate.at_least(1, count=count)
        found, name = planned_epsilon(self.plan, budget.delta)
        if found > budget.epsilon and not _profile_keeps(self.plan, budget):
            raise BudgetExceeded(
                f"The plan costs epsilon {found:.6g} at delta {budget.delta:g}, the "
                f"budget is {budget.epsilon:g}; add noise, take fewer steps, or raise "
                "epsilon. Nothing was spent."
            )
        self.planned_epsilon = min(found, budget.epsilon)
        self._allowed = dict(merged(self.plan))
        self._used = dict.fromkeys(self._allowed, 0)
        super().__init__(
            budget,
            relation=relation,
            limits=np.array([float(sum(self._allowed.values()))]),
            name=name,
            insecure_deterministic=insecure_deterministic,
            leaky_diagnostics=leaky_diagnostics,
            computed=computed,
            ledger=ledger,
        )
        known = {_key(describe(kind)): kind for kind in self._allowed}
        for entry in self.ledger.charges:
            kind = known.get(_key(entry.mechanism))
            # What a torn line was for is not known: it counts against every kind.
            for used in self._allowed if kind is None else (kind,):
                self._used[used] += 1

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
        """Return one access of the plan."""
        if all(mechanism != planned for planned, _ in self.plan):
            raise UnchargedAccess(
                f"Asked to charge {mechanism!r}, which is not in the plan; plan it "
                "before the run, or use a privacy filter."
            )
        return np.ones(1)

    def _fits(self, total: FloatArray) -> bool:
        """Hold the number of accesses within the plan."""
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
