# SPDX-License-Identifier: Apache-2.0
"""The gate answers with the laws that were promised.

Statistical tests use fixed seeds; right laws must have a p-value above 1e-4, wrong ones
a p-value below 1e-9.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from scipy import stats

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import PrivacyFilter
from armijo.accounting.mechanisms import ExponentialMechanism, Gaussian, Subsampled
from armijo.data import certified
from armijo.data.gate import BatchPlan
from armijo.data.query import BoundedQuery, CertifiedSum, Rows
from armijo.errors import BudgetExceeded
from tests.accounting.exact_divergence import Noises, log_law
from tests.data.gate_doubles import (
    BUDGET,
    GRADIENT,
    PERTURBATION,
    X3,
    features,
    level,
    opened,
    seeded,
    steps_of,
)

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
