# SPDX-License-Identifier: Apache-2.0
"""The gate: rows are read only through a batch that was paid for.

``PrivateDataset.open(plan)`` charges the amplified composition of the plan, then draws
the batch, and then answers each mechanism of the plan once.  Nothing else in the
package applies a function to private rows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from armijo import _validate
from armijo.data import fixed_point
from armijo.data.query import BoundedQuery, Matrix, Rows
from armijo.errors import UnchargedAccess
from armijo.noise import (
    MAX_SCALE,
    Randomness,
    default_noise,
    exponential_choice,
    fast_gaussian,
    poisson_coins,
    rounded_gaussian,
    rounded_laplace,
)
from armijo.noise.vectors import with_gaussian
from armijo.privacy.above_threshold import AboveThreshold
from armijo.privacy.accountant import Accountant
from armijo.privacy.budget import FloatArray, Neighboring
from armijo.privacy.mechanisms import Composed, Gaussian, Mechanism, NoisyMax
from armijo.privacy.subsampling import Subsampled

NoiseChoice = Literal["auto", "exact", "fast"]
Released = TypeVar("Released")
_NOISE_BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """All that will be done on one Poisson batch of rate ``rate`` (1: all rows)."""

    mechanisms: tuple[Mechanism, ...]
    rate: float = 1.0

    def __post_init__(self) -> None:
        """Check rate and mechanisms."""
        _validate.rate(rate=self.rate)
        Composed(self.mechanisms)

    @property
    def mechanism(self) -> Subsampled:
        """The one mechanism that the batch is charged for."""
        inner = self.mechanisms[0] if len(self.mechanisms) == 1 else None
        return Subsampled(inner or Composed(self.mechanisms), self.rate)


class PrivateDataset:
    """Private rows behind their accountant.

    Parameters
    ----------
    X : array, CSR matrix or memmap of shape (rows, features)
        Taken as it is, without a copy.
    y : array of shape (rows,) or None
        Labels.
    n_rows : int
        The *public* number of rows, from configuration: the divisor of averages is
        ``rate * n_rows``, never the number of rows that is found.
    accountant : Accountant
        Charged before every batch.
    randomness : armijo.noise.Randomness or None
        None draws from the operating system's cryptographic generator.
    noise : {"auto", "exact", "fast"}
        How noise on vectors is drawn; see :mod:`armijo.noise`.
    """

    def __init__(
        self,
        X: Matrix,
        y: NDArray[Any] | None = None,
        *,
        n_rows: int,
        accountant: Accountant,
        randomness: Randomness | None = None,
        noise: NoiseChoice = "auto",
    ) -> None:
        _validate.at_least(1, n_rows=n_rows)
        _validate.choice(("auto", "exact", "fast"), noise=noise)
        self.n_rows = n_rows
        self.accountant = accountant
        self._randomness = randomness or Randomness()
        self._noise = noise
        self._rows = Rows(*_checked_rows(X, y))
        if self._randomness.deterministic and accountant.guarantee.holds:
            raise ValueError(
                "Expected an accountant made with insecure_deterministic=True, since "
                "the randomness comes from a seed; a seeded run has no guarantee."
            )

    def expected_batch_size(self, rate: float) -> float:
        """Return the public divisor ``rate * n_rows``."""
        return rate * self.n_rows

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
        _refuse_unsampleable(plan)
        self.accountant.charge(plan.mechanism, label=label)
        rows = self._sample(plan.rate)
        # Exchanging a row takes one contribution out and puts another in.
        moves = 2 if self._relation is Neighboring.REPLACE_ONE else 1
        return PrivateBatch(rows, plan, self._randomness, self._noise, moves)

    @property
    def _relation(self) -> Neighboring:
        """The neighboring relation of the run."""
        return self.accountant.guarantee.relation

    def _sample(self, rate: float) -> Rows:
        """Draw each row independently; an empty batch is a batch like any other."""
        if rate == 1:
            return Rows(self._rows.X, self._rows.y)
        bits = self._randomness.stream("sampling")
        chosen = poisson_coins(self._rows.size, rate, bits)
        y = None if self._rows.y is None else self._rows.y[chosen]
        return Rows(self._rows.X[chosen], y)

    def __repr__(self) -> str:
        """Name the public settings only."""
        return f"PrivateDataset(n_rows={self.n_rows}, {self.accountant.guarantee})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse copies, which would read the same rows on another budget."""
        raise TypeError(
            "A PrivateDataset cannot be pickled; build it where it is used."
        )


def _checked_rows(
    X: Matrix, y: NDArray[Any] | None
) -> tuple[Matrix, NDArray[Any] | None]:
    """Check shapes; the values are the business of the queries' clipping."""
    if sparse.issparse(X):
        X = sparse.csr_matrix(X, copy=False)
    elif not isinstance(X, np.ndarray):
        X = np.asarray(X)
    if X.ndim != 2:
        raise ValueError(
            f"Expected a table of rows, got an array of {X.ndim} dimensions."
        )
    if y is not None and np.shape(y)[0] != X.shape[0]:
        raise ValueError(
            f"Expected as many labels as rows, got {np.shape(y)[0]} labels for "
            f"{X.shape[0]} rows; pass arrays that belong together."
        )
    return X, None if y is None else np.asarray(y)


