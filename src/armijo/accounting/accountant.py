# SPDX-License-Identifier: Apache-2.0
"""What every accountant does: test a charge, write it down, count it, in this order.

An accountant has one or more *limits* and a running sum against each.  A charge is
refused or taken whole; when it is taken, its line stands in the ledger (flushed and
synced) before the caller may touch a row.  Threads may share an accountant: they charge
one after the other.
"""

import os
import threading
from abc import ABC, abstractmethod
from typing import Self, TypedDict

import numpy as np

from armijo.accounting.budget import (
    Budget,
    Computed,
    FloatArray,
    Guarantee,
    Neighboring,
)
from armijo.accounting.ledger import (
    Charge,
    Ledger,
    MemoryLedger,
    OneOwner,
    refuse_other_header,
)
from armijo.accounting.mechanisms import Mechanism, describe, parts
from armijo.accounting.subsampling import Subsampled
from armijo.errors import BudgetExceeded, LedgerError, UnchargedAccess

SEEDED = "noise and batches were drawn from a seed, so whoever knows it knows them"
"""Broken premise of a run with ``insecure_deterministic=True``."""

LEAKY = "exact values of the private rows were recorded (leaky_diagnostics)"
"""Broken premise of a run with ``leaky_diagnostics=True``."""


class RunTerms(TypedDict, total=False):
    """The terms of a run that every kind of accountant takes and passes on."""

    relation: Neighboring
    insecure_deterministic: bool
    leaky_diagnostics: bool
    computed: Computed | None


class Accountant(OneOwner, ABC):
    """Base of the filter, the planned and the reproduction accountant.

    It cannot be copied and refuses to charge in a forked child, which would have the
    rest of the budget a second time; :meth:`unused` makes another one.

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
        )
        self._limits = np.array(limits, dtype=float)
        self._limits.setflags(write=False)
        self._costs: dict[Mechanism, FloatArray] = {}
        self._descriptions: dict[Mechanism, dict[str, object]] = {}
        self._turns = threading.RLock()
        self.ledger = MemoryLedger()

    def __repr__(self) -> str:
        """Name the guarantee and the number of charges."""
        own = self.guarantee
        return (
            f"{type(self).__name__}({own.budget}, relation={own.relation.value!r}, "
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

    @abstractmethod
    def _fits(self, total: FloatArray) -> bool:
        """Say whether running sums of ``total`` keep the guarantee."""

    def epsilon_spent(self) -> float:
        """Return epsilon times the used share of the (best) limit.

        It rises from zero to the preset epsilon, where the run must end.  It measures
        progress and is not a guarantee: that is the preset, whatever was used of it.
        """
        return self.budget.epsilon * float(np.min(self.spent / self._limits))

    def cost(self, mechanism: Mechanism) -> FloatArray:
        """Return the cost of one access, cached: an unchanged plan is looked up."""
        found = self._costs.get(mechanism)
        if found is None:
            self._refuse_amplified_exchange(mechanism)
            found = self._checked(mechanism, self._cost(mechanism))
            found.setflags(write=False)
            # The cost comes last: another thread that finds it uses both.
            self._descriptions[mechanism] = describe(mechanism)
            self._costs[mechanism] = found
        return found

    def _refuse_amplified_exchange(self, mechanism: Mechanism) -> None:
        """Refuse to amplify under replace-one, where the formula does not hold."""
        if self.guarantee.relation is not Neighboring.REPLACE_ONE:
            return
        if any(
            isinstance(part, Subsampled) and part.sampling_prob < 1
            for part in parts(mechanism)
        ):
            raise ValueError(
                f"Expected sampling_prob 1 under the replace-one relation, got "
                f"{mechanism!r}; "
                "Poisson amplification is proved for one row more or less."
            )

    def _checked(self, mechanism: Mechanism, cost: FloatArray) -> FloatArray:
        """Refuse a cost that is no number, negative, or free on every limit."""
        if np.any(np.isnan(cost)) or np.any(cost < 0) or not np.any(cost > 0):
            raise ValueError(
                f"Expected a positive cost for {mechanism!r}, got {cost.tolist()}; an "
                "access that costs nothing could be repeated without end."
            )
        return cost

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
            if not self._fits(self.spent + cost):
                raise BudgetExceeded(self._refusal(mechanism, cost))
            entry = Charge(
                index=index,
                label=label,
                mechanism=self._descriptions[mechanism],
                cost=tuple(cost.tolist()),
            )
            self.ledger.append(entry)
        return index

    def unused(self) -> Self:
        """Return an accountant of the same settings, for a run with its own budget.

        Finding the cost of a plan again may take seconds.  Only one that has charged
        nothing, and writes no file, can be the model of another.
        """
        paid = self.ledger.next_index
        if paid or type(self.ledger) is not MemoryLedger:
            raise ValueError(
                f"Expected an accountant without charges and without a file, got "
                f"{paid} charges in a {type(self.ledger).__name__}; make a "
                "new one for another run."
            )
        other = object.__new__(type(self))
        kept = {
            name: dict(value) if isinstance(value, dict) else value
            for name, value in vars(self).items()
        }
        vars(other).update(
            kept,
            ledger=MemoryLedger(),
            _turns=threading.RLock(),
            _process=os.getpid(),
        )
        return other

    def _refusal(self, mechanism: Mechanism, cost: FloatArray) -> str:
        """Say what was asked, what is left and what to do."""
        share = np.min((self.spent + cost) / self._limits)
        return (
            f"Charge {self.ledger.next_index} ({type(mechanism).__name__}) would bring "
            f"the run to {share:.4g} times what epsilon {self.budget.epsilon:g} at "
            f"delta {self.budget.delta:g} allows; stop here, add noise, or start with "
            "a larger budget. Nothing was spent by this request."
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

    def state_dict(self) -> dict[str, object]:
        """Return limits, sums and the number of charges, as JSON values."""
        return {
            "header": self.header(),
            "spent": self.spent.tolist(),
            "n_charges": self.n_charges,
        }
