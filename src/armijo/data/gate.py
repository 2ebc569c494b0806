# SPDX-License-Identifier: Apache-2.0
"""The gate: rows are read only through a batch that was paid for.

``PrivateDataset.open(plan)`` charges the amplified composition of the plan, then draws
the batch: a :class:`PrivateBatch`, which answers each mechanism of the plan once.
Nothing else in the package applies a function to private rows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from armijo import _validate
from armijo._noise import (
    MAX_SCALE,
    PoissonRows,
    add_gaussian,
    exponential_choice,
    rounded_gaussian,
    rounded_laplace,
)
from armijo._noise.vectors import with_gaussian
from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import Accountant
from armijo.accounting.budget import FloatArray, Neighboring
from armijo.accounting.mechanisms import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    Mechanism,
    Subsampled,
)
from armijo.data import fixed_point
from armijo.data.blocks import (
    ExactSum,
    NumberTask,
    OrderedBlocks,
    RowBlocks,
    SumTask,
    Task,
    is_ordered,
    with_norms,
)
from armijo.data.certified import EXACT_NOISE
from armijo.data.coded import CodedRows
from armijo.data.distributed import SINGLE, ProcessGroup, number_total
from armijo.data.feature_rows import FeatureRows
from armijo.data.query import (
    BoundedQuery,
    CertifiedSum,
    Matrix,
    Rows,
)
from armijo.data.sources import ArrayRows, HeldSource, Index, RowSource
from armijo.errors import BudgetExceeded, UnchargedAccess
from armijo.randomness import Randomness

Answer = TypeVar("Answer")
Released = TypeVar("Released")
CommitTotal = Callable[[int, int, ExactSum], None]
_NOISE_BLOCK = 32
# Numbers from which helpers draw noise as well. For some milliseconds after the last
# operation of torch its own threads keep their processors busy waiting: measured on
# two, behind a product of torch, a helper gains nothing at 795,010 numbers, in pieces
# of 2**15 to 2**19.
_HELPED_FROM = 1 << 21


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """All that will be done on one Poisson batch (probability 1: on all rows)."""

    mechanisms: tuple[Mechanism, ...]
    sampling_prob: float = 1.0

    def __post_init__(self) -> None:
        """Check sampling probability and mechanisms."""
        _validate.sampling_prob(sampling_prob=self.sampling_prob)
        Composed(self.mechanisms)

    @property
    def mechanism(self) -> Subsampled:
        """The one mechanism that the batch is charged for."""
        inner = self.mechanisms[0] if len(self.mechanisms) == 1 else None
        return Subsampled(inner or Composed(self.mechanisms), self.sampling_prob)


class PrivateBatch:
    """One batch, paid for; each mechanism of its plan can be used once.

    Attributes
    ----------
    number : int
        The number of the charge that paid for it.
    expected_size : float
        The public divisor of means, ``sampling_prob * n_rows``: never the number of
        rows that were drawn.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse copies, which would answer the same plan again."""
        raise TypeError("A PrivateBatch cannot be copied: it is paid for once.")

    def __init__(
        self,
        rows: Rows | RowBlocks,
        plan: BatchPlan,
        randomness: Randomness,
        *,
        n_rows: int,
        moves: int = 1,
        group: ProcessGroup = SINGLE,
        number: int = 0,
        commit: CommitTotal | None = None,
    ) -> None:
        self.number = number
        self._commit, self._totals = commit, 0
        self.expected_size = plan.sampling_prob * n_rows
        self._rows = rows
        self._group = group
        self._moves = moves
        self._unused = list(plan.mechanisms)
        self._plan = plan
        self._randomness = randomness

    def _check(self, mechanism: Mechanism, kind: type) -> None:
        if not isinstance(mechanism, kind):
            raise UnchargedAccess(
                f"Asked to answer with {mechanism!r}, expected a {kind.__name__}; use "
                "the method that belongs to the mechanism."
            )
        if mechanism not in self._unused:
            known = mechanism in self._plan.mechanisms
            found = "was used already" if known else "is not in the plan"
            raise UnchargedAccess(
                f"{mechanism!r} {found}; a batch answers each mechanism of its plan "
                "once. Open a new batch, which is charged."
            )

    def noisy_sum(self, query: BoundedQuery, mechanism: Gaussian) -> FloatArray:
        """Return the sum of the query's vectors with Gaussian noise."""
        return np.asarray(self.noisy_vector(query, mechanism).cpu().numpy())

    def noisy_vector(self, query: BoundedQuery, mechanism: Gaussian) -> torch.Tensor:
        """Return the same as a tensor, of the kind that the objective computes with."""
        self._check(mechanism, Gaussian)
        _refuse_excess(self._moves * query.bound, mechanism.sensitivity)
        self._unused.remove(mechanism)
        noise = mechanism.noise_scale / query.bound
        if noise == 0:  # nothing to protect by a lattice
            return self._group.total(self._plain(query))
        exact = self._total(SumTask(query.contributions, query.bound, noise))
        steps = exact.steps
        if self._group.size > 1:
            steps = self._group.total(steps.long())
        # Noise for the mechanism's sensitivity, in steps of this query's own lattice.
        scale, unit = exact.noise_scale(noise), query.bound * 2.0**-exact.bits
        if scale > EXACT_NOISE:
            steps = steps.long()
        values = self._noisy_steps(steps.cpu().numpy(), scale, unit, exact.dtype)
        return values.to(steps.device)

    def _total(self, task: Task) -> ExactSum:
        """Return an exact sum; that of blocks is on record before it is noised."""
        exact = self._rows.total(task)
        if self._commit is not None and not isinstance(self._rows, Rows):
            self._commit(self.number, self._totals, exact)
            self._totals += 1
        return exact

    def _plain(self, query: BoundedQuery) -> torch.Tensor:
        """Return a sum in floating point, for runs without noise."""
        rows = self._held
        summed = with_norms(rows, query.contributions(rows))
        if isinstance(summed, CertifiedSum):
            return summed.plain()
        return torch.from_numpy(fixed_point.plain_vector_sum(summed, query.bound))

    @property
    def _held(self) -> Rows:
        """The rows of the batch, for what is more than a sum over blocks."""
        if not isinstance(self._rows, Rows):
            raise UnchargedAccess(
                "Expected rows in memory, got blocks that answer sums only; load the "
                "rows, or use a method that sums. The batch stays charged."
            )
        return self._rows

    def _noisy_steps(
        self, steps: NDArray[Any], scale: int, unit: float, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return whole steps with noise, times their unit.

        Integers wrap around, floats hold both terms and round their sum once: a
        function of the noisy sum in either case.
        """
        values = torch.empty(len(steps), dtype=dtype)
        written = values.numpy()

        def put(places: Any, noise: NDArray[np.int64]) -> None:
            # One kind of number in each operation: NumPy does these several times as
            # fast as mixed ones.
            noisy = noise.astype(steps.dtype, copy=False)
            noisy += steps[places]
            scaled = noisy.astype(np.float64, copy=False)
            scaled *= unit
            written[places] = scaled

        def noisy() -> torch.Tensor:
            size, bits = len(steps), self._randomness.stream("gradient")
            threads = torch.get_num_threads() if size >= _HELPED_FROM else 1
            add_gaussian(scale, size, bits, put, threads=threads)
            return values

        return self._group.broadcast(noisy, values)

    def first_above(
        self, queries: Iterable[BoundedQuery], mechanism: AboveThreshold
    ) -> int | None:
        """Return the index of the first query that passes, or None.

        Each query is divided by its own public bound and compared as an integer; a
        query that is not reached is not evaluated.  At most ``max_queries`` are asked.
        """
        self._check(mechanism, AboveThreshold)
        self._unused.remove(mechanism)
        if mechanism.query_scale == 0:
            return self._first_without_noise(queries, mechanism.max_queries)
        draw = rounded_laplace
        if mechanism.kind == "gaussian":
            draw = rounded_gaussian
        bits = self._randomness.stream("search")
        threshold_scale = fixed_point.lattice_scale(mechanism.threshold_scale)
        query_scale = fixed_point.lattice_scale(mechanism.query_scale)
        noisy_threshold = int(draw(threshold_scale, 1, bits)[0])
        for index, query in enumerate(islice(queries, mechanism.max_queries)):
            if index % _NOISE_BLOCK == 0:  # fresh noise for each query, drawn in blocks
                noises = draw(query_scale, _NOISE_BLOCK, bits)
            exact = self._total(NumberTask(query.contributions, query.bound))
            public = round(query.offset / query.bound * fixed_point.STEPS)
            noise = int(noises[index % _NOISE_BLOCK])
            known = number_total(self._group, int(exact.steps[0])) + public
            passes = known + noise >= noisy_threshold
            if self._group.broadcast_bool(partial(bool, passes)):
                return index
        return None

    def _first_without_noise(
        self, queries: Iterable[BoundedQuery], cap: int | None
    ) -> int | None:
        for index, query in enumerate(islice(queries, cap)):
            values = fixed_point.clipped(query.contributions(self._held), query.bound)
            exact = torch.tensor([float(values.sum())], dtype=torch.float64)
            passes = float(self._group.total(exact)[0]) + query.offset >= 0
            if self._group.broadcast_bool(partial(bool, passes)):
                return index
        return None

    def noisy_argmax(self, query: BoundedQuery, mechanism: ExponentialMechanism) -> int:
        """Return a candidate drawn by the exponential mechanism on the summed scores.

        The query gives one row of scores for each example, each within its bound.
        """
        self._check(mechanism, ExponentialMechanism)
        _refuse_excess(self._moves * query.bound, mechanism.sensitivity)
        self._unused.remove(mechanism)
        task = NumberTask(query.contributions, query.bound, several=True)
        sums = self._total(task).steps.tolist()
        best = max(sums)
        # exp(epsilon u / (2 sensitivity)) with u in steps of bound / STEPS.
        relative = 2 * mechanism.sensitivity / (mechanism.epsilon * query.bound)
        scale = fixed_point.lattice_scale(relative)
        bits = self._randomness.stream("search")
        return exponential_choice([best - total for total in sums], scale, bits)

    def noisy_output(
        self, algorithm: Callable[[Rows], FloatArray], mechanism: Gaussian
    ) -> FloatArray:
        """Return the vector of a deterministic algorithm with Gaussian noise.

        The algorithm's own proof says that its output moves by at most the mechanism's
        sensitivity.
        """
        self._check(mechanism, Gaussian)
        self._refuse_group("output perturbation")
        self._unused.remove(mechanism)
        return with_gaussian(
            np.asarray(algorithm(self._held), dtype=float),
            sensitivity=mechanism.sensitivity,
            noise_scale=mechanism.noise_scale,
            bits=self._randomness.stream("perturbation"),
        )

    def release(
        self,
        algorithm: Callable[[Rows, Randomness], Released],
        mechanism: Mechanism,
    ) -> Released:
        """Run an algorithm whose own proof says that its output is ``mechanism``.

        For objective perturbation and private selection only: the algorithm sees all
        rows and draws its noise from the randomness it is given.
        """
        self._check(mechanism, object)
        self._refuse_group("a release")
        self._unused.remove(mechanism)
        return algorithm(self._held, self._randomness)

    def _refuse_group(self, what: str) -> None:
        """Refuse what needs all rows in one process.

        The gate refuses most of it by the type of its mechanism; a Gaussian might have
        been meant for a sum.
        """
        if self._group.size > 1:
            raise ValueError(
                f"Expected one process for {what}, got several; run it without "
                "torchrun, or use a method that sums over rows. The batch stays "
                "charged."
            )


def _refuse_excess(moves: float, sensitivity: float) -> None:
    if moves > sensitivity:
        raise UnchargedAccess(
            f"The query's sum may move by {moves!r}, which exceeds the mechanism's "
            f"sensitivity {sensitivity!r}; clip to the sensitivity or charge for more."
        )


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
    commit : callable or None
        Puts the exact total of rows in blocks on record, before it is noised: by
        number of the charge and of the release in it.
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
        commit: CommitTotal | None = None,
    ) -> None:
        self._commit = commit
        _validate.at_least(1, n_rows=n_rows)
        self.n_rows = n_rows
        self.accountant = accountant
        self._randomness = randomness or Randomness()
        self._group = group or SINGLE
        self._source = X if isinstance(X, RowSource) else ArrayRows(X, y)
        self._length = len(self._source)
        self._run_cache: dict[object, Any] = {}  # of coded rows, by released values
        if self._randomness.deterministic and accountant.guarantee.holds:
            raise ValueError(
                "Expected an accountant made with insecure_deterministic=True, since "
                "the randomness comes from a seed; a seeded run has no guarantee."
            )

    def affords(self, plan: BatchPlan) -> bool:
        """Say whether :meth:`open` would be paid."""
        return self.accountant.affords(plan.mechanism)

    def open(self, plan: BatchPlan, *, label: str = "batch") -> PrivateBatch:
        """Charge the plan, then draw a batch that answers it.

        Raises
        ------
        BudgetExceeded
            If the plan does not fit; no row was touched and nothing spent.
        """
        refuse_unsampleable(plan)
        if self._group.size > 1:
            _refuse_apart(plan)
        if isinstance(self._source, RowBlocks):
            refuse_in_blocks(plan, self._source)
        self._refuse_changed_length()
        number = self._charge(plan, label)
        randomness = self._randomness.for_charge(number)
        rows = self._sample(plan.sampling_prob, randomness)
        # Exchanging a row takes one contribution out and puts another in.
        moves = 2 if self._relation is Neighboring.REPLACE_ONE else 1
        return PrivateBatch(
            rows,
            plan,
            randomness,
            n_rows=self.n_rows,
            moves=moves,
            group=self._group,
            number=number,
            commit=self._commit,
        )

    def _charge(self, plan: BatchPlan, label: str) -> int:
        """Pay, and return the number of the charge.

        With several processes the lead pays, before anybody samples; the others count
        the same charge in memory, so that all know where the run is.
        """
        if self._group.size == 1:
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
        """Refuse rows that grew or shrank since the guarantee was stated for them.

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
        return self.accountant.guarantee.relation

    def _sample(self, sampling_prob: float, randomness: Randomness) -> Rows | RowBlocks:
        """Draw each row independently; an empty batch is a batch like any other."""
        index, batch = None, None
        if sampling_prob < 1:
            batch = PoissonRows(sampling_prob, randomness.row_bits())
        if isinstance(self._source, RowBlocks):
            if batch is None:
                return self._source
            assert isinstance(self._source, OrderedBlocks)  # others were refused
            return self._source.sampled(batch)
        if batch is not None:
            index = batch.chosen(0, self._length)
        X, y, blank = self._source.take(index)
        if isinstance(self._source, CodedRows | FeatureRows):
            return Rows(X, y, run_cache=self._run_cache if index is None else None)
        if isinstance(self._source, ArrayRows):
            norms = partial(self._source.norms, index, X)
            run_cache = self._source.run_cache if index is None else None
            return Rows(X, y, norms=norms, run_cache=run_cache, rounded=True)
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
    source: HeldSource, ask: Callable[[Rows], Answer], index: Index = None
) -> Answer:
    """Return what a function says of rows that nobody paid for: NOT private.

    For checks that only the owner of the rows sees, and for what an attacker of an
    audit knows anyway.  Nothing of it may be released.
    """
    X, y, blank = source.take(index)
    return ask(Rows(X, y, blank=blank))


def _refuse_apart(plan: BatchPlan) -> None:
    """Refuse what needs all rows in one process, before it is paid for."""
    for part in plan.mechanisms:
        if not part.noise_ratios():
            raise ValueError(
                f"Expected one process for {part!r}, got several: only sums over rows "
                "and searches add up between processes. Run it without torchrun, or "
                "use another method. Nothing was spent."
            )


def refuse_in_blocks(plan: BatchPlan, blocks: RowBlocks) -> None:
    """Refuse what blocks cannot answer, before it is paid for."""
    if plan.sampling_prob < 1 and not is_ordered(blocks):
        raise ValueError(
            "Expected rows in a fixed order for a method that samples them, got rows "
            "that may come in another order at each pass: which of them are in a batch "
            'could not be told. Use method="auto", give Parquet files, or load the '
            "rows. Nothing was spent."
        )
    for part in plan.mechanisms:
        summed = isinstance(part, Gaussian | AboveThreshold | ExponentialMechanism)
        if not summed or 0 in part.noise_ratios():
            raise ValueError(
                f"Expected noisy sums over rows, got {part!r}: rows in blocks answer "
                'nothing else. Use method="auto", or load the rows into memory. '
                "Nothing was spent."
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
