# SPDX-License-Identifier: Apache-2.0
"""What a row adds to a query is a function of the row: bit for bit, in any company.

Each query is asked about a row alone, and about batches of other rows with it and
without it: the difference is always the vector of whole steps that it adds alone.
"""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse

import armijo.data.lattice as lattice
from armijo.data import fixed_point
from armijo.data.query import LatticeSum, Rows
from armijo.methods import auto
from armijo.methods.descent import FACTORS, Standardization, ThreePoints
from armijo.objectives import LinearObjective
from armijo.objectives.elementwise import (
    _same_everywhere,
    elementwise_self_test,
    sigmoid,
    softplus,
)
from armijo.objectives.losses import Logistic
from tests.marks import in_turn

D = 11
SIZES = (1, 2, 3, 5, 8, 17, 100, 501, 2000)
FILLINGS = ("random", "1e30", "nan", "inf", "zero", "3e37", "denormal", "no class")


def objective_of(loss, intercept=True):
    settings = {"n_features": D, "n_classes": 3, "fit_intercept": intercept}
    return LinearObjective(loss=loss, **settings)


def queries(objective):
    """Return every question that a linear model answers."""
    rng = np.random.default_rng(5)
    w, step = torch.from_numpy(rng.normal(size=(2, objective.size)))
    sizes = [0.3, 1.0, 2.7]
    frame = Standardization(
        objective=objective,
        center=rng.normal(size=D),
        radius=1.7,
        constant=0.4 * objective.fit_intercept,
        clip=0.7,
    )
    points = ThreePoints(frame=frame, sizes=FACTORS, rms_score=0.3)
    found = {
        "gradient": objective.gradient_sum(w, clip=0.7),
        "normalized": objective.normalized_gradient_sum(w, stability=0.01),
        "along": objective.losses_along(w, step, sizes, clip=2.0),
        "drop": objective.loss_drop_sum(w, step, 0.7, form="difference", clip=2.0),
        "clipped drop": objective.loss_drop_sum(w, step, 0.7, form="loss", clip=2.0),
        "steps": objective.step_scores(w, step, sizes, clip=2.0),
        "right": objective.correct_sum(w),
        "auto gradient": frame.gradient_sum(w),
        "auto search": points.query(w, step),
        "norms": auto.norm_histogram(objective),
        "mean": auto.row_sum(objective, 3.0),
        "squares": auto.square_sum(objective, 3.0),
        "moments": auto.second_moments(objective, frame.center, 2.0),
    }
    if objective.loss != "softmax":
        many = torch.from_numpy(rng.normal(size=(5, objective.size)))
        around = rng.random(2 * objective.size)
        found["points"] = objective.point_scores(
            many, range(5), spread=9.0, penalties=rng.random(5)
        )
        found["coordinates"] = objective.coordinate_scores(
            w, 0.5, spread=9.0, penalties=around
        )
    return found


SELECTIONS = ("steps", "points", "coordinates")


def steps(name, query, X, y):
    """Return the sum in whole steps, as the gate adds it up."""
    found = query.contributions(Rows(X, y))
    if isinstance(found, LatticeSum):
        return found.steps.tolist()
    if name in SELECTIONS:
        return fixed_point.number_sums(found, query.bound)
    if isinstance(found, np.ndarray) and found.ndim == 1:
        return [fixed_point.number_sum(found, query.bound)]
    return fixed_point.vector_sum(found, query.bound).tolist()


def labels(loss, n, rng):
    if loss == "softmax":
        return rng.integers(0, 3, size=n).astype(float)
    return rng.choice([-1.0, 1.0], size=n)


