# SPDX-License-Identifier: Apache-2.0
"""The gate: charge, then sample, then answer once."""

import copy
import itertools
import math
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse, stats

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import PlannedAccountant, PrivacyFilter
from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.ledger import Ledger
from armijo.accounting.mechanisms import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    Mechanism,
    PureDP,
    Subsampled,
)
from armijo.data import blocks, certified, fixed_point
from armijo.data.fixed_point import STEPS
from armijo.data.gate import BatchPlan, PrivateBatch, PrivateDataset
from armijo.data.lattice import CenteredRows
from armijo.data.query import BoundedQuery, CertifiedSum, OuterProduct, Rows, row_norms
from armijo.errors import BudgetExceeded, UnchargedAccess
from armijo.randomness import Randomness
from tests.accounting.exact_divergence import Noises, log_law
from tests.data.gate_doubles import (
    BUDGET,
    CHOICE,
    GRADIENT,
    PERTURBATION,
    SEARCH,
    X3,
    FreeAccountant,
    SpyAccountant,
    SpyRandomness,
    features,
    level,
    opened,
    seeded,
    spied,
    steps_of,
)


def answers(batch: PrivateBatch) -> dict[Mechanism, Any]:
    """What the batch's own method answers for each kind of mechanism."""
    return {
        GRADIENT: lambda: batch.noisy_sum(features(), GRADIENT),
        SEARCH: lambda: batch.first_above([level(0.0)], SEARCH),
        CHOICE: lambda: batch.noisy_argmax(features(), CHOICE),
        PERTURBATION: lambda: batch.release(lambda rows, _: rows.size, PERTURBATION),
    }


EVERY = (GRADIENT, SEARCH, CHOICE, PERTURBATION)
every_mechanism = pytest.mark.parametrize("one", EVERY, ids=lambda m: type(m).__name__)


class BusyAccountant(FreeAccountant):
    """Charges for somebody else, too, as when another thread shares it."""

    def charge(self, mechanism: Mechanism, **more: Any) -> int:
        own = super().charge(mechanism, **more)
        super().charge(mechanism, label="of another thread")
        return own


class NotedRandomness(Randomness):
    """Writes down the charges that its streams belong to."""

    def __init__(self) -> None:
        super().__init__(seed=0, insecure_deterministic=True)
        self.asked: list[int] = []

    def for_charge(self, index: int) -> Randomness:
        self.asked.append(index)
        return super().for_charge(index)


def test_the_streams_of_a_batch_are_those_of_its_own_charge():
    """Not of the latest charge, which may be one of another thread."""
    randomness = NotedRandomness()
    data = PrivateDataset(
        X3, n_rows=3, accountant=BusyAccountant(), randomness=randomness
    )
    batches = [data.open(BatchPlan(mechanisms=(GRADIENT,))) for _ in range(3)]
    assert randomness.asked == [batch.number for batch in batches] == [0, 2, 4]


def test_a_batch_is_charged_then_drawn_then_answered():
    events: list[str] = []
    data = PrivateDataset(
        spied(X3, events),
        spied(np.arange(3.0), events),
        n_rows=3,
        accountant=SpyAccountant(events),
        randomness=SpyRandomness(events),
    )
    plan = BatchPlan(mechanisms=EVERY, sampling_prob=0.5)
    assert data.affords(plan)
    assert events == []
    batch = data.open(plan, label="first")
    order = [key for key, _ in itertools.groupby(events)]
    assert order == ["charge", "sampling", "rows"]
    events.clear()
    for answer in answers(batch).values():
        answer()
    drawn = dict.fromkeys(event for event in events if event != "rows")
    assert list(drawn) == ["gradient", "search"]
    (charge,) = data.accountant.ledger.charges
    assert charge.label == "first"
    whole = Subsampled(Composed(EVERY), 0.5)
    assert data.accountant.spent == whole.rdp(np.array([float(data.accountant.order)]))


