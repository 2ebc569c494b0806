# SPDX-License-Identifier: Apache-2.0
"""Linear models of tables as they come: scales are learned, levels are one-hot."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from armijo import PrivateLinearSVC, PrivateLogisticRegression
from armijo.accounting.ledger import read_ledger
from armijo.estimators.additive import TABLE_BATCHES
from armijo.methods.auto import Auto
from armijo.registry import METHODS, make_method

ROWS = 6000
KINDS = (PrivateLogisticRegression, PrivateLinearSVC)


def people(seed=0):
    """Return ages and incomes in natural units, texts, dates, missing cells."""
    draw = np.random.default_rng(seed)
    age = draw.integers(18, 80, ROWS)
    income = np.exp(draw.normal(10.6, 0.7, ROWS)).round()
    sex = draw.choice(["f", "m"], ROWS)
    score = (age - 49) / 18 + (np.log(income) - 10.6) / 0.7 + 2.0 * (sex == "m")
    score += draw.logistic(size=ROWS)
    income[::50] = np.nan
    frame = pd.DataFrame({"age": age, "income": income})
    frame["sex"] = pd.array(sex, dtype="str")
    frame["member"] = draw.random(ROWS) < 0.5
    days = pd.to_timedelta(draw.integers(0, 900, ROWS), "D")
    frame["since"] = pd.Timestamp("2020-01-01") + days
    return frame, score > np.median(score)


def model(kind=PrivateLogisticRegression, **settings):
    given = {"epsilon": 2.0, "classes": [False, True], "random_state": 3}
    return kind(**given | settings)


@pytest.mark.parametrize("kind", KINDS)
def test_natural_units_are_learned(kind):
    X, y = people()
    found = model(kind, schema={"sex": ["f", "m"]}).fit(X, y)
    test, labels = people(1)
    assert found.score(test, labels) > 0.74  # 0.77 with the rule that made the labels
    names = found.table_.feature_names_
    assert found.coef_.shape == (1, len(names)) and found.intercept_.shape == (1,)
    assert names[:3] == ("age", "income", "income missing")
    coef = dict(zip(names, found.coef_[0], strict=True))
    assert coef["age"] > 0.3 and coef["income"] > 0.3
    assert coef["sex=m"] > 0.3 > coef["sex=f"]
    assert "the names and types" in str(found.privacy_.to_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_frames_give_the_same_bits(kind):
    X, y = people()
    held = model(kind).fit(X, y)
    scores = held.decision_function(X)
    for frame in (pl.from_pandas(X), pa.Table.from_pandas(X)):
        found = model(kind).fit(frame, y)
        assert np.array_equal(found.coef_, held.coef_)
        assert np.array_equal(found.decision_function(frame), scores)
    stream = ds.dataset(pa.Table.from_pandas(X.assign(y=y)))
    assert np.array_equal(model(kind).fit(stream, "y").coef_, held.coef_)


def test_scores_are_linear_in_the_features():
    X, y = people()
    found = model().fit(X, y)
    table = found.table_
    features = table.model_.features.rows(table._table(X), np.ones(ROWS))
    linear = features.product(found.coef_.T)[:, 0] + found.intercept_[0]
    scores = found.decision_function(X)
    near = np.abs(linear - linear.mean()) < 2 * linear.std()
    assert near.mean() > 0.9
    assert np.allclose(scores[near], linear[near], atol=1e-5)


def test_arrays_are_taken_as_they_are():
    X, y = people()
    numbers = X[["age", "income"]].fillna(0.0).to_numpy() / 1e5
    found = model().fit(numbers, y)
    assert not hasattr(found, "table_") and found.coef_.shape == (1, 2)
    found.fit(X, y)
    assert hasattr(found, "table_")
    found.fit(numbers, y)
    assert not hasattr(found, "table_") and found.predict(numbers).shape == (ROWS,)


def test_numbered_columns_are_those_of_an_array():
    X, y = people()
    numbers = X[["age", "income"]]
    held = model().fit(numbers.set_axis(["x0", "x1"], axis=1), y)
    found = model().fit(numbers.set_axis([0, 1], axis=1), y)
    assert np.array_equal(found.coef_, held.coef_)
    assert not hasattr(found, "feature_names_in_")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "sgd"}, "got 'sex' of type str.*use method=\"auto\""),
        ({"method": "sgd", "schema": {}}, "schema=None for a linear model of arrays"),
        ({"fit_intercept": False, "schema": {}}, "schema=None"),
        ({"max_batches": TABLE_BATCHES - 1}, f"max_batches >= {TABLE_BATCHES}"),
        ({"schema": {"sez": "ignore"}}, "did you mean 'sex'"),
    ],
)
def test_settings_that_do_not_fit_a_table_are_refused(settings, message, tmp_path):
    X, y = people()
    ledger = tmp_path / "ledger"
    with pytest.raises(ValueError, match=message):
        model(**settings, ledger=ledger).fit(X, y)
    assert not ledger.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_person_may_have_several_rows(kind):
    X, y = people()
    persons = np.arange(ROWS) // 2
    found = model(kind, n_rows=ROWS // 2).fit(X, y, person=persons)
    assert found.privacy_.guarantee.unit == "person"
    column = model(kind, n_rows=ROWS // 2, schema={"who": "person"})
    np.testing.assert_array_equal(
        column.fit(X.assign(who=persons), y).coef_, found.coef_
    )


def bounded(name):
    """Return a method with the public norm that it asks for."""
    try:
        return make_method(name)
    except ValueError:
        return make_method(name, {"data_norm": 1.0})


@pytest.mark.parametrize("name", METHODS)
def test_rows_without_weights_have_no_persons(name, tmp_path):
    """Poisson batches and perturbations do not bound what a person's rows add."""
    X, y = people()
    numbers = X[["age", "income"]].to_numpy(dtype=float)
    ledger = tmp_path / "ledger"
    with pytest.raises(ValueError, match=r"Expected person=None.*Nothing was spent"):
        refusing = model(method=bounded(name), ledger=ledger)
        refusing.fit(numbers, y, person=np.arange(ROWS))
    assert not ledger.exists()


def test_no_cell_is_shown():
    X, y = people()
    cells = X[["sex", "age"]].astype(object).to_numpy()
    for method in ("sgd", Auto()):
        with pytest.raises(ValueError, match="numbers in all cells") as error:
            model(method=method).fit(cells, y)
        assert "'f'" not in str(error.value) and "'m'" not in str(error.value)


def test_a_limit_that_allows_all_batches_changes_nothing(tmp_path):
    X, y = people()
    ledger = tmp_path / "ledger"
    found = model(max_batches=TABLE_BATCHES, ledger=ledger).fit(X, y)
    assert np.array_equal(found.coef_, model().fit(X, y).coef_)
    assert len(read_ledger(ledger).charges) == found.n_iter_ == TABLE_BATCHES


def test_more_than_two_classes():
    X, _ = people()
    y = np.digitize(X["age"], [35, 55])
    found = model(classes=[0, 1, 2]).fit(X, y)
    assert found.coef_.shape[0] == 3 and found.score(X, y) > 0.7
    with pytest.raises(ValueError, match="two classes for the hinge loss"):
        model(PrivateLinearSVC, classes=[0, 1, 2]).fit(X, y)
