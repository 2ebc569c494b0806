# SPDX-License-Identifier: Apache-2.0
"""Objective perturbation: the minimum is one, the noise is that of the proof."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse
from scipy.optimize import root

from armijo._noise.vectors import gaussian_vector, radial_vector, random_order
from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.mechanisms import Gaussian
from armijo.accounting.perturbation import PermutedMixture
from armijo.baselines import empirical_risk, perturbation
from armijo.baselines.perturbation import BoundedRows, loss_smoothness
from armijo.data import fixed_point
from armijo.data.query import OuterProduct, Rows
from armijo.objectives.linear import LinearObjective
from armijo.objectives.losses import Huber
from armijo.randomness import Randomness
from tests.baselines.one_shot_doubles import (
    BUDGET,
    answered,
    built,
    fitted,
    mean_gradient,
    objective,
    rows_of,
    slopes,
    table,
    unit_rows,
)

FORMS = ("objpert", "objpert-kst", "objpert-pure")
ALL = (*FORMS, "amp")


def perturbed_gradient(method, w, X, y, b):
    goal = method.objective
    Z = unit_rows(X, y, 1.0, goal.fit_intercept)
    return Z.T @ slopes(goal.loss, Z @ w) + method.ridge * w + b


def first_draw(method, seed):
    run = Randomness(seed=seed, insecure_deterministic=True)
    bits = run.for_charge(0).stream("perturbation")
    draw = radial_vector if method.radial else gaussian_vector
    return draw(method.noise_scale, method.objective.size, bits)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("loss", ["logistic", "huber"])
class TestMinimum:
    @pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
    def test_the_gradient_norm_is_within_the_tolerance(self, method, loss, scale):
        X, y = table(80)
        algorithm = built(method, 80, objective(loss))
        b = scale * np.array([1.0, -0.5, 0.25, 2.0])
        w = algorithm.minimum(rows_of(X, y), b)
        norm = np.linalg.norm(perturbed_gradient(algorithm, w, X, y, b))
        # Rows are shrunk by 1e-12 for the float error of their norm.
        assert norm <= algorithm.tolerance + 1e-10

    def test_a_whole_run_releases_that_minimum(self, method, loss):
        """Same seed, same linear term; solved again as a system of equations."""
        X, y = table(80)
        goal = objective(loss)
        algorithm = built(method, 80, goal)
        b = first_draw(algorithm, seed=5)
        expected = root(
            lambda w: perturbed_gradient(algorithm, w, X, y, b), np.zeros(4), tol=1e-12
        ).x
        found = fitted(method, X, y, goal, seed=5).w * math.sqrt(2)
        # Four coordinates, the norm of the pure noise has shape four: 30 scales.
        room = 30 * algorithm.output_noise_scale
        assert np.linalg.norm(found - expected) <= room
        assert room < 1e-2 * np.linalg.norm(expected)


class TestParameters:
    budget = Budget(epsilon=0.2, delta=1e-8)

    def test_tight(self):
        """Close to the golden value: one percent of the budget is set aside."""
        goal = objective(l2=1e-3)
        method = built("objpert", 43957, goal, budget=self.budget)
        assert method.ridge == pytest.approx(43.957)
        assert method.noise_scale == pytest.approx(25.0025, rel=0.015)
        assert method.noise_scale > 25.0025

    def test_kst(self):
        method = built("objpert-kst", 43957, objective(l2=1e-3), budget=self.budget)
        assert method.ridge == pytest.approx(43.957)  # more than 2 beta/epsilon = 2.5
        assert method.noise_scale == pytest.approx(61.99, rel=0.015)
        small = built("objpert-kst", 100, objective(l2=1e-3), budget=self.budget)
        assert small.ridge == pytest.approx(0.5 / (0.99 * 0.2))

    def test_pure_with_enough_penalty(self):
        """Chaudhuri et al. (2011): the logarithm comes off, nothing is added."""
        n, l2, c = 5000, 0.01, 0.25
        method = built("objpert-pure", n, objective(l2=l2), budget=self.budget)
        left = 0.99 * 0.2 - math.log(1 + 2 * c / (n * l2) + (c / (n * l2)) ** 2)
        assert left > 0
        assert method.noise_scale == pytest.approx(2 / left, rel=1e-6)
        assert method.ridge == pytest.approx(n * l2)
        assert method.radial

    def test_pure_with_too_little_penalty(self):
        n, l2, c = 100, 1e-4, 0.25
        method = built("objpert-pure", n, objective(l2=l2), budget=self.budget)
        epsilon = 0.99 * 0.2
        added = c / (n * (math.exp(epsilon / 4) - 1)) - l2
        assert method.noise_scale == pytest.approx(4 / epsilon, rel=1e-6)
        assert method.ridge == pytest.approx(n * (l2 + added), rel=1e-6)

    def test_amp(self):
        n, epsilon, delta = 1000, 0.2, 1e-8
        method = built("amp", n, objective(l2=0.0), budget=self.budget)
        share = min(0.88671 + 0.0186607 / epsilon**0.372906, 0.99)
        rest = 0.99 * epsilon
        ridge = 2 * 0.25 / (rest * (1 - share))
        tail = 1 + math.sqrt(2 * math.log(1 / (0.99 * delta)))
        assert method.ridge == pytest.approx(ridge, rel=1e-6)
        assert method.noise_scale == pytest.approx(2 * tail / (rest * share), rel=1e-6)
        tolerance = 1e-8 * ridge + 1e-12 * n  # less than the published 1/n
        assert method.tolerance == pytest.approx(tolerance, rel=1e-6)
        tail = 1 + math.sqrt(2 * math.log(1 / (0.01 * delta)))
        noise = 2 * tolerance / ridge * tail / (0.01 * epsilon)
        assert method.output_noise_scale == pytest.approx(noise, rel=1e-6)

    def test_amp_tolerance_is_that_of_the_mean(self):
        method = built("amp", 50, gradient_tolerance=1e-9)
        assert method.tolerance == pytest.approx(50e-9)

    def test_a_penalty_counts_towards_the_ridge_of_amp(self):
        assert built("amp", 1000, objective(l2=1.0)).ridge == 1000.0

    @pytest.mark.parametrize("method", ALL)
    def test_output_noise_hides_the_tolerance_and_is_small(self, method):
        algorithm = built(method, 1000)
        radius = algorithm.tolerance / algorithm.ridge
        assert radius < 1e-7
        multiplier = algorithm.output_noise_scale / (2 * radius)
        assert multiplier > 1 / 0.01  # it has one percent of epsilon = 1
        assert algorithm.output_noise_scale < 1e-4

    @pytest.mark.parametrize("method", ALL)
    def test_no_penalty_at_all(self, method):
        algorithm = built(method, 1000, objective(l2=0.0))
        assert algorithm.ridge > 0.25
        assert np.isfinite(algorithm.noise_scale)


@pytest.mark.parametrize("method", ALL)
class TestWholeRun:
    @pytest.mark.parametrize("epsilon", [0.01, 0.1, 3.0, 9.0])
    def test_other_budgets(self, method, epsilon):
        X, y = table()
        budget = Budget(epsilon=epsilon, delta=1e-8)
        result = fitted(method, X, y, budget=budget)
        assert result.accountant.epsilon_spent() <= epsilon
        assert np.all(np.isfinite(result.w))

    def test_a_row_that_is_no_number_counts_as_nothing(self, method):
        X, y = table(30)
        bad = X.copy()
        bad[4, 1] = np.nan
        kept = np.arange(30) != 4
        found = fitted(method, bad, y).w
        expected = fitted(method, X[kept], y[kept], n_rows=30).w
        np.testing.assert_allclose(found, expected, atol=1e-4)

    def test_softmax_is_refused_before_anything_is_spent(self, method):
        X, y = table()
        goal = objective("softmax", n_classes=3)
        with pytest.raises(ValueError, match="two classes"):
            fitted(method, X, y, goal)


@pytest.mark.parametrize("method", ALL)
def test_a_solver_that_gives_up_is_not_told(method, monkeypatch):
    """The answer has the certified norm all the same, by a method that cannot fail."""
    algorithm, rows = built(method, 60), rows_of(*table())
    b = np.array([1.0, -2.0, 0.5, 3.0])
    expected = algorithm.minimum(rows, b)
    monkeypatch.setattr(
        empirical_risk, "_approached", lambda risk, tolerance: np.full(4, 1e9)
    )
    monkeypatch.setattr(empirical_risk, "_polished", lambda risk, w, tolerance: w)
    found = algorithm.minimum(rows, b)
    gradient = algorithm.risk(rows, b).gradient(found)
    assert np.linalg.norm(gradient) <= algorithm.tolerance / 2
    assert np.linalg.norm(found - expected) <= algorithm.tolerance / algorithm.ridge


def test_a_tolerance_that_floats_cannot_reach_ends_at_the_public_start():
    algorithm = replace(built("objpert", 60), tolerance=1e-300)
    found = algorithm.minimum(rows_of(*table()), np.array([1.0, -2.0, 0.5, 3.0]))
    assert found.tolist() == [0.0] * 4


def test_amp_refuses_an_epsilon_beyond_its_proof():
    with pytest.raises(ValueError, match="within reach of the proof"):
        built("amp", 100, budget=Budget(epsilon=20.0, delta=1e-8))


def test_the_solver_is_asked_for_half_the_tolerance(monkeypatch):
    asked = []
    solve = perturbation.certified

    def spy(risk, tolerance, **more):
        asked.append(tolerance)
        return solve(risk, tolerance, **more)

    monkeypatch.setattr(perturbation, "certified", spy)
    algorithm = built("objpert", 10)
    algorithm.minimum(Rows(*table(10)), np.zeros(4))
    assert asked == [algorithm.tolerance / 2]


def test_the_intercept_is_regularized_and_perturbed_like_the_rest():
    X, y = table(40)
    algorithm = built("objpert", 40)
    b = np.array([0.0, 0.0, 0.0, 1e4])
    w = algorithm.minimum(rows_of(X, y), b)
    assert w[3] == pytest.approx(-1e4 / algorithm.ridge, rel=0.01)


ROWS = st.tuples(
    arrays.arrays(np.float64, 3, elements=st.floats(-5, 5)),
    st.sampled_from([-1.0, 1.0]),
)
GOALS = st.builds(
    objective,
    loss=st.sampled_from(["logistic", "huber"]),
    l2=st.sampled_from([0.0, 1e-3, 0.1, 2.0]),
    fit_intercept=st.booleans(),
)


def with_row(X, y, place, row):
    X, y = X.copy(), y.copy()
    X[place], y[place] = row
    return X, y


def plain_descent(X, y, goal, *, steps, step_size, n):
    Z = unit_rows(X, y, 1.0, goal.fit_intercept)
    w = np.zeros(Z.shape[1])
    for _ in range(steps):
        w = w - step_size * mean_gradient(w, Z, goal.loss, goal.l2, n)
    return w


@given(
    goal=GOALS,
    row=ROWS,
    seed=st.integers(0, 50),
    n=st.integers(1, 12),
    steps=st.integers(1, 40),
    step=st.sampled_from([None, 0.3, 1.0, 3.0]),
)
def test_an_exchanged_row_stays_within_the_sensitivity(goal, row, seed, n, steps, step):
    X, y = table(n, seed)
    method = built("outpert-gd", n, goal, steps=steps, step_size=step)
    here = method.descended(rows_of(X, y))
    there = method.descended(rows_of(*with_row(X, y, seed % n, row)))
    assert np.linalg.norm(here - there) <= method.mechanism.sensitivity


@given(
    goal=GOALS,
    row=ROWS,
    seed=st.integers(0, 50),
    n=st.integers(1, 12),
    steps=st.integers(1, 40),
)
def test_a_zeroed_row_moves_half_as_far(goal, row, seed, n, steps):
    X, y = with_row(*table(n, seed), seed % n, row)
    method = built("outpert-gd", n, goal, steps=steps, relation="zero-out")
    zeroed = with_row(X, y, seed % n, (np.nan, 1.0))
    moved = method.descended(rows_of(X, y)) - method.descended(rows_of(*zeroed))
    assert np.linalg.norm(moved) <= method.mechanism.sensitivity
    exchanged = built("outpert-gd", n, goal, steps=steps)
    assert method.mechanism.sensitivity == exchanged.mechanism.sensitivity / 2


def test_the_bound_is_attained():
    """One row against its opposite, a loss whose slope is one, a single step."""
    goal = objective("huber", fit_intercept=False)
    X, y = np.full((4, 3), 1.0), np.ones(4)
    method = built("outpert-gd", 4, goal, steps=1)
    moved = method.descended(rows_of(X, y)) - method.descended(
        rows_of(*with_row(X, y, 0, (-1.0, 1.0)))
    )
    assert np.linalg.norm(moved) == pytest.approx(method.mechanism.sensitivity)


@pytest.mark.parametrize("loss", ["logistic", "huber"])
@pytest.mark.parametrize("intercept", [True, False])
def test_without_noise_it_is_plain_descent(loss, intercept):
    goal = objective(loss, fit_intercept=intercept)
    X, y = table(50)
    method = built("outpert-gd", 50, goal, steps=30, step_size=1.5)
    free = replace(method, mechanism=Gaussian(noise_scale=0.0))
    expected = plain_descent(X, y, goal, steps=30, step_size=1.5, n=50)
    radius = math.sqrt(2) if intercept else 1.0
    found = answered(free, X, y)
    np.testing.assert_allclose(found, expected / radius, rtol=0, atol=1e-10)
    assert np.abs(expected).max() > 0.1


class TestVariants:
    def test_published_sensitivity_and_noise(self):
        budget = Budget(epsilon=0.2, delta=1e-8)
        method = built("outpert-gd", 1000, budget=budget, variant="replica")
        assert (method.steps, method.step_size) == (50, 1.0)
        assert method.mechanism.sensitivity == pytest.approx(3 * 50 / 1000)
        # 30.9143: the golden value of sqrt(2 log(2/delta))/epsilon.
        noise = method.mechanism.noise_multiplier
        assert noise == pytest.approx(30.9143, abs=1e-3)

    def test_the_replica_has_the_noise_that_a_large_epsilon_needs(self):
        """Where the published rule, which is proved below one, would be too little."""
        budget = Budget(epsilon=30.0, delta=1e-2)
        printed = math.sqrt(2 * math.log(2 / budget.delta)) / budget.epsilon
        method = built("outpert-gd", 1000, budget=budget, variant="replica")
        assert method.mechanism.noise_multiplier > printed

    def test_improved_is_the_longest_contracting_step(self):
        budget = Budget(epsilon=0.2, delta=1e-8)
        method = built("outpert-gd", 1000, objective(l2=1e-3), budget=budget)
        assert method.step_size == pytest.approx(1.98 / 0.251)
        assert method.mechanism.noise_multiplier == pytest.approx(23.675, rel=2e-3)

    @pytest.mark.parametrize("name", ["replace-one", "zero-out"])
    def test_relation(self, name):
        X, y = table()
        relation = Neighboring(name)
        result = fitted("outpert-gd", X, y, asked={"relation": name})
        assert result.accountant.guarantee.relation is relation


class TestRunOfDescent:
    @pytest.mark.parametrize("variant", ["improved", "replica"])
    def test_budget(self, variant):
        X, y = table()
        result = fitted("outpert-gd", X, y, seed=None, asked={"variant": variant})
        spent = result.accountant.epsilon_spent()
        assert (0.95 if variant == "improved" else 0.5) <= spent <= BUDGET.epsilon
        assert result.accountant.guarantee.accountant == "planned-profile"
        assert result.accountant.guarantee.holds
        assert [record.gradients for record in result.records] == [50]

    def test_a_row_that_is_no_number_counts_as_nothing(self):
        X, y = table(30)
        bad = X.copy()
        bad[4, 1] = np.nan
        method = built("outpert-gd", 30)
        kept = np.arange(30) != 4
        expected = method.descended(rows_of(X[kept], y[kept]))
        np.testing.assert_allclose(method.descended(rows_of(bad, y)), expected)
        assert np.all(np.isfinite(fitted("outpert-gd", bad, y).w))

    def test_more_rows_than_declared_do_not_make_it_rougher(self):
        """Divided by the number that is there: replace-one makes it public."""
        X, y = table(40)
        method = built("outpert-gd", 10)
        expected = built("outpert-gd", 40).descended(rows_of(X, y))
        np.testing.assert_allclose(method.descended(rows_of(X, y)), expected)


def test_a_replica_whose_steps_do_not_contract_is_refused():
    with pytest.raises(ValueError, match="step_size <="):
        built("outpert-gd", 100, variant="replica", step_size=10.0)


def test_another_objective_is_refused():
    method = built("outpert-gd", 10)
    with pytest.raises(ValueError, match="for which the noise"):
        method.step(None, objective("huber"), None)


def plain_average(X, y, goal, order, *, m, epochs, step_size):
    Z = unit_rows(X, y)
    size = len(order) // m
    w, visited = np.zeros(Z.shape[1]), []
    for epoch in range(epochs):
        step = step_size / math.sqrt(epoch + 1) if m > 1 else step_size
        for batch in range(m):
            chosen = Z[order[batch * size : (batch + 1) * size]]
            w = w - step * mean_gradient(w, chosen, goal.loss, goal.l2, size)
            visited.append(w)
    return np.mean(visited, axis=0)


@given(
    goal=GOALS,
    row=arrays.arrays(np.float64, 3, elements=st.floats(-5, 5)),
    seed=st.integers(0, 50),
    n=st.integers(2, 15),
    batch_size=st.integers(1, 8),
    epochs=st.integers(1, 6),
    place=st.integers(0, 14),
)
def test_empirical_sensitivity(goal, row, seed, n, batch_size, epochs, place):
    X, y = table(n, seed)
    method = built("outpert-rsgd", n, goal, batch_size=batch_size, epochs=epochs)
    order = np.random.default_rng(seed).permutation(n)
    other = X.copy()
    other[order[place % n]] = row
    moved = method.averaged(rows_of(X, y), order) - method.averaged(
        rows_of(other, y), order
    )
    batch = place % n // (n // method.n_batches)
    bounds = (*method.mechanism.sensitivities, 0.0)  # left over: moves nothing
    assert np.linalg.norm(moved) <= bounds[min(batch, method.n_batches)]


def test_the_bound_of_a_batch_is_attained():
    goal = objective("huber", fit_intercept=False, l2=0.0)
    X, y = np.ones((6, 3)), np.ones(6)
    other = X.copy()
    other[5] = -1.0
    method = built("outpert-rsgd", 6, goal, batch_size=3, epochs=1, step_size=1e-3)
    moved = method.averaged(rows_of(X, y), np.arange(6)) - method.averaged(
        rows_of(other, y), np.arange(6)
    )
    assert np.linalg.norm(moved) == pytest.approx(method.mechanism.sensitivities[1])


@pytest.mark.parametrize("loss", ["logistic", "huber"])
@pytest.mark.parametrize("batch_size", [7, 10, 100])
def test_without_noise_it_is_plain_permuted_descent(loss, batch_size):
    goal = objective(loss)
    X, y = table(45)
    method = built(
        "outpert-rsgd", 45, goal, batch_size=batch_size, epochs=4, step_size=1.2
    )
    tiny = replace(method, mechanism=replace(method.mechanism, noise_scale=1e-13))
    found = tiny._noisy_average(
        rows_of(X, y), Randomness(seed=3, insecure_deterministic=True).for_charge(0)
    )
    run = Randomness(seed=3, insecure_deterministic=True)
    again = run.for_charge(0).stream("perturbation")
    expected = plain_average(
        X,
        y,
        goal,
        random_order(45, again),
        m=max(45 // batch_size, 1),
        epochs=4,
        step_size=1.2,
    )
    np.testing.assert_allclose(found, expected / math.sqrt(2), rtol=0, atol=1e-10)
    assert np.abs(expected).max() > 0.1


def test_runs_differ_by_their_secret_order_too():
    X, y = table(30)
    method = built("outpert-rsgd", 30, batch_size=5)
    first, second = (
        method.averaged(rows_of(X, y), np.random.default_rng(seed).permutation(30))
        for seed in (0, 1)
    )
    assert np.linalg.norm(first - second) > 1e-6


class TestVariantsOfPermutedDescent:
    def test_defaults(self):
        method = built("outpert-rsgd", 43957, objective(l2=1e-3))
        assert method.n_batches == 10
        assert method.epochs == 5
        assert method.step_size == pytest.approx(1.98 / 0.251)
        assert isinstance(method.mechanism, PermutedMixture)

    def test_more_is_known_less_noise_is_needed(self):
        noises = {
            variant: built(
                "outpert-rsgd", 1000, batch_size=20, variant=variant
            ).mechanism.noise_scale
            for variant in ("mixture", "renyi", "worst-case")
        }
        assert noises["mixture"] < noises["renyi"]
        assert noises["mixture"] < noises["worst-case"]

    @pytest.mark.parametrize(
        ("variant", "accountant"),
        [
            ("mixture", "planned-profile"),
            ("renyi", "planned-profile"),
            ("worst-case", "planned-profile"),
        ],
    )
    def test_whole_run(self, variant, accountant):
        X, y = table()
        asked = {"variant": variant, "batch_size": 9}
        result = fitted("outpert-rsgd", X, y, seed=None, asked=asked)
        spent = result.accountant.epsilon_spent()
        assert (0.5 if variant == "renyi" else 0.95) <= spent <= BUDGET.epsilon
        guarantee = result.accountant.guarantee
        assert guarantee.accountant == accountant
        assert guarantee.relation is Neighboring.REPLACE_ONE
        assert guarantee.holds


def test_the_noise_of_the_worst_case_is_what_was_charged():
    X, y = np.full((40, 3), np.nan), np.ones(40)  # nothing but noise is left
    method = built("outpert-rsgd", 40, batch_size=8, variant="worst-case")
    draws = [answered(method, X, y, seed) for seed in range(200)]
    deviation = np.std(np.array(draws) * math.sqrt(2))
    assert deviation == pytest.approx(method.mechanism.noise_scale, rel=0.12)


def test_a_row_that_is_no_number_counts_as_nothing():
    X, y = table(20)
    bad, other = X.copy(), X.copy()
    bad[4, 1], other[4, 0] = np.inf, np.nan
    method = built("outpert-rsgd", 20, batch_size=5)
    order = np.arange(20)
    found = method.averaged(rows_of(bad, y), order)
    np.testing.assert_array_equal(found, method.averaged(rows_of(other, y), order))
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize("rows", [0, 3, 50])
def test_another_number_of_rows_than_declared(rows):
    X, y = table(rows)
    result = fitted("outpert-rsgd", X, y, n_rows=20, asked={"batch_size": 5})
    assert np.all(np.isfinite(result.w))


def test_the_worst_case_is_one_gaussian():
    method = built("outpert-rsgd", 100, batch_size=10, variant="worst-case")
    mixture = built("outpert-rsgd", 100, batch_size=10).mechanism
    assert isinstance(method.mechanism, Gaussian)
    assert method.mechanism.sensitivity == max(mixture.sensitivities)


ANY = st.floats(width=64, allow_nan=True, allow_infinity=True)
TABLES = arrays.arrays(np.float64, (5, 3), elements=ANY)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("norm", [0.1, 1.0, 3.0])
def test_plain_rows(norm, intercept):
    X, y = table(30)
    found = BoundedRows(data_norm=norm, fit_intercept=intercept)
    expected = unit_rows(X, y, norm, intercept)
    np.testing.assert_allclose(found.signed(rows_of(X, y)), expected, atol=1e-11)


@given(X=TABLES, labels=arrays.arrays(np.float64, 5, elements=ANY))
def test_no_input_leaves_the_unit_ball(X, labels):
    for intercept in (True, False):
        bounded = BoundedRows(data_norm=2.0, fit_intercept=intercept)
        for form in (X, sparse.csr_matrix(X)):
            signed = bounded.signed(rows_of(form, labels))
            signed = signed.toarray() if sparse.issparse(signed) else signed
            assert np.all(np.isfinite(signed))
            assert np.all(np.linalg.norm(signed, axis=1) <= 1.0)


@given(X=TABLES, place=st.integers(min_value=0, max_value=4))
def test_a_row_does_not_depend_on_the_others(X, place):
    y = np.array([1.0, -1.0, 1.0, -1.0, 1.0])
    bounded = BoundedRows(data_norm=2.0, fit_intercept=True)
    alone = bounded.signed(rows_of(X[[place]], y[[place]]))
    np.testing.assert_array_equal(bounded.signed(rows_of(X, y))[[place]], alone)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_matrix])
def test_a_row_that_is_no_number_becomes_zero_with_its_constant(bad, wrap):
    X, y = table(4)
    X[2, 1] = bad
    signed = BoundedRows(data_norm=1.0, fit_intercept=True).signed(rows_of(wrap(X), y))
    signed = signed.toarray() if sparse.issparse(signed) else signed
    assert not signed[2].any()
    kept = [0, 1, 3]
    np.testing.assert_allclose(signed[kept], unit_rows(X[kept], y[kept]), atol=1e-11)


def test_a_label_that_is_no_class_leaves_its_row_out():
    X, y = table(3)
    y[0], y[1] = np.nan, 50.0
    signed = BoundedRows(data_norm=1.0, fit_intercept=True).signed(rows_of(X, y))
    assert not signed[:2].any()
    np.testing.assert_allclose(signed[2:], unit_rows(X[2:], y[2:]), atol=1e-11)


def test_sparse_rows_stay_sparse_and_equal_dense_ones():
    X, y = table(20)
    X[np.abs(X) < 0.5] = 0.0
    bounded = BoundedRows(data_norm=1.0, fit_intercept=True)
    signed = bounded.signed(rows_of(sparse.csr_matrix(X), y))
    assert sparse.issparse(signed)
    dense = bounded.signed(rows_of(X, y))
    np.testing.assert_allclose(signed.toarray(), dense, atol=1e-15)


def test_weights_go_back_to_clipped_rows():
    X, y = table(10)
    bounded = BoundedRows(data_norm=1.0, fit_intercept=True)
    w = np.array([0.5, -1.0, 2.0, 0.3])
    clipped = X * np.minimum(1, 1 / np.linalg.norm(X, axis=1))[:, None]
    back = bounded.unscaled(w)
    scores = clipped @ back[:3] + back[3]
    signed = bounded.signed(rows_of(X, y))
    np.testing.assert_allclose(scores * y, signed @ w, atol=1e-10)


def test_the_rows_of_the_caller_are_not_changed():
    X, y = table(5)
    X[0, 0] = np.nan
    before = X.copy()
    BoundedRows(data_norm=0.1, fit_intercept=True).signed(rows_of(X, y))
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize(("loss", "bound"), [("logistic", 0.25), (Huber(0.1), 5.0)])
def test_smoothness_is_the_largest_slope_of_the_slope(loss, bound):
    objective = LinearObjective(loss=loss, n_features=1)
    assert loss_smoothness(objective) == pytest.approx(bound)


@pytest.mark.parametrize("loss", ["hinge", "softmax"])
def test_a_loss_without_it_is_refused(loss):
    with pytest.raises(ValueError, match="logistic or huber"):
        loss_smoothness(LinearObjective(loss=loss, n_features=1))


def test_entries_that_stand_several_times_do_not_leave_the_ball():
    X = np.full((4, 3), 10.0)
    whole = sparse.csr_array(X)
    parts = (np.repeat(whole.data, 32) / 32, np.repeat(whole.indices, 32))
    stored = sparse.csr_array((*parts, whole.indptr * 32), shape=whole.shape)
    bounded = BoundedRows(data_norm=1.0, fit_intercept=False)
    found = bounded.signed(rows_of(stored, np.ones(4))).toarray()
    assert np.linalg.norm(found, axis=1).max() <= 1.0
    assert found == pytest.approx(bounded.signed(rows_of(X, np.ones(4))))


BOUNDED = ("outpert-gd", "outpert-rsgd", "objpert", "amp")


def in_parts(dtype, large, small):
    """Return rows whose only entry is stored as ``large``, ``small``, ``-large``."""
    data = np.array([large, small, -large] * 2, dtype=dtype)
    columns = [0, 0, 0, 1, 1, 1]
    return sparse.csr_matrix((data, columns, [0, 3, 6]), shape=(2, 3))


@pytest.mark.parametrize(
    ("dtype", "large", "small"),
    [(np.float32, 3e9, 100.0), (np.float64, 3e300, 1e5), (np.float64, 1e17, 7.0)],
)
class TestEntriesInParts:
    """The norm came from one sum of the parts and the vector from another."""

    def test_rows_stay_in_the_unit_ball(self, dtype, large, small):
        for intercept in (True, False):
            rows = BoundedRows(data_norm=1.0, fit_intercept=intercept)
            X = in_parts(dtype, large, small)
            signed = rows.signed(rows_of(X, np.ones(2)))
            assert np.linalg.norm(signed.toarray(), axis=1).max() <= 1.0
            stored = np.add.reduceat(np.abs(signed.data), signed.indptr[:-1])
            assert stored.max() <= 2.0

    def test_the_gate_keeps_its_bound(self, dtype, large, small):
        X = in_parts(dtype, large, small)[:1]
        for rows in (Rows(X, np.ones(1)).X, X):
            steps = fixed_point.vector_sum(OuterProduct(np.ones((1, 1)), rows), 1.0)
            assert sum(int(step) ** 2 for step in steps) <= fixed_point.STEPS**2

    @pytest.mark.parametrize("method", BOUNDED)
    def test_a_method_sees_the_row_that_it_is(self, method, dtype, large, small):
        X, y = in_parts(dtype, large, small), np.array([1.0, -1.0])
        whole = X.astype(np.float64)
        whole.sum_duplicates()
        algorithm = built(method, 2)
        seen = [algorithm.rows.signed(rows_of(form, y)) for form in (X, whole)]
        assert (seen[0] != seen[1]).nnz == 0
        found = [fitted(method, form, y).w for form in (X, whole)]
        np.testing.assert_array_equal(*found)
