# SPDX-License-Identifier: Apache-2.0
"""The promise, its wording, and the conversion from Renyi divergence."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.budget import Budget, Guarantee, Neighboring
from armijo.accounting.calibration import (
    best_order,
    order_grid,
    rdp_limit,
    rdp_to_epsilon,
)
from armijo.accounting.paper import proposition1, proposition1_limit
from tests.accounting.accounts import gaussian_delta, gaussian_epsilon

epsilons = st.floats(0.01, 20.0)
deltas = st.floats(1e-12, 0.1)
orders = st.integers(2, 5000)


@given(epsilons, deltas, orders)
def test_limit_and_epsilon_are_inverse(epsilon, delta, order):
    limit = float(rdp_limit(order, Budget(epsilon=epsilon, delta=delta)))
    back = float(rdp_to_epsilon(order, limit, delta))
    assert back == pytest.approx(epsilon, rel=1e-12, abs=1e-13)


@given(st.floats(0.0, 50.0), deltas, orders)
def test_tight_conversion_is_never_above_the_printed_one(rdp, delta, order):
    assert float(rdp_to_epsilon(order, rdp, delta)) <= proposition1(order, rdp, delta)


@given(epsilons, deltas, orders)
def test_tight_conversion_affords_more(epsilon, delta, order):
    budget = Budget(epsilon=epsilon, delta=delta)
    assert float(rdp_limit(order, budget)) > float(proposition1_limit(order, budget))


@given(st.floats(1e-6, 5.0), st.floats(1e-10, 1e-2))
def test_exact_gaussian_epsilon_is_below_the_renyi_one(rho, delta):
    some = np.unique(np.rint(np.geomspace(2, 20_000, 300)))
    by_renyi = float(rdp_to_epsilon(some, rho * some, delta).min())
    assert gaussian_epsilon(rho, delta) <= by_renyi + 1e-12


@given(st.floats(1e-5, 0.5), st.floats(1e-10, 1e-3), orders)
def test_every_order_gives_a_valid_epsilon(rho, delta, order):
    epsilon = float(rdp_to_epsilon(order, rho * order, delta))
    assert gaussian_delta(epsilon, rho) <= delta * (1 + 1e-9)


def test_epsilon_is_never_negative():
    assert float(rdp_to_epsilon(2, 0.0, 0.9)) == 0.0
    assert np.all(rdp_to_epsilon(np.arange(2, 50), 0.0, 0.5) >= 0.0)


def test_conversion_takes_arrays():
    found = rdp_to_epsilon([2, 31], [0.1, 0.5], 1e-8)
    assert found.shape == (2,)
    assert found[1] == pytest.approx(0.966766628493, rel=1e-12, abs=0.0)


# epsilon, then the zCDP budget affordable at delta 1e-8: printed, tight, exact.
AFFORDABLE = [
    (0.05, 3.388328e-05, 5.526114e-05, 6.301115e-05),
    (0.1, 1.353498e-04, 2.088164e-04, 2.369398e-04),
    (0.2, 5.399405e-04, 7.898636e-04, 8.920739e-04),
    (0.4, 2.148208e-03, 2.985641e-03, 3.356584e-03),
    (0.8, 8.502246e-03, 1.124438e-02, 1.258188e-02),
    (1.0, 1.321534e-02, 1.720530e-02, 1.922105e-02),
]


@pytest.mark.parametrize(("epsilon", "printed", "tight", "exact"), AFFORDABLE)
def test_affordable_zero_concentrated_budget(epsilon, printed, tight, exact):
    budget = Budget(epsilon=epsilon, delta=1e-8)
    some = np.linspace(1.5, 2000, 400_000)
    assert np.max(proposition1_limit(some, budget) / some) == pytest.approx(
        printed, rel=5e-6, abs=0.0
    )
    assert np.max(rdp_limit(some, budget) / some) == pytest.approx(
        tight, rel=5e-6, abs=0.0
    )
    order = best_order(budget)
    at_best = float(rdp_limit(order, budget)) / order
    assert tight * (1 - 1e-3) < at_best <= tight * (1 + 5e-6)
    assert gaussian_epsilon(exact, 1e-8) == pytest.approx(epsilon, rel=1e-6, abs=0.0)


REACH = [(0.01, 1e-10), (0.013, 1e-6), (0.05, 1e-8), (1.0, 1e-8), (2.0, 1e-5), (9, 0.1)]


@pytest.mark.parametrize(("epsilon", "delta"), REACH)
def test_best_order_is_the_best_of_fifty_thousand(epsilon, delta):
    budget = Budget(epsilon=epsilon, delta=delta)
    every = np.arange(2, 50_001)
    affordable = rdp_limit(every, budget) / every
    order = best_order(budget)
    assert order == every[np.argmax(affordable)]
    assert float(rdp_limit(order, budget)) / order == affordable.max()


@given(st.floats(0.01, 20.0), st.floats(1e-12, 0.5))
def test_best_order_is_usable_and_no_neighbor_is_better(epsilon, delta):
    budget = Budget(epsilon=epsilon, delta=delta)
    order = best_order(budget)
    assert float(rdp_limit(order, budget)) > 0
    near = np.array([max(order - 1, 2), order, order + 1])
    affordable = rdp_limit(near, budget) / near
    assert affordable[1] >= affordable.max()


@pytest.mark.parametrize(("epsilon", "delta"), REACH)
def test_grid_reaches_past_the_best_order(epsilon, delta):
    budget = Budget(epsilon=epsilon, delta=delta)
    grid = order_grid(budget)
    assert grid[0] == 2
    assert np.all(np.diff(grid) > 0)
    assert np.issubdtype(grid.dtype, np.integer)
    assert set(range(2, 65)) <= set(grid.tolist())
    assert grid[-1] >= 4 * best_order(budget) - 1
    # What a grid point near the optimum loses is far below what matters.
    order = best_order(budget)
    best = float(rdp_limit(order, budget)) / order
    assert np.max(rdp_limit(grid, budget) / grid) >= best * (1 - 1e-3)


def test_budget_is_a_value():
    assert Budget(epsilon=1.0, delta=1e-5) == Budget(epsilon=1, delta=0.00001)
    assert len({Budget(epsilon=1.0, delta=1e-5), Budget(epsilon=1.0, delta=1e-6)}) == 2
    with pytest.raises(TypeError):
        Budget(1.0, 1e-5)


SOUND = Guarantee(
    budget=Budget(epsilon=0.5, delta=1e-6),
    relation=Neighboring.ZERO_OUT,
    accountant="filter-rdp",
)
BROKEN = Guarantee(
    budget=Budget(epsilon=0.5, delta=1e-6),
    relation=Neighboring.ADD_REMOVE,
    accountant="paper-as-printed",
    broken_premises=("first reason", "second reason"),
)


def test_sound_guarantee_says_so():
    assert SOUND.holds
    assert SOUND.sentence() == (
        "(0.5, 1e-06)-differentially private under the zero-out relation, "
        "accountant: filter-rdp; noise: exact, rounded to a public lattice; sums: "
        "exact sums of integers."
    )
    assert json.loads(json.dumps(SOUND.to_dict())) == {
        "epsilon": 0.5,
        "delta": 1e-06,
        "relation": "zero-out",
        "accountant": "filter-rdp",
        "guarantee": True,
        "broken_premises": [],
        "sampler": "exact, rounded to a public lattice",
        "arithmetic": "exact sums of integers",
        "assumptions": [],
    }


def test_broken_guarantee_says_why():
    assert not BROKEN.holds
    sentence = BROKEN.sentence()
    assert sentence.startswith("NO GUARANTEE")
    assert "first reason; second reason" in sentence
    told = BROKEN.to_dict()
    assert told["guarantee"] is False
    assert told["broken_premises"] == ["first reason", "second reason"]


def test_what_is_assumed_stands_in_the_sentence_and_in_the_object():
    assuming = replace(SOUND, assumptions=("rows end at lines", "one row each"))
    assert assuming.holds
    assert assuming.sentence() == (
        SOUND.sentence()[:-1] + "; assumes: rows end at lines; one row each."
    )
    assert assuming.to_dict()["assumptions"] == ["rows end at lines", "one row each"]