def test_the_charge_is_on_disk_before_a_bit_is_drawn(tmp_path):
    path = tmp_path / "run.ledger"
    lines: list[int] = []

    class Watching(list):
        def append(self, event: str) -> None:
            lines.append(path.read_text().count('"Subsampled"'))

    accountant = PrivacyFilter(BUDGET)
    accountant.attach(Ledger.open(path, header=accountant.header()))
    data = PrivateDataset(
        X3, n_rows=3, accountant=accountant, randomness=SpyRandomness(Watching())
    )
    for step in (1, 2):
        batch = data.open(BatchPlan(mechanisms=(GRADIENT,), sampling_prob=0.5))
        batch.noisy_sum(features(), GRADIENT)
        assert set(lines) == {step}
        lines.clear()
    accountant.ledger.close()


def test_a_refused_charge_touches_no_row_and_draws_no_bit():
    events: list[str] = []
    data = PrivateDataset(
        spied(X3, events),
        n_rows=3,
        accountant=SpyAccountant(events, Budget(epsilon=1e-3, delta=1e-6)),
        randomness=SpyRandomness(events),
    )
    for sampling_prob in (0.5, 1.0):
        plan = BatchPlan(
            mechanisms=(Gaussian(noise_scale=0.1),), sampling_prob=sampling_prob
        )
        assert not data.affords(plan)
        with pytest.raises(BudgetExceeded):
            data.open(plan)
    assert events == []
    assert data.accountant.n_charges == 0
    assert data.accountant.spent.tolist() == [0.0]


@every_mechanism
def test_a_second_use_is_refused(one):
    answer = answers(opened(one))[one]
    answer()
    with pytest.raises(UnchargedAccess, match="used already"):
        answer()


@every_mechanism
def test_a_mechanism_outside_the_plan_is_refused(one):
    batch = opened(*(other for other in EVERY if other is not one))
    with pytest.raises(UnchargedAccess, match="not in the plan"):
        answers(batch)[one]()
    for other, answer in answers(batch).items():
        if other is not one:
            answer()


def test_a_mechanism_that_stands_twice_in_the_plan_is_answered_twice():
    answer = answers(opened(GRADIENT, Gaussian(noise_scale=8.0)))[GRADIENT]
    assert answer().tolist() != answer().tolist()
    with pytest.raises(UnchargedAccess):
        answer()


@pytest.mark.parametrize("method", ["noisy_sum", "first_above", "noisy_argmax"])
@pytest.mark.parametrize("one", [*EVERY, PureDP(1.0)])
def test_the_wrong_method_for_a_mechanism_is_refused_and_uses_nothing(method, one):
    own = {"noisy_sum": GRADIENT, "first_above": SEARCH, "noisy_argmax": CHOICE}
    batch = opened(*EVERY, PureDP(1.0))
    if own[method] != one:
        query = [level(0.0)] if method == "first_above" else features()
        with pytest.raises(UnchargedAccess, match="expected a"):
            getattr(batch, method)(query, one)
    for answer in answers(batch).values():
        answer()


@pytest.mark.parametrize(
    ("one", "method"), [(GRADIENT, "noisy_sum"), (CHOICE, "noisy_argmax")]
)
def test_a_bound_above_the_sensitivity_is_refused_and_uses_nothing(one, method):
    batch = opened(one)
    with pytest.raises(UnchargedAccess, match=r"move by 1\.0000001, which exceeds"):
        getattr(batch, method)(features(1.0000001), one)
    getattr(batch, method)(features(1.0), one)


def test_an_empty_batch_takes_the_same_path_and_charge():
    """With one seed the noise is the same, so it can be compared exactly."""
    runs = []
    for X, sampling_prob in ((X3, 1.0), (X3[:0], 1.0), (X3, 1e-15)):
        data = seeded(X, accountant=FreeAccountant())
        batch = data.open(BatchPlan(mechanisms=EVERY, sampling_prob=sampling_prob))
        found = {m: answer() for m, answer in answers(batch).items()}
        runs.append((found, data.accountant.ledger.charges, data.accountant.spent))
    full, none, empty = (np.array(steps_of(run[0][GRADIENT])) for run in runs)
    exact = fixed_point.vector_sum(X3, 1.0)
    assert (full - none).tolist() == exact.tolist()
    assert empty.tolist() == none.tolist()
    assert [run[0][PERTURBATION] for run in runs] == [3, 0, 0]
    assert runs[0][1:] == runs[1][1:]
    assert all(len(run[1]) == 1 and run[2] == 1.0 for run in runs)