def company(filling, n, loss, seed=0):
    """Return other rows."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n, D)), labels(loss, n, rng)
    scale = {"1e30": 1e30, "zero": 0.0, "3e37": 3e37, "denormal": 1e-310}
    X *= scale.get(filling, 1.0)
    if filling in ("nan", "inf"):
        X[::2, 3] = float(filling)
    if filling == "no class":
        y[::2], y[1::4] = 7.0, np.nan
    return X, y


def differences(name, loss, X1, y1, form=np.asarray, intercept=True, sizes=SIZES):
    """Yield what a row adds alone, and how far it moves the sums of others."""
    query = queries(objective_of(loss, intercept))[name]
    alone = np.array(steps(name, query, form(X1), y1), dtype=object)
    nothing = np.array(steps(name, query, form(X1[:0]), y1[:0]), dtype=object)
    for k, size in enumerate(sizes):
        X, y = company(FILLINGS[k % len(FILLINGS)], size, loss, seed=k)
        without = np.array(steps(name, query, form(X), y), dtype=object)
        for place in sorted({0, size // 2, size}):
            joined = form(np.insert(X, place, X1[0], axis=0))
            with_it = steps(name, query, joined, np.insert(y, place, y1[0]))
            moved = np.array(with_it, dtype=object) - without
            yield (alone - nothing).tolist(), moved.tolist()


def one_row(loss, seed=9):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(1, D)), labels(loss, 1, rng)


NAMES = tuple(queries(objective_of("logistic")))


FORMS = [np.asarray, sparse.csr_matrix]


def asked(*losses):
    """Return a loss with every question that its model answers."""
    return [(name, loss) for loss in losses for name in queries(objective_of(loss))]


@pytest.mark.parametrize(
    ("name", "loss", "form"),
    in_turn(asked("logistic", "hinge", "huber", "softmax"), FORMS),
)
def test_a_row_adds_the_same_in_any_company(name, loss, form):
    for intercept in (True, False):
        row = one_row(loss)
        for alone, moved in differences(name, loss, *row, form, intercept):
            assert moved == alone


@pytest.mark.parametrize("scale", [1e-320, 1e-30, 3e37, 1e140])
@pytest.mark.parametrize("name", NAMES)
def test_so_does_a_row_of_any_size(name, scale):
    X1, y1 = one_row("logistic")
    for alone, moved in differences(name, "logistic", X1 * scale, y1, sizes=(1, 2, 37)):
        assert moved == alone


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, 1e308, "label", "class"]
)
@pytest.mark.parametrize(
    ("name", "loss", "form"), in_turn(asked("logistic", "softmax"), FORMS)
)
def test_a_row_that_is_left_out_adds_nothing_to_any_query(bad, name, loss, form):
    X1, y1 = one_row(loss)
    if bad == "label":
        y1[0] = math.nan
    elif bad == "class":
        y1[0] = 7.0
    else:
        X1[0, 4] = bad
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not even a warning
        for alone, moved in differences(name, loss, X1, y1, form, sizes=(1, 4, 17)):
            assert not any(alone) and not any(moved)


class TestPlantedBugs:
    """The same comparison finds what it is there for."""

    @staticmethod
    def differs(name, loss="logistic", seeds=range(30)):
        return any(
            moved != alone
            for seed in seeds
            for alone, moved in differences(name, loss, *one_row(loss, seed))
        )

    def test_a_float32_product(self, monkeypatch):
        monkeypatch.setattr(
            "armijo.data.lattice.product",
            lambda X, w: (X.astype(np.float32) @ w.astype(np.float32)).astype(float),
        )
        assert self.differs("gradient")

    def test_torch_sigmoid(self):
        """Its last bit, seen before rounding: the lattice of sums hides most of it."""
        m = np.random.default_rng(0).normal(size=4096) * 5

        def bad(x):
            return torch.sigmoid(torch.from_numpy(x)).numpy()

        def moved(function):
            whole = function(m)
            alone = np.array([function(m[k : k + 1].copy())[0] for k in range(4096)])
            return (whole != alone).any()

        assert not moved(sigmoid)
        if moved(bad):  # on machines with vector kernels
            assert not _same_everywhere(bad)

    def test_a_query_that_counts_its_rows(self, monkeypatch):
        real = lattice.product
        monkeypatch.setattr(
            "armijo.data.lattice.product",
            lambda X, w: real(X, w) * (1 + 1e-5 * (X.shape[0] % 2)),
        )
        assert self.differs("drop")

    def test_blanks_as_the_largest_loss(self, monkeypatch):
        real = Logistic.value
        monkeypatch.setattr(
            "armijo.objectives.losses.Logistic.value",
            lambda self, m: torch.nan_to_num(real(self, m), nan=9.0),
        )
        X1, y1 = one_row("logistic")
        X1[0, 0] = math.nan
        found = list(differences("along", "logistic", X1, y1, sizes=(1,)))
        assert any(any(moved) for _, moved in found)


class TestElementwise:
    def test_the_self_test_says_what_was_tested(self):
        assert elementwise_self_test().startswith("element-wise functions exp, log")

    def test_it_finds_a_function_with_a_tail(self, monkeypatch):
        def tailed(x):
            found = np.exp(x)
            found[len(x) // 8 * 8 :] *= 1 + 2.0**-52
            return found

        monkeypatch.setattr("armijo.objectives.elementwise.exp", tailed)
        with pytest.raises(ArithmeticError, match="NumPy's exp"):
            elementwise_self_test.__wrapped__()  # not what it found before

    def test_sigmoids_add_up_to_one(self):
        m = np.linspace(-700, 700, 2001)
        right, wrong = sigmoid(m), sigmoid(-m)
        np.testing.assert_allclose(right + wrong, 1.0, rtol=1e-15)
        np.testing.assert_allclose(right, np.exp(-np.logaddexp(0, -m)), rtol=1e-12)

    def test_softplus_to_full_precision(self):
        x = np.concatenate([np.linspace(-700, 700, 3001), np.linspace(-40, 3, 3001)])
        np.testing.assert_allclose(softplus(x), np.logaddexp(0, x), rtol=4e-16)
