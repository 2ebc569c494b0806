# SPDX-License-Identifier: Apache-2.0
"""The training loop, and what every method owes it: one contract for all of them."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from armijo.accounting.accountants import Accountant, PrivacyFilter
from armijo.accounting.budget import Budget
from armijo.data.gate import PrivateDataset
from armijo.methods import BLGD, BLSGD, Problem, StepRecord, minimize
from armijo.methods.line_search import LINE_SEARCHES
from armijo.objectives import LinearObjective
from armijo.randomness import Randomness
from armijo.registry import make_method, parameters_of

BUDGET = Budget(epsilon=30.0, delta=1e-5)
SMALL = Budget(epsilon=6.0, delta=1e-5)
PAPER = Budget(epsilon=2.0, delta=1e-5)
ROWS, FEATURES = 80, 3
PROBLEMS = ("logistic", "hinge", "softmax")


LINEAR_MODEL = Problem(objective=LinearObjective(loss="logistic", n_features=2))


def rows_of(loss, rows=ROWS):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(rows, FEATURES))
    if loss == "softmax":
        return X, np.arange(rows) % 3
    return X, np.where(X[:, 0] + 0.5 * rng.normal(size=rows) > 0, 1.0, -1.0)


def objective_of(loss, l2=1e-2):
    return LinearObjective(loss=loss, n_features=FEATURES, n_classes=3, l2=l2)


def gate(X, y, *, seed=0, n_rows=ROWS, budget=BUDGET, orders=3):
    return PrivateDataset(
        X,
        y,
        n_rows=n_rows,
        accountant=PrivacyFilter(budget, order=orders, insecure_deterministic=True),
        randomness=Randomness(seed=seed, insecure_deterministic=True),
    )


def method_of(name, **settings):
    """A method that fails now and then, so that retries are part of every run."""
    asked = {"gradient_rho": 0.05, "search_epsilon": 0.3, **settings}
    taken = {key: asked[key] for key in asked.keys() & parameters_of(name)}
    return calibrated(name, BUDGET, max_tries=3, **taken)


def calibrated(name, budget, **options):
    return make_method(name, options).calibrate(budget, LINEAR_MODEL)


def train(name, loss, *, max_batches=25, data=None, **settings):
    method, objective = method_of(name, **settings), objective_of(loss)
    data = gate(*rows_of(loss)) if data is None else data
    start = method.init(torch.zeros(objective.size, dtype=torch.float64))
    found = list(minimize(objective, data, method, start, max_batches=max_batches))
    return method, data, [state for state, _ in found], [record for _, record in found]


@pytest.mark.parametrize("loss", PROBLEMS)
@pytest.mark.parametrize("name", LINE_SEARCHES)
class TestContract:
    def test_plan_is_pure(self, name, loss):
        method, data, states, _ = train(name, loss, max_batches=6)
        charges = data.accountant.n_charges
        for state in states:
            before, w = dataclasses.replace(state), state.w.clone()
            assert method.plan(state) == method.plan(state)
            assert state == before
            assert torch.equal(state.w, w)
        assert data.accountant.n_charges == charges

    def test_one_charge_for_each_record(self, name, loss):
        method, data, states, records = train(name, loss)
        charges = data.accountant.ledger.charges
        assert [record.batch for record in records] == list(range(len(charges)))
        assert [charge.label for charge in charges] == [type(method).__name__] * 25
        assert any(record.step_size == 0 for record in records)
        assert any(record.step_size > 0 for record in records)
        objective = objective_of(loss)
        start = method.init(torch.zeros(objective.size, dtype=torch.float64))
        before = [start, *states[:-1]]
        for state, charge in zip(before, charges, strict=True):
            wanted = data.accountant.cost(method.plan(state).mechanism)
            assert charge.cost == tuple(wanted)

    def test_each_batch_is_charged_jointly(self, name, loss):
        """Retries too: a gradient and a search, composed and then amplified once."""
        _, data, _, records = train(name, loss)
        for record, charge in zip(records, data.accountant.ledger.charges, strict=True):
            plan = charge.mechanism
            assert plan["mechanism"] == "Subsampled"
            assert plan["sampling_prob"] == (1.0 if name == "blgd" else 0.1)
            assert plan["inner"]["mechanism"] == "Composed"
            gradient, search = plan["inner"]["mechanisms"]
            assert gradient["mechanism"] == "Gaussian"
            assert gradient["sensitivity"] == record.max_grad_norm
            assert search["mechanism"] == "AboveThreshold"
            assert search["query_scale"] == pytest.approx(4 / record.search_epsilon)
            if name != "blgd":
                scale = record.max_grad_norm / math.sqrt(2 * record.gradient_rho)
                assert gradient["noise_scale"] == pytest.approx(scale)

    def test_ends_exactly_where_the_filter_refuses(self, name, loss):
        data = gate(*rows_of(loss), budget=SMALL, orders=5)
        method, data, states, records = train(name, loss, max_batches=400, data=data)
        accountant = data.accountant
        assert 0 < len(records) == accountant.n_charges < 400
        assert np.all(accountant.spent <= accountant.limits)
        assert not data.affords(method.plan(states[-1]))
        spent = [record.epsilon for record in records]
        assert spent == sorted(spent)
        assert 0 < spent[-1] <= SMALL.epsilon
        assert spent[-1] == accountant.epsilon_spent()

    def test_empty_batches_are_batches(self, name, loss):
        X, y = rows_of(loss)
        data = gate(X[:0], y[:0]) if name == "blgd" else gate(X, y)
        _, data, states, records = train(
            name, loss, data=data, sampling_prob=1e-9, max_batches=5
        )
        assert len(records) == data.accountant.n_charges == 5
        assert torch.isfinite(states[-1].w).all()
        assert min(record.direction_norm for record in records) > 0

    def test_the_penalty_costs_nothing(self, name, loss):
        costs = []
        for l2 in (0.0, 5.0):
            method, objective = method_of(name, adapt="never"), objective_of(loss, l2)
            data = gate(*rows_of(loss))
            start = method.init(torch.ones(objective.size, dtype=torch.float64))
            for _ in minimize(objective, data, method, start, max_batches=1):
                pass
            costs.append([charge.cost for charge in data.accountant.ledger.charges])
        assert costs[0] == costs[1]


class TestRecord:
    def test_holds_released_values_only(self):
        """Any other field must first be shown to be public or paid for.

        Written out here and nowhere else: taken from the class, it could not fail.
        """
        assert {field.name for field in dataclasses.fields(StepRecord)} == {
            "batch",
            "update",
            "step_size",
            "tries",
            "gradients",
            "direction_norm",
            "angle",
            "gradient_rho",
            "search_epsilon",
            "max_grad_norm",
            "loss_clip",
            "initial_step",
            "epsilon",
        }

    def test_norm_is_that_of_the_noisy_direction(self):
        """The divisor is the public size, whatever number of rows was found."""
        norms = []
        for n_rows in (ROWS, 1000 * ROWS):
            data = gate(*rows_of("logistic"), n_rows=n_rows)
            _, _, _, records = train("blsgd", "logistic", data=data, max_batches=1)
            norms.append(records[0].direction_norm)
        assert norms[0] / norms[1] == pytest.approx(1000)

    def test_describes_the_batch_and_not_the_next(self):
        _, _, states, records = train("blsgd-ac", "logistic", adapt="always")
        assert records[0].gradient_rho == 0.05
        for state, record in zip(states, records[1:], strict=False):
            assert record.gradient_rho == state.gradient_rho
            assert record.max_grad_norm == state.max_grad_norm
            assert record.loss_clip == state.loss_clip
            assert record.initial_step == state.initial_step
            assert record.update == state.updates
        assert states[-1].gradient_rho > 0.05
        assert states[-1].max_grad_norm < 3.0

    def test_to_dict(self):
        record = train("blsgd", "logistic", max_batches=1)[3][0]
        assert StepRecord(**record.to_dict()) == record
        assert record.angle is None


class TestLoop:
    def test_max_batches(self):
        assert len(train("blsgd", "logistic", max_batches=3)[3]) == 3
        _, data, _, records = train("blsgd", "logistic", max_batches=0)
        assert (records, data.accountant.n_charges) == ([], 0)

    def test_is_lazy(self):
        method, objective = method_of("blsgd"), objective_of("logistic")
        data = gate(*rows_of("logistic"))
        start = method.init(torch.zeros(objective.size, dtype=torch.float64))
        run = minimize(objective, data, method, start)
        assert data.accountant.n_charges == 0
        next(run)
        assert data.accountant.n_charges == 1

    def test_a_budget_below_one_step_yields_nothing(self):
        data = gate(*rows_of("logistic"))
        _, data, _, records = train("blsgd", "logistic", data=data, gradient_rho=500.0)
        assert (records, data.accountant.n_charges) == ([], 0)

    def test_other_errors_are_not_taken_for_the_end(self, monkeypatch):
        def broken(self, *args):
            raise RuntimeError("disk on fire")

        monkeypatch.setattr(BLSGD, "step", broken)
        with pytest.raises(RuntimeError, match="disk on fire"):
            train("blsgd", "logistic")


class TestMethodsByName:
    def test_the_paper_divides_epsilon_by_a_hundred(self):
        method = calibrated("blsgd", PAPER)
        assert method.search_epsilon == pytest.approx(0.02)
        assert method.gradient_rho == pytest.approx(0.02**2 / 2)
        assert (method.max_grad_norm, method.loss_clip, method.initial_step) == (
            3,
            1,
            2,
        )
        assert (method.budget_growth, method.sampling_prob) == (0.3, 0.1)
        assert (method.reset_every, method.growth_cap) == (10, 1.2)
        assert (method.angle_decay, method.angle_high, method.angle_low) == (
            0.8,
            1.1,
            0.5,
        )

    @pytest.mark.parametrize("name", LINE_SEARCHES)
    def test_kind_and_clip_decay(self, name):
        method = calibrated(name, PAPER)
        assert type(method) is (BLGD if name == "blgd" else BLSGD)
        if name != "blgd":
            assert method.clip_decay == (0.05 if name == "blsgd-ac" else 0.0)

    @pytest.mark.parametrize("name", LINE_SEARCHES)
    @pytest.mark.parametrize("kind", ["laplace", "gaussian"])
    def test_expected_steps_use_up_the_budget(self, name, kind):
        method = calibrated(name, PAPER, expected_steps=20, search=kind)
        assert method.search_epsilon == pytest.approx(
            math.sqrt(2 * method.gradient_rho)
        )
        step = method.plan(method.init(torch.zeros(2, dtype=torch.float64))).mechanism
        best = max(
            np.max(watch.limits / step.rdp(np.array([float(watch.order)])))
            for watch in (PrivacyFilter(PAPER, order=a) for a in range(7, 30))
        )
        assert 19.9 < best < 20.5

    def test_given_budgets_go_first(self):
        method = calibrated("blsgd", PAPER, gradient_rho=0.5, expected_steps=30)
        assert method.gradient_rho == 0.5
        assert method.search_epsilon != pytest.approx(1.0)


def test_a_record_names_the_charge_of_its_own_batch(monkeypatch):
    """Not the latest charge, which may be one of another thread."""
    charge = Accountant.charge

    def twice(self, mechanism, **settings):
        number = charge(self, mechanism, **settings)
        charge(self, mechanism, label="of another thread")
        return number

    monkeypatch.setattr(Accountant, "charge", twice)
    _, _, _, records = train("blsgd", "logistic", max_batches=3)
    assert [record.batch for record in records] == [0, 2, 4]
