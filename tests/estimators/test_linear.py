# SPDX-License-Identifier: Apache-2.0
"""The estimators: what they promise, what they warn of, what they refuse unspent."""

import json
import pickle
import re

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import armijo.estimators.linear as base_module
from armijo.accounting.budget import Neighboring
from armijo.accounting.ledger import read_ledger
from armijo.accounting.paper import BROKEN_PREMISES
from armijo.errors import BudgetExceeded, PrivacyLeakWarning
from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression, unknown_rows
from armijo.methods import BLSGD, DPSGD, StepRecord
from armijo.methods.line_search import LINE_SEARCHES
from armijo.registry import make_method
from tests.estimators.flat import parameters

BOTH = pytest.mark.parametrize("kind", [PrivateLogisticRegression, PrivateLinearSVC])
ROWS = 600


def table(classes=(0, 1), rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    index = rng.integers(0, len(classes), size=rows)
    centers = 2.0 * rng.normal(size=(len(classes), 3))
    return centers[index] + 0.5 * rng.normal(size=(rows, 3)), np.array(classes)[index]


def model(kind=PrivateLogisticRegression, **settings):
    small = {
        "method": "blsgd",
        "epsilon": 6.0,
        "gradient_rho": 0.05,
        "search_epsilon": 0.3,
    }
    public = {"max_batches": 8, "classes": [0, 1], "n_rows": ROWS}
    return kind(**parameters({**small, **public, **settings}))


class TestFitted:
    @BOTH
    def test_nothing_has_to_be_set(self, kind):
        X, y = table(rows=3000)
        found = kind(epsilon=2.0, delta=1e-6, classes=[0, 1], n_rows=3000).fit(X, y)
        assert found.method == "auto"
        assert found.score(X, y) > 0.9
        assert found.privacy_.guarantee.holds

    @BOTH
    def test_attributes(self, kind):
        found = model(kind).fit(*table())
        assert (found.coef_.shape, found.intercept_.shape) == ((1, 3), (1,))
        assert found.classes_.tolist() == [0, 1]
        assert found.n_iter_ == len(found.history_) == 8
        assert list(found.history_.columns) == list(StepRecord.__dataclass_fields__)
        assert found.history_["batch"].tolist() == list(range(8))
        assert np.any(found.coef_ != 0)

    @BOTH
    @pytest.mark.parametrize("method", [*LINE_SEARCHES, "sgd", "adam", "agd"])
    def test_learns(self, kind, method):
        X, y = table(rows=3000)
        found = model(kind, epsilon=8.0, n_rows=3000, random_state=0)
        options = {"expected_steps": 15} if method in LINE_SEARCHES else {}
        found.set_params(method=make_method(method, options), max_batches=None)
        assert found.fit(X, y).score(X, y) > 0.9

    @pytest.mark.parametrize(
        "settings",
        [
            {"search": "gaussian"},
            {"search_form": "difference", "subtract_noise": True},
            {"armijo_scaling": "as-published"},
            {"average_iterates": True},
            {"adapt": "always", "average": "weighted", "method": "blsgd-ac"},
            {"sampling_prob": 1.0, "max_batches": 3},
        ],
    )
    def test_settings_reach_the_run(self, settings):
        found = model(**settings).fit(*table())
        assert np.isfinite(found.coef_).all()
        plan = found.privacy_.ledger[0].mechanism
        search = plan["inner"]["mechanisms"][1]
        assert search["kind"] == settings.get("search", "laplace")
        assert plan["sampling_prob"] == settings.get("sampling_prob", 0.1)

    def test_without_intercept(self):
        found = model(fit_intercept=False).fit(*table())
        assert (found.intercept_.tolist(), found.coef_.shape) == ([0.0], (1, 3))

    def test_loss_of_the_svc(self):
        hinge, huber = (
            model(PrivateLinearSVC, loss=loss, random_state=1).fit(*table()).coef_
            for loss in (None, "huber")
        )
        assert not np.array_equal(hinge, huber)


class TestPredict:
    def test_words_as_labels(self):
        X, y = table(("no", "yes"))
        found = model(classes=["yes", "no"]).fit(X, y)
        assert found.classes_.tolist() == ["no", "yes"]
        scores = found.decision_function(X)
        np.testing.assert_allclose(
            scores, X @ found.coef_[0] + found.intercept_[0], atol=1e-12
        )
        expected = np.where(scores >= 0, "yes", "no")
        assert found.predict(X).tolist() == expected.tolist()
        chances = found.predict_proba(X)
        np.testing.assert_allclose(chances[:, 1], 1 / (1 + np.exp(-scores)))
        np.testing.assert_allclose(chances.sum(axis=1), 1.0)
        np.testing.assert_allclose(found.predict_log_proba(X), np.log(chances))

    def test_a_score_of_zero_is_the_second_class(self):
        found = model().fit(*table())
        found.coef_[:], found.intercept_[:] = 0.0, 0.0
        assert found.predict(np.ones((1, 3))).tolist() == [1]

    def test_three_classes(self):
        X, y = table(("a", "b", "c"), rows=3000)
        found = model(classes=["a", "b", "c"], n_rows=3000, random_state=0)
        method = BLSGD(gradient_rho=0.5, search_epsilon=1.0)
        found.set_params(epsilon=20.0, method=method, max_batches=20)
        found.fit(X, y)
        assert (found.coef_.shape, found.intercept_.shape) == ((3, 3), (3,))
        assert found.score(X, y) > 0.8
        np.testing.assert_allclose(found.predict_proba(X).sum(axis=1), 1.0)
        best = found.decision_function(X).argmax(axis=1)
        assert found.predict(X).tolist() == found.classes_[best].tolist()

    def test_softmax_is_not_a_loss_for_two_classes(self):
        X, y = table()
        with pytest.raises(ValueError, match="loss to be one of logistic"):
            model(loss="softmax").fit(X, y)


class TestData:
    def capture(self, monkeypatch):
        seen = []
        real = base_module.ArrayRows

        def spied(X, y):
            seen.append(X)
            return real(X, y)

        monkeypatch.setattr(base_module, "ArrayRows", spied)
        return seen

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_dense_and_memmap_without_a_copy(self, tmp_path, monkeypatch, dtype):
        seen = self.capture(monkeypatch)
        X, y = table()
        np.save(tmp_path / "X.npy", X.astype(dtype))
        mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
        plain = np.array(mapped)
        first = model(random_state=3).fit(mapped, y)
        second = model(random_state=3).fit(plain, y)
        assert np.shares_memory(seen[0], mapped)
        assert np.shares_memory(seen[1], plain)
        assert seen[0].dtype == dtype
        np.testing.assert_array_equal(first.coef_, second.coef_)
        np.testing.assert_array_equal(first.predict(mapped), second.predict(plain))

    def test_csr_without_a_copy(self, monkeypatch):
        seen = self.capture(monkeypatch)
        X, y = table()
        X[np.abs(X) < 0.7] = 0.0
        rows = sparse.csr_matrix(X)
        found = model(random_state=3).fit(rows, y)
        assert sparse.issparse(seen[0])
        assert np.shares_memory(seen[0].data, rows.data)
        dense = model(random_state=3).fit(X, y)
        np.testing.assert_allclose(found.coef_, dense.coef_, atol=1e-6)
        np.testing.assert_array_equal(found.predict(rows), dense.predict(X))


class TestPrivacy:
    def test_statement(self):
        found = model(delta=1e-6).fit(*table()).privacy_
        assert found.guarantee.holds
        assert (found.budget.epsilon, found.budget.delta) == (6.0, 1e-6)
        assert found.accountant == "filter-rdp"
        assert len(found.ledger) == 8
        assert found.ledger_path is None
        assert 0 < found.epsilon_spent <= 6.0
        assert str(found).startswith("(6, 1e-06)-differentially private")
        document = json.loads(json.dumps(found.to_dict()))
        assert document["n_charges"] == 8
        assert document["relation"] == "add-remove"

    def test_a_size_that_was_found_is_zero_out(self):
        found = model(n_rows=None).fit(*table())
        assert found.privacy_.relation is Neighboring.ZERO_OUT
        assert "zero-out" in str(found.privacy_)

    def test_the_given_size_is_the_divisor(self):
        norms = [
            model(n_rows=n, random_state=1, max_batches=1, l2=0.0)
            .fit(*table())
            .history_["direction_norm"][0]
            for n in (ROWS, 10 * ROWS)
        ]
        assert norms[0] / norms[1] == pytest.approx(10)

    @BOTH
    def test_classes_from_the_labels_are_a_leak(self, kind):
        with pytest.warns(PrivacyLeakWarning, match="classes were read"):
            found = model(kind, classes=None).fit(*table())
        assert found.classes_.tolist() == [0, 1]

    def test_a_seed_voids_the_promise(self):
        first, second = (model(random_state=5).fit(*table()) for _ in range(2))
        np.testing.assert_array_equal(first.coef_, second.coef_)
        assert not first.privacy_.guarantee.holds
        assert "seed" in first.privacy_.guarantee.broken_premises[0]
        assert str(first.privacy_).startswith("NO GUARANTEE")

    def test_accounting_of_the_paper(self):
        with pytest.warns(PrivacyLeakWarning, match="no valid guarantee"):
            found = model(accounting="paper").fit(*table())
        assert not found.privacy_.guarantee.holds
        assert found.privacy_.guarantee.broken_premises == BROKEN_PREMISES
        assert found.privacy_.accountant == "paper-as-printed"

    def test_the_budget_ends_the_run(self):
        found = model(max_batches=None, epsilon=2.0).fit(*table())
        assert 1 <= found.n_iter_ == len(found.privacy_.ledger)
        assert found.privacy_.epsilon_spent <= 2.0


class TestScikitLearn:
    @BOTH
    def test_pipeline(self, kind):
        X, y = table()
        halved = FunctionTransformer(lambda rows: rows / 2)
        found = make_pipeline(halved, model(kind, random_state=2)).fit(X, y)
        alone = model(kind, random_state=2).fit(X / 2, y)
        np.testing.assert_array_equal(found.predict(X), alone.predict(X / 2))

    def test_search_warns(self):
        search = GridSearchCV(model(max_batches=2), {"l2": [1e-3, 1e-2]}, cv=2)
        with pytest.warns(PrivacyLeakWarning, match="once per fit") as caught:
            search.fit(*table())
        assert len(caught) == 4  # two folds for each of two settings; not the refit

    def test_cross_validation_warns(self):
        with pytest.warns(PrivacyLeakWarning, match="once per fit") as caught:
            cross_val_score(model(max_batches=2), *table(), cv=3)
        assert len(caught) == 3

    @BOTH
    def test_clone(self, kind):
        found = model(kind, epsilon=0.7, method="blgd")
        copy = clone(found.set_params(epsilon=6.0).fit(*table()))
        assert copy.get_params() == found.get_params()
        assert not hasattr(copy, "coef_")

    def test_pickle_with_a_ledger(self, tmp_path):
        X, y = table()
        found = model(ledger=tmp_path / "run.ledger").fit(X, y)
        copy = pickle.loads(pickle.dumps(found))
        np.testing.assert_array_equal(copy.predict_proba(X), found.predict_proba(X))
        assert copy.privacy_ == found.privacy_
        assert copy.history_.equals(found.history_)
        assert copy.privacy_.ledger_path == str(tmp_path / "run.ledger")


class TestLedger:
    def test_holds_every_charge(self, tmp_path):
        found = model(ledger=tmp_path / "run.ledger").fit(*table())
        assert read_ledger(tmp_path / "run.ledger").charges == found.privacy_.ledger
        assert len(found.privacy_.ledger) == found.n_iter_

    def test_a_second_fit_gets_what_is_left(self, tmp_path):
        settings = {"ledger": tmp_path / "run", "adapt": "never", "epsilon": 2.0}
        whole = model(adapt="never", epsilon=2.0, max_batches=None).fit(*table())
        first = model(max_batches=3, **settings).fit(*table())
        second = model(max_batches=None, **settings).fit(*table())
        assert first.n_iter_ + second.n_iter_ == whole.n_iter_
        assert second.privacy_.ledger == whole.privacy_.ledger
        view = read_ledger(tmp_path / "run")
        assert len(view.charges) == whole.n_iter_
        assert view.spent[0] <= view.header["limits"][0]
        with pytest.raises(BudgetExceeded, match="new ledger"):
            model(max_batches=None, **settings).fit(*table())
        assert read_ledger(tmp_path / "run") == view


class TestCallback:
    def test_sees_every_record(self):
        seen = []
        found = model(callback=seen.append).fit(*table())
        assert all(isinstance(record, StepRecord) for record in seen)
        rows = found.history_.replace({np.nan: None}).to_dict("records")
        assert [record.to_dict() for record in seen] == rows

    def test_true_stops_and_nothing_else(self):
        found = model(callback=lambda record: record.batch == 2).fit(*table())
        assert found.n_iter_ == len(found.privacy_.ledger) == 3
        assert model(callback=lambda record: 1).fit(*table()).n_iter_ == 8


def spoiled(value):
    X, y = table()
    X[7, 1] = value
    return X, y


READ = {"classes": None}  # from the labels, outside of the guarantee


def one_class():
    X, _ = table()
    return X, np.ones(ROWS, dtype=int)


@pytest.mark.parametrize(
    ("settings", "rows", "match"),
    [
        (READ, lambda: spoiled(np.nan), "NaN"),
        (READ, lambda: spoiled(np.inf), "infinity"),
        (READ, lambda: (sparse.csr_matrix(spoiled(np.nan)[0]), table()[1]), "NaN"),
        (READ, one_class, "two classes"),
        ({"classes": [1]}, one_class, "two classes"),
        ({}, lambda: (table()[0], table()[1].astype(str)), "type of the classes"),
        ({}, lambda: (np.zeros((0, 3)), np.zeros(0)), "0 sample"),
        ({}, lambda: (table()[0], table()[1][:-1]), "a label for each row"),
        (READ, lambda: (table()[0], table()[0][:, 0]), "Unknown label type"),
        ({"epsilon": 0.0}, table, "epsilon > 0"),
        ({"epsilon": -1.0}, table, "epsilon > 0"),
        ({"epsilon": np.nan}, table, "epsilon to be finite"),
        ({"delta": 0.0}, table, "delta"),
        ({"delta": 1.0}, table, "delta"),
        ({"method": "newton"}, table, "method"),
        ({"loss": "squared"}, table, "loss"),
        ({"accounting": "none"}, table, "accounting"),
        ({"n_rows": 0}, table, "n_rows"),
        ({"l2": -1.0}, table, "l2"),
        ({"max_batches": -1}, table, "max_batches"),
        ({"random_state": "x"}, table, "random_state"),
    ],
)
@BOTH
def test_bad_input_spends_nothing(kind, settings, rows, match, tmp_path):
    path = tmp_path / "run.ledger"
    with pytest.raises(ValueError, match=match):
        model(kind, ledger=path, **settings).fit(*rows())
    assert not path.exists() or not read_ledger(path).charges


def unlabelled(value):
    X, y = table()
    y = y.astype(type(value) if isinstance(value, float) else object)
    y[7] = value
    return X, y


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "rows",
    [
        table,
        one_class,
        lambda: spoiled(np.nan),
        lambda: spoiled(np.inf),
        lambda: (sparse.csr_matrix(spoiled(np.nan)[0]), table()[1]),
        lambda: table((0, 1, 2)),
        lambda: unlabelled(np.nan),
        lambda: unlabelled(None),
        lambda: unlabelled("one"),
        lambda: unlabelled([1]),
        lambda: (table()[0], np.full(ROWS, 7)),
    ],
)
@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 5]])
def test_declared_classes_never_raise_on_rows(rows, classes):
    found = PrivateLogisticRegression(
        epsilon=6.0, delta=1e-6, method=DPSGD(steps=5), classes=classes, n_rows=ROWS
    ).fit(*rows())
    assert np.isfinite(found.coef_).all()
    assert found.classes_.tolist() == classes


