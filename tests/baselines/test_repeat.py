# SPDX-License-Identifier: Apache-2.0
"""How often a run is repeated, and that the best of them is kept."""

import math

import numpy as np
import pytest
from scipy.stats import chisquare

from armijo.accounting.mechanisms import Gaussian, RepeatAndSelect
from armijo.baselines.tuned import best_run, stopping_probability
from tests.seeded_bits import SeededBits

BASE = Gaussian(noise_scale=5.0)


class Runs:
    """Runs with given scores, over and over; the result is the number of the run."""

    def __init__(self, *scores):
        self.scores, self.made = scores, 0

    def __call__(self):
        self.made += 1
        return self.scores[(self.made - 1) % len(self.scores)], self.made


@pytest.mark.parametrize("mean", [1.5, 4.0, 10.0])
def test_the_number_of_runs_is_geometric(mean):
    bits, mechanism, draws = SeededBits(11), RepeatAndSelect(BASE, mean=mean), 4000
    counts = []
    for _ in range(draws):
        runs = Runs(0.0)
        best_run(runs, mechanism, bits)
        counts.append(runs.made)
    assert np.mean(counts) == pytest.approx(mean, rel=0.08)
    top = max(2, int(2 * mean))
    law = [(1 - 1 / mean) ** (k - 1) / mean for k in range(1, top)]
    seen = [counts.count(k) for k in range(1, top)]
    law, seen = [*law, 1 - sum(law)], [*seen, draws - sum(seen)]
    assert chisquare(seen, np.array(law) * draws).pvalue > 1e-4


@pytest.mark.parametrize("mean", [1.0 + 1e-9, 1.1, 3.0, 7.3, 10.0, 1e6])
def test_the_chance_never_undercuts_what_was_charged(mean):
    mechanism = RepeatAndSelect(BASE, mean=mean)
    chance = stopping_probability(mechanism)
    assert 1 / chance <= mean
    assert -math.log(chance) <= -math.log(mechanism.stop_probability)
    assert chance == pytest.approx(1 / mean, rel=1e-9)


def test_the_highest_score_wins_and_the_first_of_equals():
    mechanism, bits = RepeatAndSelect(BASE, mean=50.0), SeededBits(3)
    seen = set()
    for _ in range(300):
        runs = Runs(1.0, 3.0, -2.0, 5.0, 5.0, 4.0)
        kept = best_run(runs, mechanism, bits)
        expected = {1: 1, 2: 2, 3: 2}.get(runs.made, 4)
        assert kept == expected
        seen.add(kept)
    assert seen == {1, 2, 4}
