# SPDX-License-Identifier: Apache-2.0
"""Bounds from counts: exact cases, and coverage that a wrong bound does not have."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from armijo.accounting.budget import Budget
from armijo.accounting.calibration import gaussian_noise
from armijo.accounting.mechanisms import gaussian_delta
from armijo.audit.bounds import (
    Counts,
    epsilon_of_test,
    gaussian_epsilon,
    lower_rate,
    mu_of_test,
    upper_rate,
)

MISS = st.floats(1e-6, 0.3)


class TestRates:
    @given(trials=st.integers(1, 400), share=st.floats(0, 1), miss=MISS)
    def test_the_bounds_have_exactly_the_chance_to_miss(self, trials, share, miss):
        """Clopper and Pearson by their definition, as tails of the binomial law."""
        hits = round(share * trials)
        low, high = lower_rate(hits, trials, miss), upper_rate(hits, trials, miss)
        assert 0 <= low <= hits / trials <= high <= 1
        if hits > 0:
            tail = stats.binom.sf(hits - 1, trials, low)
            assert tail == pytest.approx(miss, rel=1e-6)
        if hits < trials:
            tail = stats.binom.cdf(hits, trials, high)
            assert tail == pytest.approx(miss, rel=1e-6)

    @pytest.mark.parametrize(("hits", "trials"), [(0, 9), (3, 40), (200, 201), (7, 7)])
    def test_agrees_with_scipy(self, hits, trials):
        known = stats.binomtest(hits, trials).proportion_ci(0.95, method="exact")
        assert lower_rate(hits, trials, 0.025) == pytest.approx(known.low, abs=1e-12)
        assert upper_rate(hits, trials, 0.025) == pytest.approx(known.high, abs=1e-12)


class TestExactCases:
    @given(epsilon=st.floats(0, 15))
    def test_randomized_response_has_its_own_epsilon(self, epsilon):
        right = 1 / (1 + math.exp(-epsilon))
        assert epsilon_of_test(right, 1 - right, 0.0) == pytest.approx(epsilon)

    @given(epsilon=st.floats(0.1, 5), delta=st.floats(0.001, 0.3))
    def test_the_worst_mechanism_reaches_its_epsilon_at_delta(self, epsilon, delta):
        """Kairouz, Oh and Viswanath: with delta the truth, else randomized response."""
        right = delta + (1 - delta) / (1 + math.exp(-epsilon))
        wrong = (1 - delta) / (1 + math.exp(epsilon))
        assert epsilon_of_test(right, wrong, delta) == pytest.approx(epsilon)

    @pytest.mark.parametrize("budget", [(1.0, 1e-5), (2.0, 0.05), (4.0, 0.01)])
    def test_the_best_test_of_a_gaussian_finds_its_epsilon_and_no_more(self, budget):
        epsilon, delta = budget
        mu = 1 / gaussian_noise(Budget(epsilon=epsilon, delta=delta))
        places = np.linspace(-8, 12, 20001)
        rates = stats.norm.sf(places - mu), stats.norm.sf(places)
        assert np.max(epsilon_of_test(*rates, delta)) == pytest.approx(epsilon, 1e-4)
        assert np.max(epsilon_of_test(*rates, delta)) <= epsilon * (1 + 1e-9)

    @given(mu=st.floats(0.1, 4), place=st.floats(-2, 4))
    def test_every_threshold_of_a_gaussian_says_its_mu(self, mu, place):
        """Up to six deviations: a rate closer to one has too few digits left."""
        rates = stats.norm.sf(place - mu), stats.norm.sf(place)
        assert mu_of_test(*rates) == pytest.approx(mu, rel=1e-6)

    @given(mu=st.floats(0.05, 8), delta=st.floats(1e-9, 0.3))
    def test_epsilon_of_mu_inverts_the_exact_profile(self, mu, delta):
        epsilon = gaussian_epsilon(mu, delta)
        if epsilon == 0:
            assert gaussian_delta(0.0, 1 / mu) <= delta
        else:
            assert gaussian_delta(epsilon, 1 / mu) == pytest.approx(delta, rel=1e-6)

    def test_what_tells_nothing_is_worth_nothing(self):
        counts = Counts(
            true_positives=50, positives=100, false_positives=50, negatives=100
        )
        assert counts.epsilon(0.0, 0.95) == 0
        assert counts.gaussian_epsilon(1e-5, 0.95) == 0
        assert epsilon_of_test(0.0, 1.0, 0.0) == -np.inf
        assert mu_of_test(0.0, 0.0) == -np.inf

    @given(hits=st.integers(60, 100), false=st.integers(0, 40), delta=st.floats(0, 0.1))
    def test_more_confidence_or_delta_never_helps(self, hits, false, delta):
        counts = Counts(
            true_positives=hits, positives=100, false_positives=false, negatives=100
        )
        assert counts.epsilon(delta, 0.99) <= counts.epsilon(delta, 0.9)
        assert counts.epsilon(delta + 0.01, 0.9) <= counts.epsilon(delta, 0.9)

    def test_impossible_counts_are_refused(self):
        with pytest.raises(ValueError, match="no more hits than trials"):
            Counts(true_positives=3, positives=2, false_positives=0, negatives=2)


TRIALS, AUDITS, CONFIDENCE = 150, 2000, 0.9


def counted(rates, seed=5):
    """Return the counts of many simulated audits of a test with known rates."""
    rng = np.random.default_rng(seed)
    hits = rng.binomial(TRIALS, rates[0], AUDITS)
    false = rng.binomial(TRIALS, rates[1], AUDITS)
    return hits, false


def misses(bounds, truth):
    """Return how often a lower bound lies above the truth."""
    return float(np.mean(np.asarray(bounds) > truth))


class TestCoverage:
    """A sound bound exceeds the truth with chance 1 - confidence at most.

    Of 2000 audits at most 10 % may exceed; 12 % would be three standard deviations
    above that.
    """

    LARGEST = 1 - CONFIDENCE + 3 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / AUDITS)

    @pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
    def test_any_mechanism(self, epsilon):
        right = 1 / (1 + math.exp(-epsilon))
        hits, false = counted((right, 1 - right))
        miss = (1 - CONFIDENCE) / 2
        rates = lower_rate(hits, TRIALS, miss), upper_rate(false, TRIALS, miss)
        assert misses(epsilon_of_test(*rates, 0.0), epsilon) <= self.LARGEST
        # Frequencies in place of bounds: what an unsound audit would report.
        naive = epsilon_of_test(hits / TRIALS, false / TRIALS, 0.0)
        assert misses(naive, epsilon) > 3 * self.LARGEST

    @pytest.mark.parametrize("place", [0.0, 1.0])
    def test_gaussian_mechanism(self, place):
        mu, delta = 1.0, 1e-5
        truth = gaussian_epsilon(mu, delta)
        hits, false = counted((stats.norm.sf(place - mu), stats.norm.sf(place)))
        miss = (1 - CONFIDENCE) / 2
        found = mu_of_test(
            lower_rate(hits, TRIALS, miss), upper_rate(false, TRIALS, miss)
        )
        assert misses(found, mu) <= self.LARGEST
        assert misses(mu_of_test(hits / TRIALS, false / TRIALS), mu) > 3 * self.LARGEST
        assert gaussian_epsilon(float(np.median(found)), delta) > 0.4 * truth

    def test_the_gaussian_bound_means_nothing_for_another_mechanism(self):
        """Randomized response at a claimed delta: the label is there for a reason."""
        epsilon, trials = 1.0, 20_000
        right = 1 / (1 + math.exp(-epsilon))
        counts = Counts(
            true_positives=round(trials * right),
            positives=trials,
            false_positives=round(trials * (1 - right)),
            negatives=trials,
        )
        assert counts.epsilon(1e-5, 0.95) <= epsilon
        assert counts.gaussian_epsilon(1e-5, 0.95) > 3 * epsilon

    def test_both_rates_are_bounded_together(self):
        """Half of the allowed chance each: the pair holds, a whole one would not."""
        rates = (0.7, 0.2)
        hits, false = counted(rates)

        def outside(miss):
            low, high = lower_rate(hits, TRIALS, miss), upper_rate(false, TRIALS, miss)
            return float(np.mean((low > rates[0]) | (high < rates[1])))

        assert outside((1 - CONFIDENCE) / 2) <= self.LARGEST
        assert outside(1 - CONFIDENCE) > self.LARGEST

    def test_more_trials_come_nearer_to_the_truth(self):
        epsilon = 1.0
        right = 1 / (1 + math.exp(-epsilon))
        found = [
            Counts(
                true_positives=round(n * right),
                positives=n,
                false_positives=round(n * (1 - right)),
                negatives=n,
            ).epsilon(0.0, 0.95)
            for n in (50, 500, 5000, 500_000)
        ]
        assert found == sorted(found)
        assert 0.99 * epsilon < found[-1] < epsilon
