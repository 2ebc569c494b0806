# SPDX-License-Identifier: Apache-2.0
"""The quadrature oracle is right, and it refutes the printed Theorem 3."""

import math
from itertools import product

import mpmath
import numpy as np
import pytest
from scipy import stats

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.paper import theorem3
from tests.accounting.exact_divergence import (
    FloatArray,
    Noises,
    divergence_gradient,
    divergences,
    drifting_signs,
    log_law,
    threshold_nodes,
)
from tests.marks import thinned


def paper_gaussian(rho: float) -> Noises:
    """Scales the paper takes for zCDP budget ``rho``."""
    return Noises(
        kind="gaussian",
        threshold_scale=math.sqrt(1.5 / rho),
        query_scale=math.sqrt(3.0 / rho),
    )


def test_hand_computed_law_without_threshold_noise():
    noises = Noises(kind="laplace", threshold_scale=0.0, query_scale=1.0)
    law = np.exp(log_law(noises, [0.0, -math.log(2.0)]))
    np.testing.assert_allclose(law, [0.5, 0.125, 0.375], rtol=1e-15)


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("threshold_scale", [0.0, 3.0])
def test_law_agrees_with_simulation(kind, threshold_scale):
    noises = Noises(kind=kind, threshold_scale=threshold_scale, query_scale=4.0)
    queries = np.array([-1.0, -3.0, 0.5, -2.0])
    rng = np.random.default_rng(20)
    draw = rng.laplace if kind == "laplace" else rng.normal
    trials = 400_000
    threshold = draw(0.0, threshold_scale, (trials, 1))
    passes = queries + draw(0.0, 4.0, (trials, 4)) >= threshold
    outcome = np.where(passes.any(axis=1), passes.argmax(axis=1), 4)
    counts = np.bincount(outcome, minlength=5)
    law = np.exp(log_law(noises, queries))
    assert stats.chisquare(counts, trials * law).pvalue > 1e-3
    # A law with the query noise 3 % too wide would not pass the same test.
    wrong = Noises(kind=kind, threshold_scale=threshold_scale, query_scale=4.12)
    expected = trials * np.exp(log_law(wrong, queries))
    assert stats.chisquare(counts, expected).pvalue < 1e-3


def multiprecision_law(noises: Noises, queries: list[float]) -> list[mpmath.mpf]:
    """Integrate the same law with 40 digits, for a handful of queries."""
    a, b = mpmath.mpf(noises.threshold_scale), mpmath.mpf(noises.query_scale)

    def below(x):
        if noises.kind == "gaussian":
            return mpmath.ncdf(x / b)
        tail = mpmath.exp(-abs(x) / b) / 2
        return tail if x < 0 else 1 - tail

    def density(z):
        if noises.kind == "gaussian":
            return mpmath.npdf(z, 0, a)
        return mpmath.exp(-abs(z) / a) / (2 * a)

    def mass(z, stop):
        product = density(z)
        for query in queries[:stop]:
            product *= below(z - query)
        return product * (below(queries[stop] - z) if stop < len(queries) else 1)

    kinks = sorted({0.0, *queries})
    pad = 15 * noises.threshold_scale * np.arange(1.0, 9.0)
    edges = [*(kinks[0] - pad[::-1]), *kinks, *(kinks[-1] + pad)]
    with mpmath.workdps(40):
        return [
            mpmath.quad(lambda z, k=k: mass(z, k), edges)
            for k in range(len(queries) + 1)
        ]


@pytest.mark.parametrize(
    ("kind", "queries"),
    [("laplace", [-70.0, 40.0, 45.0]), ("gaussian", [-19.0, 9.0, 12.0])],
)
def test_improbable_outcomes_are_exact_too(kind, queries):
    # High orders weigh outcomes of probability 1e-20 and less: they need all digits.
    noises = Noises(kind=kind, threshold_scale=1.5, query_scale=1.0)
    law = log_law(noises, queries)
    expected = [float(mpmath.log(p)) for p in multiprecision_law(noises, queries)]
    assert min(expected) < -46
    np.testing.assert_allclose(law, expected, rtol=1e-13, atol=1e-13)


