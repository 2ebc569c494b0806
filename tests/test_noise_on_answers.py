# SPDX-License-Identifier: Apache-2.0
"""Noise on an answer: its law, its lattice, and the room for rounding."""

import math

import numpy as np
import pytest
from scipy import stats

from armijo._noise.vectors import with_gaussian
from tests.seeded_bits import SeededBits


def test_law():
    answer = np.linspace(-2, 2, 20_000)
    noisy = with_gaussian(answer, sensitivity=0.1, noise_scale=0.3, bits=SeededBits(1))
    law = stats.norm(scale=0.3)
    assert stats.kstest(noisy - answer, law.cdf).pvalue > 1e-4


@pytest.mark.parametrize("noise_scale", [1e-6, 0.3, 50.0])
def test_everything_is_on_a_lattice_that_only_the_noise_decides(noise_scale):
    step = noise_scale / 2**26
    noisy = with_gaussian(
        np.array([math.pi, -1e-9]),
        sensitivity=1,
        noise_scale=noise_scale,
        bits=SeededBits(2),
    )
    multiples = noisy / step
    np.testing.assert_allclose(multiples, np.rint(multiples), rtol=1e-15, atol=0)


def test_noise_is_raised_where_rounding_moves_more_than_the_answer():
    """Sensitivity of one lattice step, 10,000 coordinates: 101 times the noise."""
    tiny = with_gaussian(
        np.zeros(10_000), sensitivity=2.0**-26, noise_scale=1.0, bits=SeededBits(3)
    )
    assert tiny.std() == pytest.approx(101, rel=0.05)


def test_no_noise_leaves_the_answer():
    answer = np.array([math.pi])
    found = with_gaussian(answer, sensitivity=1, noise_scale=0, bits=SeededBits(0))
    np.testing.assert_array_equal(found, answer)