@pytest.mark.parametrize("sampling_prob", [1.0, 0.5])
def test_the_number_of_rows_is_the_public_one(sampling_prob):
    """The public number moves the divisor and nothing else."""
    found = {}
    for n_rows in (1, 3, 1000):
        data = seeded(X3, n_rows=n_rows)
        batch = data.open(
            BatchPlan(mechanisms=(GRADIENT,), sampling_prob=sampling_prob)
        )
        assert batch.expected_size == sampling_prob * n_rows
        found[n_rows] = batch.noisy_sum(features(), GRADIENT).tolist()
        assert data.n_rows == n_rows
    assert found[1] == found[3] == found[1000]


def test_a_seed_needs_an_accountant_that_promises_nothing():
    randomness = Randomness(seed=1, insecure_deterministic=True)
    step = Subsampled(GRADIENT, 0.5)
    promising = [PrivacyFilter(BUDGET), PlannedAccountant(BUDGET, [(step, 3)])]
    for accountant in promising:
        with pytest.raises(ValueError, match="insecure_deterministic=True"):
            PrivateDataset(X3, n_rows=3, accountant=accountant, randomness=randomness)
    accountant = PrivacyFilter(BUDGET, insecure_deterministic=True)
    data = PrivateDataset(X3, n_rows=3, accountant=accountant, randomness=randomness)
    assert not data.accountant.guarantee.holds


def test_without_a_seed_two_runs_differ():
    plan = BatchPlan(mechanisms=(GRADIENT,))
    found = []
    for _ in range(2):
        data = PrivateDataset(X3, n_rows=3, accountant=PrivacyFilter(BUDGET))
        found.append(data.open(plan).noisy_sum(features(), GRADIENT).tolist())
    assert found[0] != found[1]


def test_neither_a_name_nor_a_copy_shows_rows():
    X = np.full((3, 2), 12345.5)
    data = seeded(X, np.full(3, 54321))
    batch = data.open(BatchPlan(mechanisms=(PERTURBATION,)))
    for thing in (data, batch):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                duplicate(thing)
    rows = batch.release(lambda rows, _: rows, PERTURBATION)
    for thing in (data, batch, rows):
        assert "12345" not in repr(thing) and "54321" not in repr(thing)


def sum_of(query: BoundedQuery, X: Any) -> list[int]:
    """Return what the gate adds to the noise: the same seed without rows tells it."""
    runs = [opened(GRADIENT, X=rows).noisy_sum(query, GRADIENT) for rows in (X, X[:0])]
    steps = [steps_of(run, query.bound) for run in runs]
    return [with_rows - without for with_rows, without in zip(*steps, strict=True)]


TWICE = BoundedQuery(
    contributions=lambda rows: OuterProduct(np.ones((rows.size, 2)), rows.X), bound=0.5
)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, sparse.csr_array])
def test_under_the_noise_lies_the_exact_sum(kind):
    exact = fixed_point.vector_sum(OuterProduct(np.ones((3, 2)), X3), 0.5)
    assert sum_of(TWICE, kind(X3)) == exact.tolist()


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, sparse.csr_array])
def test_without_noise_the_clipped_sum_is_exact(kind):
    silent = Gaussian(noise_scale=0.0)
    X = np.vstack([X3, [[math.nan, 0.0]], [[3e5, -4e5]]])
    examples = [np.concatenate([row, row]) for row in X[[0, 1, 2, 4]]]
    clipped = [x * min(1.0, 0.5 / np.linalg.norm(x)) for x in examples]
    found = opened(silent, X=kind(X)).noisy_sum(TWICE, silent)
    np.testing.assert_allclose(found, np.sum(clipped, axis=0), rtol=1e-11)
    for sampling_prob in (0.5, 1.0):
        with pytest.raises(BudgetExceeded):
            PrivacyFilter(BUDGET).charge(Subsampled(silent, sampling_prob))


