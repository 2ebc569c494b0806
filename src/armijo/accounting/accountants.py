# SPDX-License-Identifier: Apache-2.0
"""The accountants: test a charge, write it down, count it, in this order.

An accountant has one or more *limits* and a running sum against each.  A charge is
refused or taken whole; when it is taken, its line stands in the ledger (flushed and
synced) before the caller may touch a row.  Threads may share an accountant: they charge
one after the other.  :class:`PrivacyFilter` watches runs that decide while they run,
:class:`PlannedAccountant` those whose every charge is fixed in advance, which proves
more; :class:`PrivacyStatement` is what a run says in the end.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict, Unpack

import numpy as np

from armijo import _validate
from armijo.accounting.budget import (
    Budget,
    Computed,
    FloatArray,
    Guarantee,
    Neighboring,
)
from armijo.accounting.calibration import (
    best_order,
    delta_at,
    merged,
    on_all_rows_as_one,
    planned_epsilon,
    rdp_limit,
)
from armijo.accounting.ledger import (
    Charge,
    Ledger,
    MemoryLedger,
    OneOwner,
    refuse_other_header,
)
from armijo.accounting.mechanisms import (
    Mechanism,
    describe,
    description_key,
    parts,
)
from armijo.errors import BudgetExceeded, LedgerError, UnchargedAccess

SEEDED = "noise and batches were drawn from a seed, so whoever knows it knows them"
"""Broken assumption of a run with ``insecure_deterministic=True``."""

LEAKY = "exact values of the private rows were recorded (leaky_diagnostics)"
"""Broken assumption of a run with ``leaky_diagnostics=True``."""

NOT_PRIVATE = "the method reads the rows without any noise: not private"
"""Broken assumption of every run with this accountant."""


class RunTerms(TypedDict, total=False):
    """The terms of a run that every kind of accountant takes and passes on."""

    relation: Neighboring
    insecure_deterministic: bool
    leaky_diagnostics: bool
    computed: Computed | None


class Accountant(OneOwner, ABC):
    """Base of the filter, the planned and the reproduction accountant.

    It cannot be copied and refuses to charge in a forked child, which would have the
    rest of the budget a second time.

    Parameters
    ----------
    budget : Budget
        The preset guarantee.
    limits : array
        The most that each running sum may reach.
    name : str
        How reports call this accountant.
    broken_premises : tuple of str
        Why the guarantee does not hold; empty for sound accounting.
    relation : Neighboring, default=ADD_REMOVE
        The neighboring relation of the run.
    insecure_deterministic : bool, default=False
        Whether randomness comes from a seed, which voids the guarantee.
    leaky_diagnostics : bool, default=False
        Whether exact values are recorded beside the run, which voids it too.
    computed : Computed or None
        How numbers are computed; None is by the gate's own exact sums.

    Examples
    --------
    Charges are kept in memory until a ledger is attached::

        accountant = PrivacyFilter(budget)
        accountant.attach(Ledger.open(path, header=accountant.header()))
    """

    def __init__(
        self,
        budget: Budget,
        *,
        limits: FloatArray,
        name: str,
        broken_premises: tuple[str, ...] = (),
        relation: Neighboring = Neighboring.ADD_REMOVE,
        insecure_deterministic: bool = False,
        leaky_diagnostics: bool = False,
        computed: Computed | None = None,
    ) -> None:
        super().__init__()
        computed = computed or Computed()
        self.guarantee = Guarantee(
            budget=budget,
            relation=relation,
            accountant=name,
            broken_premises=(
                *broken_premises,
                *(SEEDED,) * insecure_deterministic,
                *(LEAKY,) * leaky_diagnostics,
                *computed.uncovered,
            ),
            arithmetic=computed.arithmetic,
            assumptions=computed.assumptions,
            unit=computed.unit,
        )
        self._limits = np.array(limits, dtype=float)
        self._limits.setflags(write=False)
        self._costs: dict[Mechanism, FloatArray] = {}
        self._descriptions: dict[Mechanism, dict[str, object]] = {}
        self._turns = threading.RLock()
        self.ledger = MemoryLedger()

    def __repr__(self) -> str:
        relation = self.guarantee.relation.value
        return (
            f"{type(self).__name__}({self.budget}, relation={relation!r}, "
            f"charges={self.n_charges}, epsilon_spent={self.epsilon_spent():g})"
        )

    @property
    def budget(self) -> Budget:
        """The preset guarantee."""
        return self.guarantee.budget

    @property
    def limits(self) -> FloatArray:
        """The most that each running sum may reach; fixed at construction."""
        return self._limits

    @property
    def spent(self) -> FloatArray:
        """The running sum against each limit, exactly rounded by the ledger."""
        return np.array(self.ledger.spent or np.zeros(len(self._limits)))

    @property
    def n_charges(self) -> int:
        """How many accesses were paid for."""
        return self.ledger.next_index

    def header(self) -> dict[str, object]:
        """Return what identifies this accountant in a ledger's first line."""
        return {**self.guarantee.to_dict(), "limits": self._limits.tolist()}

    @abstractmethod
    def _cost(self, mechanism: Mechanism) -> FloatArray:
        """Return the cost of one access against each limit."""

    def _fits(self, total: FloatArray) -> bool:
        """Say whether running sums of ``total`` keep the guarantee: one limit does."""
        return bool(np.any(total <= self._limits))

    def epsilon_spent(self) -> float:
        """Return epsilon times the used share of the (best) limit.

        It rises from zero to the preset epsilon, where the run must end.  It measures
        progress and is not a guarantee: that is the preset, whatever was used of it.
        """
        return self.budget.epsilon * float(np.min(self.spent / self._limits))

    def cost(self, mechanism: Mechanism) -> FloatArray:
        """Return the cost of one access, cached: an unchanged plan is looked up."""
        cost = self._costs.get(mechanism)
        if cost is None:
            self._refuse_exchange(mechanism)
            cost = self._cost(mechanism)
            if np.any(np.isnan(cost)) or np.any(cost < 0) or not np.any(cost > 0):
                raise ValueError(
                    f"Expected a positive cost for {mechanism!r}, got {cost.tolist()}; "
                    "an access that costs nothing could be repeated without end."
                )
            cost.setflags(write=False)
            # The cost comes last: another thread that finds it uses both.
            self._descriptions[mechanism] = describe(mechanism)
            self._costs[mechanism] = cost
        return cost

    def _refuse_exchange(self, mechanism: Mechanism) -> None:
        """Refuse under replace-one what is proved for one row more or less only."""
        exchange = self.guarantee.relation is Neighboring.REPLACE_ONE
        if exchange and any(part.add_remove_only for part in parts(mechanism)):
            raise ValueError(
                "Expected the add-remove or zero-out relation, got replace-one with "
                f"{mechanism!r}; Poisson amplification and AboveThreshold are proved "
                "for one row more or less. Use all rows (sampling_prob 1) and no "
                "search. Nothing was spent."
            )

    def affords(self, mechanism: Mechanism) -> bool:
        """Say whether :meth:`charge` would accept, from the same number."""
        return self._fits(self.spent + self.cost(mechanism))

    def remaining(self) -> FloatArray:
        """Return what is left of each limit (zero where it is exhausted)."""
        return np.maximum(self._limits - self.spent, 0.0)

    def charge(
        self, mechanism: Mechanism, *, label: str = "", batch: int | None = None
    ) -> int:
        """Pay for one access before it happens; all or nothing.

        Parameters
        ----------
        mechanism : Mechanism
            Everything that will be done on one batch, amplified as a whole.
        label : str
            What the ledger calls it.
        batch : int or None
            The batch this pays for; each number is accepted once, in order, so that
            one batch cannot be paid in two separately amplified parts.

        Returns
        -------
        int
            The number of the batch that was paid.

        Raises
        ------
        BudgetExceeded
            If it does not fit; nothing was spent.
        UnchargedAccess
            If the batch was charged before.
        """
        self.refuse_in_child()
        cost = self.cost(mechanism)  # before the turn: a new curve may take seconds
        # No other thread may charge between the test of the sums and their change.
        with self._turns:
            index = self.ledger.next_index
            if batch is not None and batch != index:
                raise UnchargedAccess(
                    f"Asked to charge batch {batch}, but the next batch to pay for is "
                    f"{index}; everything done on one batch is one charge, made once."
                )
            self._admit(mechanism)
            described, costs = self._descriptions[mechanism], tuple(cost.tolist())
            self.ledger.append(Charge(index, label, described, costs))
        return index

    def _admit(self, mechanism: Mechanism) -> None:
        """Refuse what does not fit: say what was asked, what is left, what to do."""
        total = self.spent + self.cost(mechanism)
        if not self._fits(total):
            share = np.min(total / self._limits)
            raise BudgetExceeded(
                f"Charge {self.n_charges} ({type(mechanism).__name__}) would bring the "
                f"run to {share:.4g} times what epsilon {self.budget.epsilon:g} at "
                f"delta {self.budget.delta:g} allows; stop here, add noise, or start "
                "with a larger budget. Nothing was spent by this request."
            )

    def attach(self, ledger: MemoryLedger) -> Self:
        """Go on in an opened ledger: count its charges, and write all further ones.

        Parameters
        ----------
        ledger : MemoryLedger or Ledger
            A file's header holds :meth:`header`, and may hold more.

        Raises
        ------
        LedgerError
            It was begun by another accountant, or this one has charged already.
            Nothing was spent.
        """
        self.refuse_in_child()
        if self.n_charges or isinstance(self.ledger, Ledger):
            raise LedgerError(
                f"This {type(self).__name__} has a ledger with {self.n_charges} "
                "charges and cannot go on in another one; nothing was spent. Make a "
                "new accountant for each ledger."
            )
        if isinstance(ledger, Ledger):
            header = self.header()
            stored = {key: ledger.header[key] for key in header if key in ledger.header}
            refuse_other_header(ledger.path, stored, header)
        if ledger.spent and len(ledger.spent) != len(self._limits):
            raise LedgerError(
                f"The ledger has {len(ledger.spent)} running sums, expected "
                f"{len(self._limits)}; it belongs to another accountant. Give its own "
                "settings, or another path."
            )
        self.ledger = ledger
        return self


