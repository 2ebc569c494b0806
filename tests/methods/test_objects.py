# SPDX-License-Identifier: Apache-2.0
"""A method is given by its name and options, or as an object: it is the same run."""

from dataclasses import fields

import pytest

from armijo.estimators import PrivateLogisticRegression, solve
from armijo.methods import DPSGD, Problem
from armijo.objectives import LinearObjective
from armijo.registry import LINEAR, NETWORK, make_method
from tests.methods.test_contract import BUDGET, NAMES, ROWS, options_of, rows_of
from tests.networks.network_doubles import flat, network, prepared

CALIBRATED = {"noise_multiplier", "gradient_rho", "search_epsilon"}


@pytest.mark.parametrize("name", ["sgd", "blsgd-ac", "objpert", "majority", "auto"])
def test_solve_takes_objects(name):
    X, y = rows_of()
    given = {"budget": BUDGET, "n_rows": ROWS, "seed": 3}
    by_name = solve(X, y, method=name, options=options_of(name), **given)
    method = make_method(name, options_of(name))
    assert solve(X, y, method=method, **given).w.tolist() == by_name.w.tolist()


def test_estimators_take_objects():
    X, y = rows_of()
    given = {"classes": [-1, 1], "n_rows": ROWS, "random_state": 3}
    by_name = PrivateLogisticRegression(method="sgd", options={"steps": 9}, **given)
    model = PrivateLogisticRegression(method=DPSGD(steps=9), **given)
    assert model.fit(X, y).coef_.tolist() == by_name.fit(X, y).coef_.tolist()
    model.set_params(options={"sampling_prob": 0.2})
    with pytest.raises(ValueError, match=r"got sampling_prob; give them to DPSGD"):
        model.fit(X, y)


def test_networks_take_objects():
    by_name, by_object = network(), network()
    prepared(by_name, method="sgd", seed=3, steps=4, sampling_prob=0.5).run()
    method = DPSGD(steps=4, sampling_prob=0.5, max_grad_norm=1.0)
    prepared(by_object, method=method, seed=3, steps=None, sampling_prob=None).run()
    assert flat(by_object).tolist() == flat(by_name).tolist()


def test_a_method_for_tables_is_refused_for_networks():
    with pytest.raises(ValueError, match="Expected a method for networks, got Auto;"):
        prepared(network(), method=make_method("auto"))


@pytest.mark.parametrize("name", NAMES)
class TestEveryMethod:
    def test_calibration_completes_it(self, name):
        objective = LinearObjective(loss="huber", n_features=2)
        method = make_method(name, options_of(name))
        found = method.calibrate(BUDGET, Problem(objective=objective, n_rows=ROWS))
        assert type(found) is type(method)
        solved = {one.name for one in fields(found) if one.metadata.get("solved")}
        solved |= CALIBRATED & vars(found).keys()
        assert all(getattr(found, one) is not None for one in solved)
        assert not solved & (LINEAR[name].options - CALIBRATED)
        for option in LINEAR[name].options - solved - method.nested.keys():
            if getattr(method, option) is not None and option != "steps":
                assert getattr(found, option) == getattr(method, option)


@pytest.mark.parametrize("table", [LINEAR, NETWORK])
def test_defaults_of_an_entry_are_options(table):
    for entry in table.values():
        assert entry.defaults.keys() <= entry.kind.options()