@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 5]])
def test_an_unknown_label_becomes_what_the_loss_leaves_out(classes):
    found = model(classes=classes).fit(*table())
    labels = found._encoded(np.array([0.0, 1.0, 3.0, np.nan]))
    assert np.isnan(labels[2:]).all() if len(classes) == 2 else (labels[2:] == -1).all()
    assert labels[:2].tolist() == ([-1, 1] if len(classes) == 2 else [0, 1])
    assert unknown_rows([0, 3, 1, 1.5], classes).tolist() == [1, 3]


def test_the_svc_refuses_three_classes(tmp_path):
    found = model(PrivateLinearSVC, classes=[0, 1, 2], ledger=tmp_path / "run")
    with pytest.raises(ValueError, match="use PrivateLogisticRegression"):
        found.fit(*table((0, 1, 2)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["blsgd", "blgd"])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize("rho", [0.01, 0.1, 5.0])
def test_an_epsilon_below_one_step_says_what_would_do(method, delta, rho, tmp_path):
    path = tmp_path / "run.ledger"
    settings = {"delta": delta, "method": method, "gradient_rho": rho, "ledger": path}
    with pytest.raises(BudgetExceeded, match="Nothing was spent") as caught:
        model(epsilon=0.05, **settings).fit(*table())
    assert not path.exists()
    needed = float(re.search(r"needs epsilon ([\d.e+-]+\d)", str(caught.value))[1])
    assert model(epsilon=needed, **settings).fit(*table()).n_iter_ >= 1
    with pytest.raises(BudgetExceeded):
        model(epsilon=0.99 * needed, **settings, n_rows=None).fit(*table())


def test_the_paper_has_no_room_for_a_step_either():
    with (
        pytest.warns(PrivacyLeakWarning, match="no valid guarantee"),
        pytest.raises(BudgetExceeded),
    ):
        model(accounting="paper", epsilon=1.0, gradient_rho=50.0).fit(*table())
