# SPDX-License-Identifier: Apache-2.0
"""What a finished run says about privacy."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from armijo.accounting.accountant import Accountant
from armijo.accounting.budget import Budget, Guarantee, Neighboring
from armijo.accounting.ledger import Charge, Ledger


@dataclass(frozen=True)
class LedgerEnd:
    """Which ledger paid for a run, and the checksum of its last line by then."""

    ledger_run: str
    ledger_head: str

    @classmethod
    def of(cls, ledger: Ledger) -> "LedgerEnd":
        """Note the end of an open ledger."""
        return cls(ledger_run=str(ledger.header["run"]), ledger_head=ledger.head)


@dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of a run and the charges behind it.

    Attributes
    ----------
    guarantee : Guarantee
        The preset promise, its relation, its accountant, and why it does not hold if
        it does not.
    epsilon_spent : float
        Used share of the budget, times epsilon: how far the run went.
    ledger : tuple of Charge
        Every charge in order.
    ledger_path : str or None
        The file behind it, if there is one.
    ledger_end : LedgerEnd or None
        Where that file ended with the run, so that one that was cut is noticed.
    """

    guarantee: Guarantee
    epsilon_spent: float
    ledger: tuple[Charge, ...]
    ledger_path: str | None
    ledger_end: "LedgerEnd | None" = None

    @classmethod
    def of(cls, accountant: Accountant) -> "PrivacyStatement":
        """Copy what an accountant knows, without its ledger's lock."""
        ledger = accountant.ledger
        written = ledger if isinstance(ledger, Ledger) else None
        return cls(
            guarantee=accountant.guarantee,
            epsilon_spent=accountant.epsilon_spent(),
            ledger=tuple(ledger.charges),
            ledger_path=None if written is None else written.path,
            ledger_end=None if written is None else LedgerEnd.of(written),
        )

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
        return {
            **self.guarantee.to_dict(),
            "statement": self.guarantee.sentence(),
            "epsilon_spent": self.epsilon_spent,
            "n_charges": len(self.ledger),
            **({} if self.ledger_end is None else asdict(self.ledger_end)),
        }

    def __repr__(self) -> str:
        """Name the guarantee, and count the charges instead of listing them."""
        broken = "" if self.guarantee.holds else ", NO GUARANTEE"
        return (
            f"PrivacyStatement(epsilon={self.epsilon:g}, delta={self.delta:g}, "
            f"relation={self.relation.value!r}, accountant={self.accountant!r}, "
            f"epsilon_spent={self.epsilon_spent:g}, charges={len(self.ledger)}{broken})"
        )

    def __str__(self) -> str:
        """Say it in one sentence."""
        return self.guarantee.sentence()
