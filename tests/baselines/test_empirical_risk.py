# SPDX-License-Identifier: Apache-2.0
"""Value, gradient, curvature and minimum of the empirical risk."""

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.optimize import approx_fprime

from armijo.baselines import empirical_risk
from armijo.baselines.empirical_risk import EmpiricalRisk, minimized
from armijo.errors import ArmijoError
from tests.baselines.one_shot_doubles import mean_gradient, objective, table, unit_rows

LOSSES = ("logistic", "huber", "softmax")


def risk(loss="logistic", n=40, ridge=0.7, wrap=np.asarray, **more):
    X, y = table(n, d=4)
    labels = torch.as_tensor(y)
    if loss == "softmax":
        labels = torch.as_tensor(np.arange(n) % 3)
    goal = objective(loss, d=4, n_classes=3, fit_intercept=False)
    return EmpiricalRisk(X=wrap(X), y=labels, objective=goal, ridge=ridge, **more)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_matrix])
class TestDerivatives:
    def test_gradient_is_that_of_the_value(self, loss, wrap):
        one = risk(loss, wrap=wrap)
        one = risk(loss, wrap=wrap, linear=np.linspace(-1, 1, one.size))
        w = np.linspace(-0.5, 0.7, one.size)
        numeric = approx_fprime(w, lambda v: one.value_and_gradient(v)[0], 1e-7)
        value, gradient = one.value_and_gradient(w)
        np.testing.assert_allclose(gradient, numeric, atol=2e-4)
        np.testing.assert_array_equal(gradient, one.gradient(w))
        assert value > 0

    def test_curvature_is_that_of_the_gradient(self, loss, wrap):
        one = risk(loss, wrap=wrap)
        w = np.linspace(-0.5, 0.7, one.size)
        v = np.cos(np.arange(one.size))
        numeric = (one.gradient(w + 1e-6 * v) - one.gradient(w - 1e-6 * v)) / 2e-6
        np.testing.assert_allclose(one.hessian_product(w)(v), numeric, atol=1e-6)


def test_signed_rows_are_rows_with_their_labels():
    X, y = table(30)
    Z = unit_rows(X, y)
    one = EmpiricalRisk.of_signed(Z, objective(), ridge=30 * 0.01)
    w = np.array([0.3, -0.2, 0.9, 0.1])
    expected = 30 * mean_gradient(w, Z, "logistic", 0.01, 30)
    np.testing.assert_allclose(one.gradient(w), expected, atol=1e-13)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("tolerance", [1e-2, 1e-6, 1e-11])
def test_the_gradient_norm_is_reached(loss, tolerance):
    one = risk(loss)
    assert np.linalg.norm(one.gradient(minimized(one, tolerance))) <= tolerance


@pytest.mark.parametrize("loss", LOSSES)
def test_newton_steps_finish_what_the_optimizer_left(loss, monkeypatch):
    """An optimizer that stops at once and calls it a success."""
    monkeypatch.setattr(
        empirical_risk.optimize,
        "minimize",
        lambda fun, start, **_: type("Found", (), {"x": start, "success": True}),
    )
    one = risk(loss)
    assert np.linalg.norm(one.gradient(np.zeros(one.size))) > 1
    assert np.linalg.norm(one.gradient(minimized(one, 1e-10))) <= 1e-10


def test_a_flag_of_success_is_not_believed(monkeypatch):
    monkeypatch.setattr(
        empirical_risk.optimize,
        "minimize",
        lambda fun, start, **_: type("Found", (), {"x": start, "success": True}),
    )
    monkeypatch.setattr(empirical_risk, "_polished", lambda risk, w, tolerance: w)
    with pytest.raises(ArmijoError, match="did not reach"):
        minimized(risk(), 1e-6)


def test_the_message_says_nothing_of_the_rows():
    with pytest.raises(ArmijoError) as raised:
        minimized(risk(), 1e-30)
    assert "1e-30" in str(raised.value)
    told = str(raised.value).replace("1e-30", "").replace("l2", "")
    assert not any(letter.isdigit() for letter in told)


def test_without_rows_only_the_ridge_is_left():
    goal = objective(fit_intercept=False)
    linear = np.array([1.0, -2.0, 4.0])
    one = EmpiricalRisk.of_signed(np.empty((0, 3)), goal, ridge=2.0, linear=linear)
    np.testing.assert_allclose(minimized(one, 1e-12), -linear / 2, atol=1e-12)


def test_rows_are_not_shown():
    assert "0." not in repr(risk())
