# SPDX-License-Identifier: Apache-2.0
"""The gate: rows are read only through a batch that was paid for.

``PrivateDataset.open(plan)`` charges the amplified composition of the plan, then draws
the batch, which answers each mechanism of the plan once (:mod:`armijo.data.batch`).
Nothing else in the package applies a function to private rows.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from numpy.typing import NDArray

from armijo import _validate
from armijo._noise import MAX_SCALE, poisson_sample
from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import Accountant
from armijo.accounting.budget import Neighboring
from armijo.data import fixed_point
from armijo.data.batch import BatchPlan, PrivateBatch
from armijo.data.process_group import ProcessGroup, SingleProcess
from armijo.data.query import Matrix, Rows
from armijo.data.sources import ArrayRows, DatasetRows, Index, RowSource, TensorRows
from armijo.errors import BudgetExceeded
from armijo.randomness import Randomness

__all__ = ["BatchPlan", "PrivateBatch", "PrivateDataset", "leaky_answer"]

Answer = TypeVar("Answer")


class PrivateDataset:
    """Private rows behind their accountant.

    Parameters
    ----------
    X : array, CSR matrix, memmap of shape (rows, features), or RowSource
        Not changed.  A source brings its own labels.
    y : array of shape (rows,) or None
        Labels.
    n_rows : int
        The *public* number of rows, from configuration: the divisor of averages is
        ``sampling_prob * n_rows``, never the number of rows that is found.
    accountant : Accountant
        Charged before every batch.
    randomness : armijo._noise.Randomness or None
        None draws from the operating system's cryptographic generator.
    group : ProcessGroup or None
        The processes that hold the rows together; None is this one alone.
    """

    def __init__(
        self,
        X: Matrix | RowSource,
        y: NDArray[Any] | None = None,
        *,
        n_rows: int,
        accountant: Accountant,
        randomness: Randomness | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        _validate.at_least(1, n_rows=n_rows)
        self.n_rows = n_rows
        self.accountant = accountant
        self._randomness = randomness or Randomness()
        self._group = group or SingleProcess()
        self._source = X if _is_source(X) else ArrayRows(X, y)
        self._length = len(self._source)
        if self._randomness.deterministic and accountant.guarantee.holds:
            raise ValueError(
                "Expected an accountant made with insecure_deterministic=True, since "
                "the randomness comes from a seed; a seeded run has no guarantee."
            )

    def expected_batch_size(self, sampling_prob: float) -> float:
        """Return the public divisor ``sampling_prob * n_rows``."""
        return sampling_prob * self.n_rows

    def affords(self, plan: BatchPlan) -> bool:
        """Say whether :meth:`open` would be paid."""
        return self.accountant.affords(plan.mechanism)

    def open(self, plan: BatchPlan, *, label: str = "batch") -> "PrivateBatch":
        """Charge the plan, then draw a batch that answers it.

        Raises
        ------
        BudgetExceeded
            If the plan does not fit; no row was touched and nothing spent.
        """
        if self._relation is Neighboring.REPLACE_ONE:
            _refuse_replace_one(plan)
        refuse_unsampleable(plan)
        if not isinstance(self._group, SingleProcess):
            _refuse_apart(plan)
        self._refuse_changed_length()
        number = self._charge(plan, label)
        randomness = self._randomness.for_charge(number)
        rows = self._sample(plan.sampling_prob, randomness)
        # Exchanging a row takes one contribution out and puts another in.
        moves = 2 if self._relation is Neighboring.REPLACE_ONE else 1
        return PrivateBatch(rows, plan, randomness, moves, self._group, number)

    def _charge(self, plan: BatchPlan, label: str) -> int:
        """Pay, and return the number of the charge.

        With several processes the lead pays, before anybody samples; the others count
        the same charge in memory, so that all know where the run is.
        """
        if isinstance(self._group, SingleProcess):
            return self.accountant.charge(plan.mechanism, label=label)
        self._group.assert_same("plan of a batch", repr(plan))
        number = 0

        def lead_paid() -> bool:
            nonlocal number
            if not self.accountant.affords(plan.mechanism):
                return False
            number = self.accountant.charge(plan.mechanism, label=label)
            return True

        if not self._group.broadcast_bool(lead_paid):
            raise BudgetExceeded(
                "The lead's accountant refuses the next batch; the run ends here. "
                "Nothing was spent by this request."
            )
        if not self._group.is_main:
            number = self.accountant.charge(plan.mechanism, label=label)
        return number

    def _refuse_changed_length(self) -> None:
        """Refuse rows that grew or shrank since the promise was made for them.

        How many there are is private: no number is named.
        """
        if len(self._source) != self._length:
            raise ValueError(
                "Expected a dataset of unchanged length, got another number of rows "
                "than at the start; finish changing it before the run. Nothing was "
                "spent by this request."
            )

    @property
    def _relation(self) -> Neighboring:
        """The neighboring relation of the run."""
        return self.accountant.guarantee.relation

    def _sample(self, sampling_prob: float, randomness: Randomness) -> Rows:
        """Draw each row independently; an empty batch is a batch like any other."""
        index = None
        if sampling_prob < 1:
            bits = randomness.stream("sampling")
            index = poisson_sample(self._length, sampling_prob, bits)
        X, y, blank = self._source.take(index)
        if isinstance(self._source, ArrayRows):
            norms = partial(self._source.norms, index, X)
            kept = self._source.kept if index is None else None
            return Rows(X, y, norms=norms, kept=kept, rounded=True)
        seed = int(randomness.stream("initial").uint64(1)[0] >> 1)
        return Rows(X, y, seed=seed, blank=blank)

    def __repr__(self) -> str:
        """Name the public settings only."""
        return f"PrivateDataset(n_rows={self.n_rows}, {self.accountant.guarantee})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse copies, which would read the same rows on another budget."""
        raise TypeError(
            "A PrivateDataset cannot be pickled; build it where it is used."
        )


