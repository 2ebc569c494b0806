# SPDX-License-Identifier: Apache-2.0
"""Laws of random vectors and orders."""

import math
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from armijo._noise.vectors import gaussian_vector, radial_vector, random_order
from tests.seeded_bits import SeededBits

# Each law is tested once at a fixed seed; a wrong law fails by far more than this.
LEAST_P = 1e-4


class RepeatingBits:
    """Gives the same word twice at first, then counts."""

    def __init__(self):
        self.calls = 0

    def uint64(self, n):
        self.calls += 1
        words = np.arange(n, dtype=np.uint64)
        if self.calls == 1:
            words[:] = 7
        return words[::-1].copy()


def test_gaussian_coordinates():
    draws = gaussian_vector(3.0, 20_000, SeededBits(1))
    assert stats.kstest(draws, stats.norm(scale=3.0).cdf).pvalue > LEAST_P


@pytest.mark.parametrize("size", [1, 4])
def test_radial_norm_is_gamma_and_direction_is_symmetric(size):
    bits = SeededBits(2)
    draws = np.array([radial_vector(0.5, size, bits) for _ in range(4000)])
    norms = np.linalg.norm(draws, axis=1)
    law = stats.gamma(size, scale=0.5)
    assert stats.kstest(norms, law.cdf).pvalue > LEAST_P
    directions = draws / norms[:, None]
    assert np.abs(directions.mean(axis=0)).max() < 5 / math.sqrt(4000)
    second = directions.T @ directions / 4000
    assert np.abs(second - np.eye(size) / size).max() < 5 / math.sqrt(4000)


def test_every_order_is_equally_likely():
    bits = SeededBits(3)
    found = [tuple(random_order(3, bits).tolist()) for _ in range(6000)]
    counts = [found.count(order) for order in permutations(range(3))]
    assert sum(counts) == 6000
    assert stats.chisquare(counts).pvalue > LEAST_P


def test_words_that_stand_twice_are_drawn_again():
    bits = RepeatingBits()
    assert random_order(4, bits).tolist() == [3, 2, 1, 0]
    assert bits.calls == 2


def test_nothing_to_order_and_no_noise():
    assert random_order(0, SeededBits(0)).size == 0
    assert not gaussian_vector(0.0, 3, SeededBits(0)).any()


@pytest.mark.parametrize("draw", [gaussian_vector, radial_vector])
def test_a_negative_scale_is_refused(draw):
    with pytest.raises(ValueError, match="scale >= 0"):
        draw(-1.0, 3, SeededBits(0))