class PrivacyFilter(Accountant):
    """Accountant for runs that decide while they run.

    Parameters
    ----------
    budget : Budget
        The preset guarantee, which is also what gets reported.
    order : int or None
        The Renyi order, fixed for the life of the filter; None picks
        :func:`armijo.accounting.calibration.best_order`.
    **terms
        The terms of the run, as for :class:`armijo.accounting.accountants.Accountant`.

    Examples
    --------
    >>> from armijo.accounting.mechanisms import Gaussian
    >>> watch = PrivacyFilter(Budget(epsilon=1.0, delta=1e-8))
    >>> watch.charge(Gaussian.from_rho(0.01), label="first")
    0
    >>> watch.affords(Gaussian.from_rho(0.01))
    False
    """

    def __init__(
        self, budget: Budget, *, order: int | None = None, **terms: Unpack[RunTerms]
    ) -> None:
        order = best_order(budget) if order is None else order
        _validate.at_least(2, order=order)
        limit = float(rdp_limit(order, budget))
        if limit <= 0:
            raise ValueError(
                f"Expected an order that can prove epsilon {budget.epsilon:g} at delta "
                f"{budget.delta:g}, got {order}; the conversion alone costs more. "
                f"Order {best_order(budget)} would do."
            )
        self._order = order
        super().__init__(budget, limits=np.array([limit]), name="filter-rdp", **terms)

    @property
    def order(self) -> int:
        """The order in use; it never changes."""
        return self._order

    def header(self) -> dict[str, object]:
        """Add the order to the ledger's first line."""
        return {**super().header(), "orders": [float(self._order)]}

    def _cost(self, mechanism: Mechanism) -> FloatArray:
        return np.asarray(mechanism.rdp(np.array([float(self._order)])), dtype=float)

    def _fits(self, total: FloatArray) -> bool:
        # With room for the rounding of "sum plus cost": the exact sum keeps it too.
        return bool(total[0] * (1 + 1e-12) <= self.limits[0])


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
        The terms of the run, as for :class:`armijo.accounting.accountants.Accountant`.

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
        folded = on_all_rows_as_one(merged(self.plan))
        # A profile is asked at the budget itself: the epsilon solved is rounded up.
        if found > budget.epsilon and delta_at(folded, budget.epsilon) > budget.delta:
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
        known = {description_key(describe(kind)): kind for kind in self._allowed}
        for entry in ledger.charges:
            kind = known.get(description_key(entry.mechanism))
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

    def _admit(self, mechanism: Mechanism) -> None:
        if not self.affords(mechanism):
            raise BudgetExceeded(
                f"All {self._allowed[mechanism]} planned accesses of {mechanism!r} are "
                "used; stop here. Nothing was spent by this request."
            )
        super()._admit(mechanism)
        # First: an interrupt behind the durable write must not leave it uncounted.
        self._used[mechanism] += 1