def random_run(rng: np.random.Generator, count: int) -> tuple[FloatArray, FloatArray]:
    """Draw levels in query scales and shifts, from a palette of a dozen pairs."""
    palette = rng.uniform(-6.0, 6.0, 12) * rng.choice([0.1, 0.5, 1.0])
    pick = rng.integers(12, size=count)
    return palette[pick], rng.uniform(-1.0, 1.0, 12)[pick]


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_divergence_does_not_depend_on_the_grid(kind):
    rng = np.random.default_rng(8)
    for count in (1, 3, 17, 120, 700):
        query_scale = 10.0 ** rng.uniform(-0.3, 1.5)
        noises = Noises(
            kind=kind,
            threshold_scale=query_scale * 10.0 ** rng.uniform(-0.7, 0.7),
            query_scale=query_scale,
        )
        levels, shifts = random_run(rng, count)
        queries = levels * query_scale
        runs = [
            divergences(noises, queries, queries + shifts, [1.5, 8, 64, 512], fineness)
            for fineness in (1.0, 2.3)
        ]
        np.testing.assert_allclose(runs[0], runs[1], rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize(
    ("kind", "order", "threshold_scale"),
    thinned(product(["laplace", "gaussian"], [1.5, 8.0, 64.0], [0.0, 2.5]), 5),
)
def test_gradient_agrees_with_finite_differences(kind, order, threshold_scale):
    noises = Noises(kind=kind, threshold_scale=threshold_scale, query_scale=3.0)
    rng = np.random.default_rng(5)
    queries = rng.uniform(-4.0, 2.0, 9)
    neighbor = queries + rng.uniform(-1.0, 1.0, 9)
    # The grid has kinks at the queries, so it stays put while they are moved.
    nodes = threshold_nodes(noises, queries, neighbor, fineness=6.0)

    def value(both):
        return divergence_gradient(noises, both[:9], both[9:], order, nodes)[0]

    both = np.concatenate([queries, neighbor])
    _, *gradients = divergence_gradient(noises, queries, neighbor, order, nodes)
    # Central differences: the one-sided ones of scipy lose half the digits.
    steps = 1e-4 * np.eye(18)
    numeric = [(value(both + s) - value(both - s)) / 2e-4 for s in steps]
    found = np.concatenate(gradients)
    scale = float(np.max(np.abs(found)))
    np.testing.assert_allclose(found, numeric, rtol=0, atol=1e-6 * scale)


def test_lost_mass_is_reported(monkeypatch):
    noises = paper_gaussian(0.05)
    truncated = threshold_nodes(noises, [0.0])
    half = type(truncated)(*(part[: len(part) // 2] for part in truncated))
    monkeypatch.setattr(
        "tests.accounting.exact_divergence.threshold_nodes", lambda *_, **__: half
    )
    with pytest.raises(ArithmeticError, match="miss one by"):
        divergences(noises, [0.0], [1.0], [2])


def assert_covers(claimed: float, exact: float) -> None:
    """Fail if a claimed curve is below a divergence that two neighbors reach."""
    assert claimed >= exact, f"claimed {claimed:.10f} < reached {exact:.10f}"


BLOCKS = np.where(np.arange(1000) < 500, 1.0, -1.0)
ALTERNATING = np.where(np.arange(1000) % 2 == 0, 1.0, -1.0)

COUNTEREXAMPLES = [
    pytest.param(0.05, 8, drifting_signs(1000), 0.4689321582, id="drift-1000"),
    pytest.param(0.05, 10, (np.full(1000, -2.25), BLOCKS), 0.5373150924, id="blocks"),
    pytest.param(0.5, 2, (np.full(1000, -2.5), ALTERNATING), 1.0050425995, id="parity"),
    pytest.param(
        0.05,
        8,
        drifting_signs(10_000),
        0.5812053319,
        id="drift-10000",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("rho", "order", "run", "published"), COUNTEREXAMPLES)
def test_printed_theorem_3_is_refuted_and_ours_is_not(rho, order, run, published):
    noises = paper_gaussian(rho)
    levels, shifts = run
    queries = levels * noises.query_scale
    forward, _ = divergences(noises, queries, queries + shifts, [order])
    exact = float(forward[0])
    assert exact == pytest.approx(published, abs=6e-11)

    orders = np.array([float(order)])
    shipped = AboveThreshold.gaussian(rho, max_queries=len(levels))
    assert_covers(float(shipped.rdp(orders)[0]), exact)
    printed = theorem3(orders, noises.threshold_scale, noises.query_scale)
    assert float(printed[0]) == pytest.approx(order * rho, rel=1e-12)
    with pytest.raises(AssertionError, match=r"claimed .* < reached"):
        assert_covers(float(printed[0]), exact)
