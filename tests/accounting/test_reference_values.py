# SPDX-License-Identifier: Apache-2.0
"""Every row of the table of reference values, to the digits that it gives."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import (
    best_order,
    line_search_budget,
    noise_multiplier_for,
    rdp_limit,
    rdp_to_epsilon,
    step_mechanism,
)
from armijo.accounting.mechanisms import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    PureDP,
    Subsampled,
    knots,
    poisson_rdp,
)
from armijo.accounting.paper import (
    lemma_pss,
    proposition1,
    proposition1_limit,
    theorem2,
    theorem3,
)
from tests.accounting.accounts import Laplace
from tests.accounting.exact_divergence import FloatArray, Noises, divergences, log_law

Row = dict[str, Any]

ROWS: list[Row] = [
    json.loads(line)
    for line in Path(__file__)
    .with_name("reference_values.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]

# Twelve digits are given: half a unit of the last one, and a little for rounding.
TWELVE_DIGITS = 5.1e-12
# The rows are before this factor, which the curves of AboveThreshold carry.
SAFETY = 1 + 1e-6


def rows(name: str) -> pytest.MarkDecorator:
    """Parametrize a test with the rows of one name."""
    chosen = [row for row in ROWS if row["name"] == name]
    keys = ("alpha", "eps", "eps_bt", "rho", "rho_grad", "m", "q", "steps", "kind")
    labels = ["-".join(str(row[key]) for key in keys if key in row) for row in chosen]
    return pytest.mark.parametrize("row", chosen, ids=labels)


def digits(value: float) -> object:
    """Compare to all digits given."""
    # The table itself lost a digit or two where its formula cancels (1e-7 and below).
    return pytest.approx(value, rel=max(TWELVE_DIGITS, 5e-11), abs=0.0)


def at(mechanism: Any, order: float) -> float:
    """The curve of a mechanism at one order."""
    return float(mechanism.rdp(np.array([float(order)]))[0])


def printed(formula: Any, order: float, *settings: float) -> float:
    """A printed curve at one order."""
    return float(formula(np.array([float(order)]), *settings)[0])


def test_no_row_is_left_out():
    assert Counter(row["name"] for row in ROWS) == {
        "laplace_rdp": 5,
        "pure_dp_rdp": 5,
        "bounded_range_rdp": 5,
        "laplace_above_threshold": 20,
        "gaussian_above_threshold": 64,
        "exact_law": 4,
        "poisson_amplify": 9,
        "order_for_linear_costs": 7,
        "steps_paper_settings": 6,
        "calibrated": 10,
    }


@rows("laplace_rdp")
def test_laplace(row):
    assert at(Laplace(row["eps"]), row["alpha"]) == digits(row["value"])


@rows("pure_dp_rdp")
def test_pure_dp(row):
    assert at(PureDP(row["eps"]), row["alpha"]) == digits(row["value"])


@rows("bounded_range_rdp")
def test_bounded_range(row):
    found = at(ExponentialMechanism(row["eps"]), row["alpha"])
    # The table has the maximum over 4001 points, which is a little too small.
    assert found == pytest.approx(row["value"], rel=1e-7)
    assert found >= row["value"] * (1 - TWELVE_DIGITS)


@rows("laplace_above_threshold")
def test_laplace_above_threshold(row):
    epsilon, order = row["eps_bt"], row["alpha"]
    found = at(AboveThreshold.laplace(epsilon), order)
    assert found / SAFETY == pytest.approx(row["valid_bound"], rel=1e-9)
    twice = printed(theorem2, order, epsilon / 2, epsilon / 4)
    lost = 2e-17  # of the digits of the table, where its formula cancels
    assert twice == pytest.approx(row["printed_theorem2"], rel=5.1e-12, abs=lost)
    assert at(PureDP(epsilon), order) == digits(row["pure_dp"])
    threshold = at(Laplace(epsilon / 2), order)
    assert threshold + epsilon / 2 == digits(row["zhu_wang"])
    assert at(Gaussian(noise_scale=1 / epsilon), order) == digits(row["bun_steinke"])


@rows("gaussian_above_threshold")
def test_gaussian_above_threshold(row):
    rho, order, cap = row["rho"], row["alpha"], row["m"]
    mechanism = AboveThreshold.gaussian(rho, cap)
    found = at(mechanism, order) / SAFETY
    assert found == pytest.approx(row["valid_bound"], rel=1e-9)
    scales = (mechanism.threshold_scale, mechanism.query_scale)
    claimed = printed(theorem3, order, *scales)
    assert claimed == digits(row["printed_theorem3"])
    assert claimed + math.log1p(cap) / (order - 1) == digits(row["zhu_wang"])


@rows("exact_law")
def test_exact_law(row):
    scales = {"laplace": (2.0, 4.0), "gaussian": (math.sqrt(30), math.sqrt(60))}
    threshold, query = scales[row["kind"]]  # the table rounds them to twelve digits
    assert (row["threshold_scale"], row["query_scale"]) == (
        digits(threshold),
        digits(query),
    )
    noises = Noises(kind=row["kind"], threshold_scale=threshold, query_scale=query)
    queries = np.array(row["q"])
    law = np.exp(log_law(noises, queries))
    forward, reverse = divergences(noises, queries, queries + row["shift"], [2, 8, 64])
    found = [law[0], law[-1], *forward, reverse[0]]
    expected = [row[k] for k in ("P_first", "P_fail", "D2", "D8", "D64", "D2_rev")]
    np.testing.assert_allclose(found, expected, rtol=TWELVE_DIGITS)


def integer_orders(curve: Any, top: int) -> FloatArray:
    """A curve at all orders 0..top; the first two are not used."""
    values = np.zeros(top + 1)
    values[2:] = curve(np.arange(2.0, top + 1.0))
    return values


@rows("poisson_amplify")
def test_poisson_amplification(row):
    order, sampling_prob = row["alpha"], row["q"]
    gradient = Gaussian.from_rho(row["rho_grad"])
    # The table was made with sqrt(2 rho), of which it shows twelve digits.
    epsilon = math.sqrt(2 * row["rho_grad"])
    alone = integer_orders(gradient.rdp, order)
    search = integer_orders(AboveThreshold.laplace(epsilon).rdp, order) / SAFETY
    assert at(Subsampled(gradient, sampling_prob), order) == digits(
        row["gaussian_only"]
    )
    assert poisson_rdp(order, sampling_prob, alone + search) == pytest.approx(
        row["joint_with_at"], rel=1e-9
    )
    with_pure = Composed((gradient, PureDP(epsilon)))
    assert at(Subsampled(with_pure, sampling_prob), order) == digits(
        row["joint_with_pure_dp"]
    )
    # A sum near one is printed as its logarithm: the absolute error is that of one.
    assert lemma_pss(order, sampling_prob, alone) == pytest.approx(
        row["printed_lemma_gaussian"], rel=TWELVE_DIGITS, abs=1e-15
    )


@rows("poisson_amplify")
def test_joint_step_costs_what_the_table_says(row):
    search = AboveThreshold.laplace(math.sqrt(2 * row["rho_grad"]))
    step = Subsampled(Composed((Gaussian.from_rho(row["rho_grad"]), search)), row["q"])
    found = at(step, row["alpha"])
    # The safety factor is on a part of the cost only, and grows through exponentials.
    assert row["joint_with_at"] < found < row["joint_with_at"] * (1 + 5e-6)


@rows("order_for_linear_costs")
def test_order_for_linear_costs(row):
    budget = Budget(epsilon=row["eps"], delta=row["delta"])
    assert best_order(budget) == row["alpha"]
    assert float(rdp_limit(row["alpha"], budget)) == digits(row["budget"])
    orders = np.arange(2.0, 3000.0)
    affordable = proposition1_limit(orders, budget) / orders
    assert orders[np.argmax(affordable)] == row["printed_alpha"]
    limit = proposition1_limit(np.array(float(row["printed_alpha"])), budget)
    assert float(limit) == digits(row["printed_budget"])


def chords(points: FloatArray, values: FloatArray, top: int) -> FloatArray:
    """A curve at all orders 0..top, (a-1) times it linear between the points."""
    return integer_orders(
        lambda orders: np.interp(orders, points, (points - 1) * values) / (orders - 1),
        top,
    )


@rows("steps_paper_settings")
def test_steps_that_fit_at_the_paper_settings(row):
    budget = Budget(epsilon=row["eps"], delta=1e-8)
    order, limit = row["alpha"], float(rdp_limit(row["alpha"], budget))
    assert limit == digits(row["rdp_budget"])
    gradient, epsilon = Gaussian.from_rho(row["rho"]), row["eps_iter"]

    def count(inner: Any) -> int:
        return math.floor(limit / at(Subsampled(inner, row["q"]), order))

    joint = Composed((gradient, AboveThreshold.laplace(epsilon)))
    assert count(joint) == pytest.approx(row["N_sound_new"], rel=2e-5)
    assert count(gradient) == pytest.approx(row["N_grad_only"], rel=2e-5)
    # The table takes chords of this curve too; we need none, and afford a little more.
    curve = integer_orders(gradient.rdp, order)
    curve += chords(knots(order), PureDP(epsilon).rdp(knots(order)), order)
    by_chords = math.floor(limit / poisson_rdp(order, row["q"], curve))
    assert by_chords == pytest.approx(row["N_sound_pure"], rel=2e-5)
    exact = count(Composed((gradient, PureDP(epsilon))))
    assert by_chords <= exact <= by_chords * (1 + 5e-4)


@rows("steps_paper_settings")
def test_steps_that_fit_as_printed(row):
    budget = Budget(epsilon=row["eps"], delta=1e-8)
    gradient = row["rho"] * np.arange(501.0)
    halves = (row["eps_iter"] / 2, row["eps_iter"] / 4)
    search = integer_orders(lambda orders: theorem2(orders, *halves), 500)
    orders = np.unique(np.rint(np.geomspace(2, 500, 80)).astype(int))
    limits = proposition1_limit(orders, budget)
    amplified, plain = 0.0, 0.0
    for order, limit in zip(orders.tolist(), limits, strict=True):
        cost = sum(lemma_pss(order, row["q"], curve) for curve in (gradient, search))
        amplified = max(amplified, limit / cost)
        plain = max(plain, limit / (gradient[order] + search[order]))
    assert math.floor(amplified) == row["N_printed_factor3"]
    assert math.floor(plain) == row["N_printed_unamplified"]


def table_curve(row: Row, top: int) -> FloatArray:
    """One step before amplification, with the shifts and knots of the table."""
    gradient = integer_orders(Gaussian.from_rho(row["rho_grad"]).rdp, top)
    if not row["line_search"]:
        return gradient
    search = AboveThreshold.laplace(row["eps_bt"])
    few = np.unique(np.rint(np.geomspace(2, top, 26)))
    shifts = [np.full(few.shape, j / 16) for j in range(17)]
    bounds = [search.shifted_bound(few, shift) for shift in shifts]
    bounds.append(PureDP(row["eps_bt"]).rdp(few))
    return gradient + chords(few, np.min(bounds, axis=0), top)


@rows("calibrated")
def test_calibrated_noise_of_the_table_gives_its_epsilon(row):
    orders = np.unique(np.rint(np.geomspace(2, 600, 50))).astype(int)
    curve = table_curve(row, 600)
    costs = [poisson_rdp(order, row["q"], curve) for order in orders.tolist()]
    epsilons = rdp_to_epsilon(orders, row["steps"] * np.array(costs), row["delta"])
    assert float(epsilons.min()) == pytest.approx(row["eps"], rel=1e-5)


@rows("calibrated")
def test_calibration_needs_no_more_noise_than_the_table(row):
    budget = Budget(epsilon=row["eps"], delta=row["delta"])
    plan = {"sampling_prob": row["q"], "steps": row["steps"]}
    if row["line_search"]:
        step = line_search_budget(budget, **plan)
        noise = 1 / math.sqrt(2 * step.gradient_rho)
        assert step.search_epsilon == pytest.approx(1 / noise, rel=1e-12)
        search = AboveThreshold.laplace(step.search_epsilon)
    else:
        noise, search = (
            noise_multiplier_for(budget, accountant="adaptive", **plan),
            None,
        )
    # The table has 50 orders, 26 knots and 17 shifts; finer grids save up to 0.3 %.
    assert 0.9965 < noise / row["noise_multiplier"] < 1 + 1e-5
    # With this noise the budget is kept and used up, at an order of our own choice.
    step = step_mechanism(row["q"], noise, search)
    orders = np.arange(2.0, 601.0)
    epsilons = rdp_to_epsilon(orders, row["steps"] * step.rdp(orders), row["delta"])
    assert float(epsilons.min()) == pytest.approx(row["eps"], rel=1e-3)
    # The order that keeps the budget exactly may lie between those of this grid.
    assert float(epsilons.min()) <= row["eps"] * (1 + 1e-5)


def test_conversion():
    budget = Budget(epsilon=1.0, delta=1e-8)
    assert float(rdp_to_epsilon(31, 0.5, 1e-8)) == digits(0.966766628493)
    assert float(proposition1(31, 0.5, 1e-8)) == digits(1.11402269147)
    assert float(rdp_limit(31, budget)) == digits(0.533233371507)
