# SPDX-License-Identifier: Apache-2.0
"""Exact values exist only where the switch is, and everything it touches says so."""

import numpy as np
import pytest

from armijo.accounting.accountants import LEAKY
from armijo.accounting.ledger import read_ledger
from armijo.errors import PrivacyLeakWarning
from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression
from armijo.registry import make_method

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3))
y = (X[:, 0] + 0.3 * RNG.normal(size=400) > 0).astype(int)
PUBLIC = {"epsilon": 4.0, "delta": 1e-6, "classes": [0, 1], "n_rows": 400}


def fitted(kind=PrivateLogisticRegression, **given):
    with pytest.warns(PrivacyLeakWarning, match="leaky_diagnostics"):
        return kind(**PUBLIC, leaky_diagnostics=True, **given).fit(X, y)


@pytest.mark.parametrize("method", ["auto", "blsgd", "blgd", "sgd", "objpert"])
def test_every_statement_says_that_there_is_no_guarantee(method, tmp_path):
    short = {"objpert": {"data_norm": 2.0}, "blsgd": {"expected_steps": 10}}
    path = tmp_path / "ledger.jsonl"
    chosen = make_method(method, short.get(method))
    model = fitted(method=chosen, ledger=path, max_batches=None)
    assert not model.privacy_.guarantee.holds
    assert LEAKY in model.privacy_.guarantee.broken_premises
    assert "NO GUARANTEE" in str(model.privacy_)
    header = read_ledger(path).header
    assert header["guarantee"] is False and LEAKY in header["broken_premises"]


@pytest.mark.parametrize("kind", [PrivateLogisticRegression, PrivateLinearSVC])
def test_the_values_are_exact(kind):
    model = fitted(kind, method="sgd", max_batches=None)
    exact = model.leaky_diagnostics_
    assert exact["batch"].tolist() == model.history_["batch"].tolist()
    assert exact["leaky_accuracy"].iloc[-1] == model.score(X, y)
    margins = (2 * y - 1) * model.decision_function(X)
    loss = np.logaddexp(0, -margins)
    if kind is PrivateLinearSVC:
        loss = np.maximum(0, 1 - margins)
    size = (model.coef_**2).sum() + (model.intercept_**2).sum()
    last = exact.iloc[-1]
    assert last["leaky_objective"] == pytest.approx(loss.mean() + 5e-4 * size)
    assert last["leaky_largest_loss"] == pytest.approx(loss.max())


def test_more_than_two_classes():
    three = y + (X[:, 1] > 1)
    with pytest.warns(PrivacyLeakWarning, match="leaky_diagnostics"):
        model = PrivateLogisticRegression(
            **{**PUBLIC, "classes": [0, 1, 2]}, leaky_diagnostics=True
        ).fit(X, three)
    assert model.leaky_diagnostics_["leaky_accuracy"].iloc[-1] == model.score(X, three)


def test_without_the_switch_nothing_exact_is_kept():
    model = PrivateLogisticRegression(**PUBLIC).fit(X, y)
    assert not [name for name in vars(model) if "leaky" in name and name[-1] == "_"]
    assert not [name for name in model.history_.columns if "leaky" in name]
    assert model.privacy_.guarantee.holds


def test_a_later_fit_drops_what_an_earlier_one_leaked():
    model = fitted(method="sgd").set_params(leaky_diagnostics=False).fit(X, y)
    assert model.privacy_.guarantee.holds
    assert not hasattr(model, "leaky_diagnostics_")