class NonPrivateAccountant(Accountant):
    """Accountant of a run that guarantees nothing; its label says so.

    It allows ``accesses`` accesses, each of which costs one; the terms of the run are
    those of :class:`armijo.accounting.accountants.Accountant`.
    """

    def __init__(
        self, budget: Budget, *, accesses: int = 1, **terms: Unpack[RunTerms]
    ) -> None:
        super().__init__(
            budget,
            limits=np.array([float(accesses)]),
            name="none",
            broken_premises=(NOT_PRIVATE,),
            **terms,
        )

    def _cost(self, mechanism: Mechanism) -> FloatArray:
        return np.ones(1)


@dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of a run and the charges behind it.

    Attributes
    ----------
    guarantee : Guarantee
        The preset guarantee, its relation, its accountant, and why it does not hold if
        it does not.
    epsilon_spent : float
        Used share of the budget, times epsilon: how far the run went.
    ledger : tuple of Charge
        Every charge in order.
    ledger_path : str or None
        The file behind it, if there is one.
    ledger_run, ledger_head : str or None
        Name of that file's run and the checksum of its last charge by then, so that a
        file that was cut is noticed.
    """

    guarantee: Guarantee
    epsilon_spent: float
    ledger: tuple[Charge, ...]
    ledger_path: str | None
    ledger_run: str | None = None
    ledger_head: str | None = None

    @classmethod
    def of(cls, accountant: Accountant) -> "PrivacyStatement":
        """Copy what an accountant knows, without its ledger's lock."""
        ledger = accountant.ledger
        spent, charges = accountant.epsilon_spent(), tuple(ledger.charges)
        if not isinstance(ledger, Ledger):
            return cls(accountant.guarantee, spent, charges, None)
        run, head = str(ledger.header["run"]), ledger.head
        return cls(accountant.guarantee, spent, charges, ledger.path, run, head)

    def assuming(self, assumption: str) -> "PrivacyStatement":
        """Return the statement with one more assumption in its guarantee."""
        assumed = (*self.guarantee.assumptions, assumption)
        return replace(self, guarantee=replace(self.guarantee, assumptions=assumed))

    @property
    def budget(self) -> Budget:
        """The preset (epsilon, delta)."""
        return self.guarantee.budget

    @property
    def epsilon(self) -> float:
        """Epsilon of the guarantee: the preset one, whatever was used of it."""
        return self.budget.epsilon

    @property
    def delta(self) -> float:
        """Delta of the guarantee."""
        return self.budget.delta

    @property
    def relation(self) -> Neighboring:
        """The neighboring relation."""
        return self.guarantee.relation

    @property
    def accountant(self) -> str:
        """Which accountant watched the run."""
        return self.guarantee.accountant

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object, the charges counted and not listed."""
        end = {"ledger_run": self.ledger_run, "ledger_head": self.ledger_head}
        return {
            **self.guarantee.to_dict(),
            "statement": self.guarantee.sentence(),
            "epsilon_spent": self.epsilon_spent,
            "n_charges": len(self.ledger),
            **({} if self.ledger_path is None else end),
        }

    def __repr__(self) -> str:
        broken = "" if self.guarantee.holds else ", NO GUARANTEE"
        return (
            f"PrivacyStatement(epsilon={self.epsilon:g}, delta={self.delta:g}, "
            f"relation={self.relation.value!r}, accountant={self.accountant!r}, "
            f"epsilon_spent={self.epsilon_spent:g}, charges={len(self.ledger)}{broken})"
        )

    def __str__(self) -> str:
        return self.guarantee.sentence()
