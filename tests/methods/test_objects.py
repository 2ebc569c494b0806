# SPDX-License-Identifier: Apache-2.0
"""A method is given by its name and options, or as an object: it is the same run."""

import math
from dataclasses import fields

import pytest
import torch

from armijo.baselines import AGD
from armijo.data.gate import PrivateDataset
from armijo.data.sources import TensorRows
from armijo.estimators import PrivateLogisticRegression, solve
from armijo.methods import BLGD, DPSGD, Problem, minimize
from armijo.objectives import LinearObjective
from armijo.objectives.module import ModuleObjective
from armijo.registry import LINEAR, NETWORK, make_method
from tests.data.gate_doubles import FreeAccountant
from tests.methods.test_contract import BUDGET, NAMES, ROWS, options_of, rows_of
from tests.networks.network_doubles import flat, network, prepared

CALIBRATED = {"noise_multiplier", "gradient_rho", "search_epsilon"}


@pytest.mark.parametrize("name", ["sgd", "blsgd-ac", "hyfree", "majority", "auto"])
def test_solve_takes_objects(name):
    X, y = rows_of()
    given = {"budget": BUDGET, "n_rows": ROWS, "seed": 3, "max_batches": 100}
    by_name = solve(X, y, method=name, **given)
    entry = LINEAR[name]
    found = solve(X, y, method=entry.kind(**entry.defaults), **given)
    assert found.w.tolist() == by_name.w.tolist()


def test_estimators_take_objects():
    X, y = rows_of()
    given = {"classes": [-1, 1], "n_rows": ROWS, "random_state": 3}
    by_name = PrivateLogisticRegression(method="sgd", **given)
    model = PrivateLogisticRegression(method=DPSGD(), **given)
    assert model.fit(X, y).coef_.tolist() == by_name.fit(X, y).coef_.tolist()
    with pytest.raises(ValueError, match=r"got sampling_prob; give them to DPSGD"):
        make_method(DPSGD(), {"sampling_prob": 0.2})


@pytest.mark.parametrize("name", NETWORK)
def test_networks_take_objects(name):
    by_name, by_object = network(), network()
    given = {"seed": 3, "steps": None, "sampling_prob": None}
    prepared(by_name, method=name, **given).run()
    entry = NETWORK[name]
    prepared(by_object, method=entry.kind(**entry.defaults), **given).run()
    assert flat(by_object).tolist() == flat(by_name).tolist()


GENERAL = {"blsgd", "blsgd-ac", "blgd", "agd", "sgd", "adam", "hyfree"}


def test_what_needs_no_linear_model_has_its_name_for_networks():
    assert set(NETWORK) == {*GENERAL, "auto", "auto-search", "nonprivate"}


@pytest.mark.parametrize("name", sorted(set(NAMES) - GENERAL))
def test_a_method_for_linear_models_is_refused_for_networks(name, tmp_path):
    """Before anything is spent, by what its calibration asks for."""
    method, ledger = make_method(name, options_of(name)), tmp_path / "ledger.jsonl"
    sizes = {"sampling_prob": None, "steps": None, "ledger": ledger}
    with pytest.raises(ValueError, match=r"a linear model, got a network.*was spent"):
        prepared(network(), method=method, **sizes).run()
    assert not ledger.exists()


FREE = {
    BLGD: {"gradient_rho": math.inf, "search_epsilon": math.inf, "max_tries": 40},
    AGD: {"gradient_rho": math.inf, "search_epsilon": 1e9},
}


@pytest.mark.parametrize("kind", FREE)
def test_a_method_of_any_objective_needs_nothing_more_for_networks(kind):
    """A network of one layer is a linear model: the same steps without noise."""
    X, y = rows_of()
    layer = torch.nn.Linear(X.shape[1], 1, dtype=torch.float64)
    table = LinearObjective(loss="logistic", n_features=X.shape[1], l2=0.01)
    module = ModuleObjective(
        layer,
        lambda scores, labels: torch.nn.functional.softplus(-labels * scores[:, 0]),
        l2=0.01,
    )
    method = kind(**FREE[kind]).completed(Problem(objective=table))
    tensors = TensorRows(torch.from_numpy(X), torch.from_numpy(y))
    ends = []
    for objective, rows in ((table, (X, y)), (module, (tensors,))):
        data = PrivateDataset(*rows, n_rows=ROWS, accountant=FreeAccountant())
        start = method.init(torch.zeros(table.size, dtype=torch.float64))
        run = list(minimize(objective, data, method, start, max_batches=6))
        ends.append(run[-1][0].w.tolist())
    assert ends[1] == pytest.approx(ends[0], abs=1e-4)  # scores have 24 bits
    assert max(map(abs, ends[0])) > 0.1


@pytest.mark.parametrize("kind", FREE)
def test_networks_take_methods_on_all_rows(kind, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    sizes = {"sampling_prob": None, "steps": 3, "ledger": ledger}
    run = prepared(network(), method=kind(), **sizes).run()
    assert len(run.records) == 3
    assert 0 < run.records[-1].epsilon <= 2.0
    with pytest.raises(
        ValueError, match=f"sampling_prob=1 or None with {kind.__name__}"
    ):
        prepared(network(), method=kind(), sampling_prob=0.5)


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
        for option in LINEAR[name].options - solved:
            if getattr(method, option) is not None and option != "steps":
                assert getattr(found, option) == getattr(method, option)


@pytest.mark.parametrize("table", [LINEAR, NETWORK])
def test_defaults_of_an_entry_are_options(table):
    for entry in table.values():
        assert entry.defaults.keys() <= entry.kind.options()
