# SPDX-License-Identifier: Apache-2.0
"""One contract for every method that ``method=`` takes."""

import math
from functools import cache

import numpy as np
import pytest
from scipy import sparse

from armijo.accounting.accountants import NOT_PRIVATE, Accountant
from armijo.accounting.budget import Budget
from armijo.accounting.ledger import read_ledger
from armijo.data.gate import PrivateDataset
from armijo.errors import BudgetExceeded
from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression, solve
from armijo.methods.line_search import LINE_SEARCHES
from armijo.registry import METHODS, make_method, parameters_of

NAMES = """blsgd blsgd-ac blgd agd sgd adam outpert-rsgd outpert-gd objpert objpert-kst
objpert-pure amp privgene hyfree sgd-tuned majority nonprivate auto""".split()
REPLACE_ONE = {"outpert-rsgd", "outpert-gd", "objpert-pure", "amp"}
ADAPTIVE = {*LINE_SEARCHES, "agd"}
BUDGET = Budget(epsilon=2.0, delta=1e-5)
ROWS, FEATURES = 300, 3
EXACT_SHARE = 0.95


def rows_of(rows=ROWS, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, FEATURES))
    return X, np.where(X[:, 0] + 0.2 * rng.normal(size=rows) > 0.5, 1.0, -1.0)


def options_of(name):
    """Small settings, so that the whole contract takes seconds."""
    asked = {
        "data_norm": 1.5,
        "steps": 12,
        "generations": 4,
        "epochs": 2,
        "expected_steps": 15,
    }
    takes = parameters_of(name)
    return {key: value for key, value in asked.items() if key in takes}


# Of AGD: a dozen batches instead of three hundred.
FEWER = {"agd": {"splits": 12}}


def run(name, *, X=None, y=None, budget=BUDGET, loss="logistic", seed=0, **more):
    if X is None:
        X, y = rows_of()
    return solve(
        X,
        y,
        method=make_method(name, options_of(name) | FEWER.get(name, {})),
        budget=budget,
        loss=loss,
        n_rows=more.pop("n_rows", ROWS),
        seed=seed,
        **more,
    )


@cache
def usual(name, loss):
    """Return a seeded run that tests only read."""
    return run(name, loss=loss, max_batches=None)


def test_all_names_are_there():
    assert sorted(METHODS) == sorted(NAMES)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("name", NAMES)