def test_repeated_entries_of_a_sparse_row_cannot_break_the_bound():
    query = BoundedQuery(
        contributions=lambda rows: OuterProduct(np.ones((rows.size, 1)), rows.X),
        bound=1.0,
    )
    for n in range(1, 60):
        X = sparse.csr_matrix(
            (np.ones(n), np.zeros(n, dtype=int), np.array([0, n])), shape=(1, 1)
        )
        (steps,) = sum_of(query, X)
        assert abs(steps) <= STEPS


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_no_query_can_name_the_norms_it_is_clipped_by(factor):
    """Norms that were kept are of the rows as they came, not of what they become."""
    query = BoundedQuery(
        contributions=lambda rows: OuterProduct(
            np.ones((rows.size, 1)), factor * rows.X, norms=np.full(rows.size, 1e-9)
        ),
        bound=1.0,
    )
    exact = fixed_point.vector_sum(OuterProduct(np.ones((3, 1)), factor * X3), 1.0)
    assert sum_of(query, X3) == exact.tolist()


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_norms_of_centered_rows_are_computed_once_for_each_center(kind, monkeypatch):
    X, exact = kind(X3), fixed_point.vector_sum
    data, computed, used = seeded(X, np.zeros(3)), [], []
    monkeypatch.setattr(
        blocks, "row_norms", lambda X: computed.append(1) or row_norms(X)
    )
    monkeypatch.setattr(
        fixed_point, "vector_sum", lambda c, b: used.append(c.norms) or exact(c, b)
    )
    for center in (np.ones(2), np.array([3.0, -1.0]), np.ones(2)):
        query = BoundedQuery(
            contributions=lambda rows, center=center: OuterProduct(
                np.ones((rows.size, 1)), CenteredRows(rows.X, center)
            ),
            bound=1.0,
        )
        batch = data.open(BatchPlan(mechanisms=(GRADIENT,)))
        batch.noisy_sum(query, GRADIENT)
        np.testing.assert_array_equal(used[-1], row_norms(X3 - center))
    assert len(computed) == 2


def test_a_view_of_other_rows_or_of_another_kind_brings_no_norms():
    class Stretched(CenteredRows):
        def __getitem__(self, rows):
            return 100.0 * super().__getitem__(rows)

    for view in (
        lambda rows: Stretched(rows.X, np.zeros(2)),
        lambda rows: CenteredRows(100.0 * rows.X, np.zeros(2)),
    ):
        query = BoundedQuery(
            contributions=lambda rows, view=view: OuterProduct(
                np.ones((rows.size, 1)), view(rows)
            ),
            bound=1.0,
        )
        exact = fixed_point.vector_sum(OuterProduct(np.ones((3, 1)), 100.0 * X3), 1.0)
        assert sum_of(query, X3) == exact.tolist()


@pytest.mark.parametrize(("sampling_prob", "shared"), [(1.0, True), (0.5, False)])
def test_only_batches_of_all_rows_share_what_they_keep(sampling_prob, shared):
    """What holds for one sample of the rows says nothing of the next."""
    data = seeded(np.arange(40.0).reshape(40, 1), np.zeros(40))
    sums = []
    for _ in range(2):
        batch = data.open(
            BatchPlan(mechanisms=(PERTURBATION,), sampling_prob=sampling_prob)
        )
        rows = batch.release(lambda rows, _: rows, PERTURBATION)
        kept = rows.cached_for_run("numbers", lambda rows=rows: [float(rows.X.sum())])
        assert rows.cached_for_run("numbers", list) is kept
        assert kept == [float(rows.X.sum())]
        sums.append(kept)
    assert (sums[0] is sums[1]) == shared


def test_labels_stay_with_their_rows_whatever_holds_them():
    X = np.arange(40.0).reshape(40, 1)
    shuffled = pd.Series(np.arange(40), index=np.arange(40)[::-1])
    for labels in (shuffled, list(range(40))):
        data = seeded(X, labels)
        batch = data.open(BatchPlan(mechanisms=(PERTURBATION,), sampling_prob=0.5))
        rows = batch.release(lambda rows, _: rows, PERTURBATION)
        assert rows.X[:, 0].tolist() == np.asarray(rows.y, dtype=float).tolist()


def test_exchanging_a_row_is_not_promised_on_noise_for_one_row():
    """Sums move twice as far under replace-one, and Poisson amplification fails."""
    with pytest.raises(ValueError, match="replace-one"):
        accountant = PrivacyFilter(BUDGET, relation=Neighboring.REPLACE_ONE)
        data = PrivateDataset(X3, n_rows=3, accountant=accountant)
        data.open(BatchPlan(mechanisms=(GRADIENT,), sampling_prob=0.5))