def leaky_answer(
    source: RowSource, ask: Callable[[Rows], Answer], index: Index = None
) -> Answer:
    """Return what a function says of rows that nobody paid for: NOT private.

    For checks that only the owner of the rows sees, and for what an attacker of an
    audit knows anyway.  Nothing of it may be released.
    """
    X, y, blank = source.take(index)
    return ask(Rows(X, y, blank=blank))


def _is_source(X: Any) -> bool:
    """Say whether rows are handed out by a source rather than lying in an array."""
    return hasattr(X, "take") and isinstance(X, ArrayRows | TensorRows | DatasetRows)


def _refuse_replace_one(plan: BatchPlan) -> None:
    """Refuse what is proved for one row more or less only."""
    search = any(isinstance(part, AboveThreshold) for part in plan.mechanisms)
    if plan.sampling_prob < 1 or search:
        raise ValueError(
            "Expected the add-remove or zero-out relation, got replace-one: Poisson "
            "amplification and AboveThreshold are proved for one row more or less. "
            "Use all rows (sampling_prob 1) and no search."
        )


def _refuse_apart(plan: BatchPlan) -> None:
    """Refuse what needs all rows in one process, before it is paid for."""
    for part in plan.mechanisms:
        if not part.noise_ratios():
            raise ValueError(
                f"Expected one process for {part!r}, got several: only sums over rows "
                "and searches add up between processes. Run it without torchrun, or "
                "use another method. Nothing was spent."
            )


def refuse_unsampleable(plan: BatchPlan) -> None:
    """Refuse noise that is too large to be drawn, before it is paid for."""
    for part in plan.mechanisms:
        if any(ratio * fixed_point.STEPS > MAX_SCALE for ratio in part.noise_ratios()):
            raise ValueError(
                f"Expected noise of at most {MAX_SCALE / fixed_point.STEPS:.3g} times "
                f"the sensitivity, got {part!r}; epsilon is too small for exact noise. "
                "Raise epsilon or the budgets of a step. Nothing was spent."
            )