class PrivateBatch:
    """One batch, paid for; each mechanism of its plan can be used once."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse copies, which would answer the same plan again."""
        raise TypeError("A PrivateBatch cannot be copied: it is paid for once.")

    def __init__(
        self,
        rows: Rows,
        plan: BatchPlan,
        randomness: Randomness,
        noise: NoiseChoice,
        moves: int = 1,
    ) -> None:
        self._rows = rows
        self._moves = moves
        self._unused = list(plan.mechanisms)
        self._plan = plan
        self._randomness = randomness
        self._noise = noise

    def _check(self, mechanism: Mechanism, kind: type) -> None:
        """Refuse a mechanism that does not fit the question or was not paid for."""
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
        self._check(mechanism, Gaussian)
        _refuse_excess(self._moves * query.bound, mechanism.sensitivity)
        self._unused.remove(mechanism)
        contributions = query.contributions(self._rows)
        if mechanism.noise_scale == 0:  # nothing to protect by a lattice
            return fixed_point.plain_vector_sum(contributions, query.bound)
        exact = fixed_point.vector_sum(contributions, query.bound)
        # Noise for the mechanism's sensitivity, in steps of this query's own lattice.
        relative = mechanism.noise_scale / query.bound
        draws = self._vector_noise(relative, exact.size)
        return np.asarray((exact + draws) * (query.bound / fixed_point.STEPS))

    def _vector_noise(self, relative_scale: float, size: int) -> NDArray[np.int64]:
        """Draw integers of the given scale by the chosen sampler."""
        kind = default_noise(size) if self._noise == "auto" else self._noise
        scale = fixed_point.lattice_scale(relative_scale)
        bits = self._randomness.stream("gradient")
        if kind == "fast":
            return fast_gaussian(scale, size, bits)
        return rounded_gaussian(scale, size, bits)

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
            exact = fixed_point.number_sum(query.contributions(self._rows), query.bound)
            public = round(query.offset / query.bound * fixed_point.STEPS)
            if exact + public + int(noises[index % _NOISE_BLOCK]) >= noisy_threshold:
                return index
        return None

    def _first_without_noise(
        self, queries: Iterable[BoundedQuery], cap: int | None
    ) -> int | None:
        """Return the first query whose exact sum is not negative."""
        for index, query in enumerate(islice(queries, cap)):
            values = fixed_point.clipped(query.contributions(self._rows), query.bound)
            if float(values.sum()) + query.offset >= 0:
                return index
        return None

    def noisy_argmax(self, query: BoundedQuery, mechanism: NoisyMax) -> int:
        """Return a candidate drawn by the exponential mechanism on the summed scores.

        The query gives one row of scores for each example, each within its bound.
        """
        self._check(mechanism, NoisyMax)
        _refuse_excess(self._moves * query.bound, mechanism.sensitivity)
        self._unused.remove(mechanism)
        sums = fixed_point.number_sums(query.contributions(self._rows), query.bound)
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
        self._unused.remove(mechanism)
        return with_gaussian(
            np.asarray(algorithm(self._rows), dtype=float),
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
        self._unused.remove(mechanism)
        return algorithm(self._rows, self._randomness)


def _refuse_replace_one(plan: BatchPlan) -> None:
    """Refuse what is proved for one row more or less only."""
    search = any(isinstance(part, AboveThreshold) for part in plan.mechanisms)
    if plan.rate < 1 or search:
        raise ValueError(
            "Expected the add-remove or zero-out relation, got replace-one: Poisson "
            "amplification and AboveThreshold are proved for one row more or less. "
            "Use all rows (rate 1) and no search."
        )


def _refuse_unsampleable(plan: BatchPlan) -> None:
    """Refuse noise that is too large to be drawn, before it is paid for."""
    for part in plan.mechanisms:
        scales: tuple[float, ...] = ()
        if isinstance(part, Gaussian):
            scales = (part.noise_multiplier,)
        elif isinstance(part, AboveThreshold):
            scales = (part.threshold_scale, part.query_scale)
        if any(scale * fixed_point.STEPS > MAX_SCALE for scale in scales):
            raise ValueError(
                f"Expected noise of at most {MAX_SCALE / fixed_point.STEPS:.3g} times "
                f"the sensitivity, got {part!r}; epsilon is too small for exact noise. "
                "Raise epsilon or the budgets of a step. Nothing was spent."
            )


def _refuse_excess(moves: float, sensitivity: float) -> None:
    """Refuse a query that may move further than its mechanism was charged for."""
    if moves > sensitivity:
        raise UnchargedAccess(
            f"The query's sum may move by {moves!r}, which exceeds the mechanism's "
            f"sensitivity {sensitivity!r}; clip to the sensitivity or charge for more."
        )