def test_a_release_gets_all_rows_and_its_own_bits():
    events: list[str] = []
    data = PrivateDataset(
        X3,
        np.arange(3),
        n_rows=3,
        accountant=PrivacyFilter(BUDGET),
        randomness=SpyRandomness(events),
    )
    batch = data.open(BatchPlan(mechanisms=(PERTURBATION,)))

    def algorithm(rows: Rows, randomness: Randomness) -> tuple[list[Any], int]:
        bits = randomness.stream("perturbation")
        return [rows.X.tolist(), rows.y.tolist()], len(bits.uint64(2))

    assert batch.release(algorithm, PERTURBATION) == ([X3.tolist(), [0, 1, 2]], 2)
    assert events == ["perturbation"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": X3[0]}, "1 dimensions"),
        ({"X": X3, "y": np.zeros(2)}, "as many labels as rows, got different"),
        ({"X": X3, "n_rows": 0}, "n_rows >= 1, got 0"),
        ({"X": X3, "n_rows": 2.5}, "n_rows to be an integer, got 2.5"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        PrivateDataset(**{"n_rows": 3, "accountant": PrivacyFilter(BUDGET)} | arguments)


@pytest.mark.parametrize("sampling_prob", [0.0, -0.1, 1.1, math.nan, math.inf])
def test_a_plan_needs_a_rate_and_something_to_do(sampling_prob):
    with pytest.raises(ValueError, match="sampling_prob"):
        BatchPlan(mechanisms=(GRADIENT,), sampling_prob=sampling_prob)
    with pytest.raises(ValueError, match="at least one mechanism"):
        BatchPlan(mechanisms=())


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_query_needs_public_numbers(number):
    for bad in ({"bound": number}, {"bound": 0.0}, {"bound": 1.0, "offset": number}):
        with pytest.raises(ValueError, match=f"Expected {list(bad)[-1]}"):
            BoundedQuery(contributions=lambda rows: rows.X, **bad)


@pytest.mark.parametrize(
    "part",
    [
        Gaussian(noise_scale=2.0**27),
        AboveThreshold.laplace(1e-8, 5),
        AboveThreshold.gaussian(1e-16, 5),
    ],
)
def test_noise_that_cannot_be_drawn_is_refused_before_it_is_paid_for(part):
    data = PrivateDataset(X3, n_rows=3, accountant=PrivacyFilter(BUDGET))
    with pytest.raises(ValueError, match="Nothing was spent"):
        data.open(BatchPlan(mechanisms=(part,)))
    assert data.accountant.n_charges == 0


ACCEPT, REJECT = 1e-4, 1e-9


def test_each_row_is_drawn_alone_and_with_the_rate():
    n, sampling_prob, rounds = 30, 0.3, 1500
    X = np.arange(2.0 * n).reshape(n, 2)
    data = seeded(X, np.arange(n), n_rows=5)
    plan = BatchPlan(mechanisms=(PERTURBATION,), sampling_prob=sampling_prob)
    taken = np.zeros((rounds, n), dtype=bool)
    for i in range(rounds):
        rows = data.open(plan).release(lambda rows, _: rows, PERTURBATION)
        np.testing.assert_array_equal(rows.X, X[rows.y])
        taken[i, rows.y] = True

    def totals(chance: float) -> float:
        expected = np.full(n, rounds * chance)
        stat = np.sum((taken.sum(axis=0) - expected) ** 2 / (expected * (1 - chance)))
        return float(stats.chi2(n).sf(stat))

    assert totals(sampling_prob) > ACCEPT
    assert totals(sampling_prob + 0.05) < REJECT
    # Batch sizes spread like sums of independent coins; a fixed size would not.
    law = stats.binom(n, sampling_prob)
    edges = [-1, 6, 7, 8, 9, 10, 11, 12, n]
    observed = np.histogram(taken.sum(axis=1), np.array(edges) + 0.5)[0]
    assert stats.chisquare(observed, rounds * np.diff(law.cdf(edges))).pvalue > ACCEPT


def test_noise_has_the_scale_that_was_charged():
    """The query's bound is below the sensitivity: the noise must not shrink with it."""
    size, scale, bound = 20_000, 4.5, 0.75
    mechanism = Gaussian(noise_scale=scale, sensitivity=1.5)
    batch = opened(mechanism, X=np.zeros((2, size)))
    found = batch.noisy_sum(features(bound), mechanism)
    steps_of(found, bound)
    for factor, right in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        p_value = stats.kstest(found, stats.norm(scale=factor * scale).cdf).pvalue
        assert p_value > ACCEPT if right else p_value < REJECT


def stops(
    mechanism: AboveThreshold, levels: Sequence[BoundedQuery], rounds: int
) -> np.ndarray:
    """Return how often each query was the first; the last count is "none found"."""
    data = seeded(X3, seed=7)
    plan = BatchPlan(mechanisms=(mechanism,))
    found = [data.open(plan).first_above(levels, mechanism) for _ in range(rounds)]
    return np.bincount([len(levels) if i is None else i for i in found])


def p_value(observed: np.ndarray, law: np.ndarray) -> float:
    assert math.isclose(law.sum(), 1.0, abs_tol=1e-9)
    return float(stats.chisquare(observed, law * observed.sum()).pvalue)


def exact_law(mechanism: AboveThreshold, values: Sequence[float]) -> np.ndarray:
    noises = Noises(
        kind=mechanism.kind,
        threshold_scale=mechanism.threshold_scale,
        query_scale=mechanism.query_scale,
    )
    return np.exp(log_law(noises, values))


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_the_search_stops_with_its_exact_law(kind):
    """Bounds differ by query: each is compared in units of its own."""
    values, bounds = [-3.0, 1.0, -1.0, 2.5, -4.0], [1.0, 8.0, 0.25, 1e-3, 1.0]
    mechanism = AboveThreshold(
        kind=kind, threshold_scale=3.0, query_scale=2.0, max_queries=5
    )
    queries = [level(v, b) for v, b in zip(values, bounds, strict=True)]
    observed = stops(mechanism, queries, 4000)
    assert p_value(observed, exact_law(mechanism, values)) > ACCEPT
    for threshold, query in ((3.0, 3.0), (2.0, 2.0), (4.5, 2.0)):
        wrong = AboveThreshold(
            kind=kind, threshold_scale=threshold, query_scale=query, max_queries=5
        )
        assert p_value(observed, exact_law(wrong, values)) < REJECT
    # A threshold drawn again for each query would make the comparisons independent.
    passing = np.array([exact_law(mechanism, [v])[0] for v in values])
    going_on = np.cumprod(np.concatenate([[1.0], 1 - passing]))
    independent = going_on * np.concatenate([passing, [1.0]])
    assert p_value(observed, independent) < REJECT


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_a_long_search_has_fresh_noise_for_every_query(kind):
    mechanism = AboveThreshold(
        kind=kind, threshold_scale=0.5, query_scale=1.0, max_queries=100
    )
    value = {"laplace": -4.0, "gaussian": -2.3}[kind]
    cuts = [0, 16, 32, 48, 64, 80, 100, 101]
    observed = np.zeros(101)
    counts = stops(mechanism, [level(value)] * 100, 1500)
    observed[: counts.size] = counts
    law = exact_law(mechanism, [value] * 100)
    lumped = [np.add.reduceat(array, cuts[:-1]) for array in (observed, law)]
    assert p_value(*lumped) > ACCEPT


def test_the_bound_is_the_unit_of_each_comparison():
    """Scaled by powers of two, nothing is rounded: every decision is the same."""
    mechanism = AboveThreshold(
        kind="laplace", threshold_scale=2.0, query_scale=2.0, max_queries=4
    )
    values = [-2.0, 0.5, -1.0, 1.5]
    plain = stops(mechanism, [level(v) for v in values], 300)
    scaled = [level(v, 2.0**b) for v, b in zip(values, (-9, 3, 0, 12), strict=True)]
    assert stops(mechanism, scaled, 300).tolist() == plain.tolist()


def counted(values: Iterator[float], evaluated: list[int]) -> Iterator[BoundedQuery]:
    """Yield queries that write down when they are evaluated."""
    for index, value in enumerate(values):

        def contributions(rows: Rows, index: int = index) -> np.ndarray:
            evaluated.append(index)
            return np.zeros(rows.size)

        yield BoundedQuery(contributions=contributions, bound=1.0, offset=value)


def test_candidates_that_are_not_reached_are_not_evaluated():
    evaluated: list[int] = []
    values = itertools.chain([-1e7] * 3, [1e7], [-1e7] * 5)
    queries = counted(values, evaluated)
    mechanism = AboveThreshold.laplace(1.0)
    assert opened(mechanism).first_above(queries, mechanism) == 3
    assert evaluated == [0, 1, 2, 3]
    assert len(list(queries)) == 5


@pytest.mark.parametrize("cap", [1, 31, 32, 33, 70])
def test_the_cap_ends_an_endless_search(cap):
    evaluated: list[int] = []
    mechanism = AboveThreshold.gaussian(0.5, cap)
    queries = counted(itertools.repeat(-1e7), evaluated)
    assert opened(mechanism).first_above(queries, mechanism) is None
    assert evaluated == list(range(cap))
    assert opened(mechanism).first_above([], mechanism) is None


def test_the_chosen_candidate_has_the_exponential_mechanisms_law():
    mechanism = ExponentialMechanism(1.5, sensitivity=2.0)
    scores = np.array([[1.0, 0.2, -1.0, 0.0], [1.2, -0.4, -0.5, 0.0]])
    data = seeded(scores, seed=3)
    plan = BatchPlan(mechanisms=(mechanism,))
    query = features(1.25)
    picks = [data.open(plan).noisy_argmax(query, mechanism) for _ in range(4000)]
    observed = np.bincount(picks, minlength=4)

    def law(epsilon: float) -> np.ndarray:
        weights = np.exp(epsilon * scores.sum(axis=0) / (2 * mechanism.sensitivity))
        return weights / weights.sum()

    assert p_value(observed, law(1.5)) > ACCEPT
    for factor in (2 / 3, 3 / 2, 2.0):
        assert p_value(observed, law(1.5 * factor)) < REJECT


def test_scores_beyond_the_bound_are_clipped_before_the_choice():
    mechanism = ExponentialMechanism(2.0)
    scores = np.array([[1e9, 0.0], [math.nan, math.inf]])
    query = BoundedQuery(contributions=lambda rows: scores, bound=1.0)
    data, plan = seeded(np.zeros((2, 2)), seed=4), BatchPlan(mechanisms=(mechanism,))
    picks = [data.open(plan).noisy_argmax(query, mechanism) for _ in range(400)]
    # Both candidates have the score 1: an even choice.
    assert stats.binomtest(sum(picks), 400).pvalue > ACCEPT


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_a_search_without_noise_compares_exactly_and_no_budget_pays_it(kind):
    silent = AboveThreshold(
        kind=kind, threshold_scale=0.0, query_scale=0.0, max_queries=3
    )
    below, above = level(-1e-9), level(1e-9)
    for queries, stop in (
        ([below, above], 1),
        ([above, below], 0),
        ([below] * 3 + [above], None),
    ):
        assert opened(silent).first_above(queries, silent) == stop
    for sampling_prob in (0.5, 1.0):
        with pytest.raises(BudgetExceeded):
            PrivacyFilter(BUDGET).charge(Subsampled(silent, sampling_prob))


def test_a_certified_sum_gets_noise_on_its_own_lattice():
    """Float64 or int64, also near the ends of int64, where sums wrap around."""
    asked = []

    def integers(bits):
        asked.append(bits)
        return torch.full((5000,), 2**bits, dtype=torch.int64)

    summed = CertifiedSum(integers, plain=lambda: torch.zeros(1), dtype=torch.float64)
    query = BoundedQuery(contributions=lambda rows: summed, bound=1.0)
    noisy = opened(GRADIENT).noisy_vector(query, GRADIENT)
    assert asked == [certified.release_bits(GRADIENT.noise_scale)]
    steps = noisy * 2.0 ** asked[0]
    assert torch.equal(steps, steps.round())
    scale = GRADIENT.noise_scale * (1 + certified.SLACK)
    assert float(noisy.mean()) == pytest.approx(1.0, abs=5 * scale / 5000**0.5)
    assert float(noisy.std()) == pytest.approx(scale, rel=0.06)