class TestContract:
    def test_the_same_seed_gives_the_same_result(self, name, loss):
        first, again = usual(name, loss), run(name, loss=loss, max_batches=None)
        assert first.w.tolist() == again.w.tolist()
        assert first.records == again.records
        if name not in ("majority", "nonprivate"):
            assert first.w.tolist() != run(name, loss=loss, seed=1).w.tolist()

    def test_an_unseeded_run_differs_and_says_its_relation(self, name, loss):
        first, again = run(name, loss=loss, seed=None), run(name, loss=loss, seed=None)
        guarantee = first.guarantee
        if name == "nonprivate":
            assert NOT_PRIVATE in guarantee.sentence()
            return
        if name != "majority":
            assert first.w.tolist() != again.w.tolist()
        expected = "replace-one" if name in REPLACE_ONE else "add-remove"
        assert guarantee.holds
        assert f"under the {expected} relation" in guarantee.sentence()

    def test_keeps_and_uses_its_budget(self, name, loss):
        found = usual(name, loss)
        assert 0 < found.epsilon_spent <= BUDGET.epsilon
        if name not in ADAPTIVE:
            assert found.epsilon_spent >= EXACT_SHARE * BUDGET.epsilon
        spent = [record.epsilon for record in found.records]
        assert spent == sorted(spent)

    def test_charges_before_it_reads(self, name, loss, monkeypatch):
        events = []
        charge, sample = Accountant.charge, PrivateDataset._sample

        def charged(self, mechanism, **settings):
            number = charge(self, mechanism, **settings)
            events.append("charge")
            return number

        def sampled(self, *given):
            events.append("sample")
            return sample(self, *given)

        monkeypatch.setattr(Accountant, "charge", charged)
        monkeypatch.setattr(PrivateDataset, "_sample", sampled)
        run(name, loss=loss, max_batches=None)
        assert events == ["charge", "sample"] * (len(events) // 2)
        assert events

    def test_refuses_when_the_budget_is_used_up(self, name, loss, tmp_path):
        """Further runs on the same ledger get no more than is left of it.

        An adaptive run may end because its next batch would be large; a new run then
        affords a few small ones.  A planned run leaves nothing.
        """
        path = tmp_path / "ledger.jsonl"
        first = run(name, loss=loss, ledger=path)
        assert len(read_ledger(path).charges) == len(first.records)
        more = 0
        with pytest.raises(BudgetExceeded):
            while more < 200:
                run(name, loss=loss, ledger=path)
                more += 1
        assert more == 0 or name in ADAPTIVE
        view = read_ledger(path)
        limits = np.array(view.header["limits"])
        spent = np.sum([charge.cost for charge in view.charges], axis=0)
        assert np.all(spent <= limits)

    def test_survives_no_rows_at_all(self, name, loss):
        X, y = rows_of()
        found = run(name, X=X[:0], y=y[:0], loss=loss)
        assert np.isfinite(found.w).all()

    def test_survives_rows_that_are_no_numbers(self, name, loss):
        """Nor do they make it speak: a warning, an error here, would tell of them."""
        X, y = rows_of()
        X[::7, 1], X[1::7, 2], X[2, 0], X[6, 0] = np.nan, np.inf, -np.inf, 1e300
        if name != "nonprivate":  # whose solver may say that it does not get there
            X[3], X[4], X[5], X[9], X[10, 2] = 1e154, 3e37, 5e-324, 1e308, -1e200
        form = np.asarray if loss == "logistic" else sparse.csr_matrix
        found = run(name, X=form(X), y=y, loss=loss)
        assert np.isfinite(found.w).all()

    def test_records_are_finite_numbers_or_nothing(self, name, loss):
        for record in usual(name, loss).records:
            for value in record.to_dict().values():
                assert value is None or math.isfinite(value)

    def test_evaluations_are_counted_or_kept_secret(self, name, loss):
        found = usual(name, loss)
        secret = {"objpert", "objpert-kst", "objpert-pure", "amp", "nonprivate"}
        secret |= {"sgd-tuned"}
        assert (found.gradient_evaluations is None) == (name in secret)
        assert found.objective_evaluations >= 0


@pytest.mark.parametrize("name", NAMES)
class TestParameters:
    def test_a_foreign_parameter_is_refused_by_name(self, name):
        with pytest.raises(ValueError, match="does not take temperature"):
            make_method(name, {"temperature": 1.0})

    def test_a_mean_of_iterates_is_for_those_that_have_one(self, name):
        takes = name in (*LINE_SEARCHES, "auto")
        assert ("average_iterates" in parameters_of(name)) == takes
        if not takes:
            with pytest.raises(ValueError, match="does not take average_iterates"):
                make_method(name, {**options_of(name), "average_iterates": True})

    def test_runs_through_the_estimators(self, name):
        X, y = rows_of()
        for kind in (PrivateLogisticRegression, PrivateLinearSVC):
            model = kind(
                epsilon=2.0,
                delta=1e-5,
                method=make_method(name, options_of(name)),
                classes=[-1, 1],
                n_rows=ROWS,
            ).fit(X, y)
            assert model.predict(X).shape == (ROWS,)
            assert model.n_iter_ == len(model.history_) == len(model.privacy_.ledger)
            assert str(model.privacy_.relation.value) in str(model.privacy_) or (
                name == "nonprivate"
            )


BOUNDED = [name for name in NAMES if "data_norm" in parameters_of(name)]


@pytest.mark.parametrize("name", sorted({*BOUNDED} - {"auto"}))
def test_a_bound_on_rows_is_asked_for(name):
    with pytest.raises(ValueError, match="never read from the data"):
        make_method(name, {})
