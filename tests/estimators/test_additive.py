# SPDX-License-Identifier: Apache-2.0
"""Models of tables as they come: frames, labels, weights, persons, doubts."""

import math
import warnings
from collections import deque
from contextlib import suppress
from decimal import Decimal

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from armijo import PrivateClassifier, PrivateRegressor
from armijo.errors import ModelWarning, PrivacyLeakWarning, TableError
from armijo.estimators.base import as_column
from armijo.estimators.weights import class_weights, clipped_weights, person_weights
from armijo.tables import Categorical, Label, Numeric, Person, Schema, Target
from armijo.tables.frames import PUBLIC_DTYPES

ROWS = 600
SEEDED = {"random_state": 7, "n_rows": ROWS}
quiet = pytest.mark.filterwarnings("ignore::armijo.errors.ModelWarning")


def people(rows=ROWS):
    """Return ages, incomes in dollars and sexes, and a label that follows from them."""
    draw = np.random.default_rng(5)
    age = draw.integers(18, 90, rows)
    income = np.exp(draw.normal(10.5, 0.6, rows)).round()
    sex = draw.choice(["f", "m"], rows)
    score = (age - 54) / 20 + (np.log(income) - 10.5) / 0.6 + 0.5 * (sex == "m")
    frame = pd.DataFrame(
        {"age": age, "income": income, "sex": pd.array(sex, dtype="string")}
    )
    return frame, np.where(score > 0, "high", "low"), score


def classifier(**settings):
    known = {"epsilon": 8.0, "delta": 1e-5, "classes": ["low", "high"]}
    return PrivateClassifier(**{**known, **SEEDED, **settings})


def weights(model):
    return model.model_.weights


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = people()
    return classifier().fit(X, y)


def test_natural_units_need_no_bounds(fitted):
    X, y, _ = people()
    assert fitted.score(X, y) > 0.8
    probabilities = fitted.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    chosen = fitted.classes_[probabilities.argmax(axis=1)]
    np.testing.assert_array_equal(chosen, fitted.predict(X))
    assert fitted.classes_.tolist() == ["high", "low"]
    assert fitted.n_iter_ == len(fitted.history_) == len(fitted.privacy_.ledger)
    assert PUBLIC_DTYPES in fitted.privacy_.guarantee.assumptions
    assert fitted.releases_["share"].sum() == pytest.approx(1.0)


def test_frames_of_all_libraries_are_predicted_alike(fitted):
    X, _, _ = people()
    scores = fitted.decision_function(X)
    for table in (pa.Table.from_pandas(X), polars.from_pandas(X)):
        np.testing.assert_array_equal(fitted.decision_function(table), scores)
    mixed = X[X.columns[::-1]].astype({"age": object})
    mixed.loc[0, "age"] = "unknown"
    found = fitted.decision_function(mixed)
    np.testing.assert_array_equal(found[1:], scores[1:])
    assert np.isfinite(found[0])


@pytest.mark.parametrize("convert", [pa.Table.from_pandas, polars.from_pandas])
def test_frames_of_all_libraries_give_the_same_model(fitted, convert):
    X, y, _ = people()
    np.testing.assert_array_equal(
        weights(classifier().fit(convert(X), y)), weights(fitted)
    )


def test_a_schema_names_the_target_and_the_number_of_rows():
    X, y, _ = people()
    columns = (Numeric("age"), Numeric("income"), Label("y", ("low", "high")))
    schema = Schema(columns=columns, target="y", n_rows=ROWS, reviewed=True)
    table = X.drop(columns="sex").assign(y=y)
    model = PrivateClassifier(epsilon=8.0, schema=schema, random_state=1).fit(table)
    assert model.classes_.tolist() == ["low", "high"]
    assert model.privacy_.relation == "add-remove"
    assert PUBLIC_DTYPES not in model.privacy_.guarantee.assumptions
    assert model.score(X.drop(columns="sex"), y) > 0.8
    with pytest.raises(TableError, match="PrivateClassifier"):
        PrivateRegressor(schema=schema).fit(table)


def test_arrays_are_columns_of_numbers():
    X, y, _ = people()
    model = classifier().fit(X[["age", "income"]].to_numpy(), y)
    assert [c.name for c in model.columns_] == ["x0", "x1"]
    assert PUBLIC_DTYPES not in model.privacy_.guarantee.assumptions


def test_classes_are_declared_or_of_a_type_or_read_with_a_warning():
    X, y, _ = people()
    fit = PrivateClassifier(epsilon=8.0, **SEEDED).fit
    assert fit(X, y == "high").classes_.tolist() == [False, True]
    with pytest.warns(PrivacyLeakWarning, match="read from the labels"):
        assert fit(X, y).classes_.tolist() == ["high", "low"]
    with pytest.raises(ValueError, match=r"of the classes \(int64\), got str_; con"):
        classifier(classes=[0, 1]).fit(X, np.array(y, dtype="U672"))  # no length
    with pytest.raises(TableError, match="Expected y, or a schema"):
        fit(X)


@pytest.mark.parametrize("odd", [None, np.nan, 7, [1]])
def test_labels_that_are_read_may_be_missing_and_are_of_one_type(odd):
    X, y, _ = people()
    labels = y.astype(object)
    labels[3] = odd
    with pytest.warns(PrivacyLeakWarning):
        if odd is None or odd is np.nan:
            assert PrivateClassifier(**SEEDED).fit(X, labels).classes_.size == 2
        else:
            with pytest.raises(ValueError, match="numbers or texts, got others"):
                PrivateClassifier(**SEEDED).fit(X, labels)


def test_the_frame_of_the_fit_is_predicted_with_its_labels_and_weights():
    X, y, _ = people()
    whole = X.assign(y=y, w=1.0)
    model = classifier().fit(whole, "y", sample_weight="w")
    np.testing.assert_array_equal(model.predict(whole), model.predict(X))
    with pytest.raises(TableError, match="'w', which the schema does not name"):
        model.fit(X, y).predict(whole[[*X.columns, "w"]])


def test_a_refused_fit_takes_no_feature_from_the_model_before():
    X, y, _ = people()
    model = classifier().fit(X.assign(y=y), "y")
    expected = model.predict(X)
    with pytest.raises(TableError, match="sample_weight to name a column"):
        model.fit(X, "age", sample_weight="w")
    np.testing.assert_array_equal(model.predict(X), expected)


@pytest.mark.parametrize("name", [" age ", ""])
def test_a_name_that_no_schema_can_have_is_refused(name):
    X, y, _ = people()
    with pytest.raises(TableError, match=r"^Expected name to be a column name"):
        classifier().fit(X.rename(columns={"age": name}), y)


@quiet
def test_several_classes_have_a_shape_each():
    X, _, score = people()
    y = np.digitize(score, [-0.7, 0.7])
    model = classifier(classes=[0, 1, 2]).fit(X, y)
    assert model.predict_proba(X).shape == (ROWS, 3)
    assert model.score(X, y) > 0.5
    assert all(shape.y.shape[0] == 3 for shape in model.model_.shapes())


@quiet
def test_numbers_are_predicted_in_their_unit():
    X, _, score = people()
    model = PrivateRegressor(epsilon=8.0, **SEEDED).fit(X, 1000 * score)
    assert model.score(X, 1000 * score) > 0.5
    texts = np.array([f" {1000 * number} " for number in score], dtype=object)
    again = PrivateRegressor(epsilon=8.0, **SEEDED).fit(X, texts)
    np.testing.assert_array_equal(weights(again), weights(model))
    bounded = PrivateRegressor(epsilon=8.0, target_bounds=(-500, 500), **SEEDED)
    found = bounded.fit(X, 1000 * score).predict(X)
    assert found.min() >= -500 and found.max() <= 500
    with pytest.raises(ValueError, match="low < high"):
        PrivateRegressor(target_bounds=(1, 0)).fit(X, score)


@quiet
@pytest.mark.parametrize("bounds", [None, (0, 100), (0, 1e4), (-1e5, 1e5)])
def test_a_range_much_wider_than_the_targets_costs_little(bounds):
    """Noise far out in such a range was most of a mean and a standard deviation."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(4000, 3))
        y = np.exp(X[:, 0] + 0.3 * rng.normal(size=4000))
        model = PrivateRegressor(
            epsilon=1.0, delta=1e-6, target_bounds=bounds, random_state=seed
        )
        assert model.fit(X, y).score(X, y) > 0.4  # 0.55 to 0.73, for (0, 100) before


def test_a_blank_row_is_one_without_weight_whatever_its_cells():
    """Nothing but the label or the weight makes a row blank."""
    X, y, _ = people()
    y = y.astype(object)
    y[3] = "unknown"
    blank = classifier().fit(X, y)
    y[3] = "low"
    ones = np.ones(ROWS)
    ones[3] = np.nan
    light = classifier().fit(X, y, sample_weight=ones)
    np.testing.assert_array_equal(weights(blank), weights(light))


@quiet
def test_a_persons_rows_weigh_one_together():
    X, y, _ = people()
    ids = np.arange(ROWS) // 2
    by_person = classifier().fit(X, y, person=ids)
    by_weight = classifier().fit(X, y, sample_weight=np.full(ROWS, 0.5))
    np.testing.assert_array_equal(weights(by_person), weights(by_weight))
    column = classifier(person="id").fit(X.assign(id=ids), y)
    np.testing.assert_array_equal(weights(column), weights(by_person))
    assert column.privacy_.guarantee.unit == "person"
    open_ended = PrivateClassifier(classes=["low", "high"], person="id", n_rows=300)
    statement = str(open_ended.fit(X.assign(id=ids), y).privacy_)
    assert "a person, with all rows" in statement
    with pytest.raises(ValueError, match="number of persons"):
        classifier(n_rows=None).fit(X, y, person=ids)
    schema = Schema(columns=(Numeric("age"), Person("id")))
    with pytest.raises(ValueError, match="got both"):
        classifier(schema=schema).fit(X[["age"]].assign(id=ids), y, person=ids)


def test_weights_are_at_most_one():
    assert clipped_weights([2, -1, np.nan, 0.25], 4).tolist() == [1, 0, 0, 0.25]
    assert class_weights({0: 2.0}, np.array([0, 1])) == (1.0, 0.5)
    with pytest.raises(ValueError, match="finite weights"):
        class_weights({"a": "heavy"}, np.array(["a", "b"]))
    assert person_weights(["a", "a", None], 3).tolist() == [0.5, 0.5, 0.0]
    for bad in ({2: 1.0}, {0: -1.0}, {0: np.nan}, {0: 0, 1: 0}, "even"):
        with pytest.raises(ValueError, match=r"class_weight|class with a weight"):
            class_weights(bad, np.array([0, 1]))
    with pytest.raises(ValueError, match="to be numbers"):
        clipped_weights(np.array(["a", "b"]), 2)


def test_balanced_weights_favor_the_rare_class():
    X, _, score = people()
    y = np.where(score > 1.5, "high", "low")
    usual = classifier().fit(X, y).predict(X)
    balanced = classifier(class_weight="balanced").fit(X, y).predict(X)
    assert (balanced == "high").sum() > (usual == "high").sum()


def test_a_monotone_shape_has_its_direction():
    X, y, _ = people()
    model = classifier(monotone={"age": -1}).fit(X, y)
    (age,) = (shape for shape in model.model_.shapes() if shape.name == "age")
    assert (np.diff(age.y[0]) <= 1e-12).all()
    with pytest.raises(ValueError, match="monotone to name numeric"):
        classifier(monotone={"sex": 1}).fit(X, y)


def test_metadata_is_routed_as_scikit_learn_has_it():
    with sklearn.config_context(enable_metadata_routing=True):
        model = classifier().set_fit_request(sample_weight=True, person=False)
        assert model.get_metadata_routing().fit.requests["sample_weight"] is True
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        model.predict(people()[0])


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    X, y, _ = people()
    whole = classifier().fit_resumable(X, y, checkpoint=tmp_path / "whole")
    stopped = classifier(callback=lambda record: record.batch == 5)
    stopped.fit_resumable(X, y, checkpoint=tmp_path / "cut")
    assert not hasattr(stopped, "model_")
    with pytest.raises(NotFittedError):
        stopped.predict(X)
    stopped.set_params(callback=None)
    stopped.fit_resumable(X, y, checkpoint=tmp_path / "cut", resume=True)
    np.testing.assert_array_equal(weights(stopped), weights(whole))


def test_shapes_are_drawn_for_every_column(fitted):
    axes = fitted.plot_shapes()
    titles = {ax.get_title(loc="left") for ax in axes}
    assert titles == {"age", "income", "sex"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"delta": 0.01}, "delta 0.01 is above 1/n"),
        ({"epsilon": 11.0}, "epsilon 11 is above 10"),
        ({"n_rows": 5 * ROWS}, "the released counts say about"),
    ],
)
def test_doubtful_settings_are_warned_about(settings, told):
    X, y, _ = people()
    with pytest.warns(ModelWarning, match=told):
        model = classifier(**settings).fit(X, y)
    assert any(told in doubt for doubt in model.doubts_)


def test_a_model_that_learned_nothing_says_so():
    X, y, _ = people()
    noise = np.random.default_rng(0).choice(y, ROWS)
    with pytest.warns(ModelWarning, match="no better than predicting the same"):
        classifier(epsilon=0.1).fit(X, noise)


WIDE = {f"w{k}": np.arange(40.0) * k for k in range(60)}
ODD = {
    "constant": pd.DataFrame({"x": np.full(40, 3.0)}),
    "constant text": pd.DataFrame({"x": pd.array(["a"] * 40, dtype="string")}),
    "all missing": pd.DataFrame({"x": np.full(40, np.nan), "z": np.arange(40.0)}),
    "identifier": pd.DataFrame({"x": pd.array([f"i{k}" for k in range(40)], "string")}),
    "infinite": pd.DataFrame({"x": np.full(40, np.inf)}),
    "huge": pd.DataFrame({"x": 1e308 * np.linspace(-1.7, 1.7, 40)}),
    "wide": pd.DataFrame(WIDE),
}
DECLARED = {
    "mixed types": (pd.DataFrame({"x": [1, "a", None, [2]] * 10}), {"x": "numeric"}),
    "mixed texts": (
        pd.DataFrame({"x": [1, "a", None, 2.5] * 10}),
        {"x": "categorical"},
    ),
    "bounds exclude all": (pd.DataFrame({"x": np.arange(40.0)}), {"x": (1e6, 1e7)}),
    "list misses most": (
        pd.DataFrame({"x": pd.array([f"i{k}" for k in range(40)], "string")}),
        {"x": ["i1", "zz"]},
    ),
    "no dates": (pd.DataFrame({"x": ["soon", "2020-01-01"] * 20}), {"x": "date"}),
}
CASES = {**{name: (frame, None) for name, frame in ODD.items()}, **DECLARED}


@quiet
@pytest.mark.parametrize("case", CASES)
def test_odd_columns_are_no_error(case):
    frame, schema = CASES[case]
    labels = np.array(["low", "high"] * 20, dtype=object)
    model = PrivateClassifier(classes=["low", "high"], schema=schema, random_state=1)
    assert np.isfinite(model.fit(frame, labels).predict_proba(frame)).all()
    one_class = model.fit(frame, np.full(40, "low"))
    assert len(one_class.predict(frame)) == 40


def test_an_array_with_text_is_refused_without_its_cells():
    X = np.array([["secret", 1.0]] * 20, dtype=object)
    with pytest.raises(ValueError, match="Expected numbers in all cells") as caught:
        PrivateClassifier(classes=[0, 1]).fit(X, np.arange(20) % 2)
    assert "secret" not in str(caught.value)


DAYS = np.arange(20).astype("datetime64[D]")
SECRET = np.full(20, 4321.5 + 1j)


@pytest.mark.parametrize("labels", [DAYS, SECRET, np.array(["1"] * 20)])
def test_labels_of_a_type_that_is_no_class_are_refused_unseen(labels):
    X = np.arange(20.0)[:, None]
    with pytest.raises(ValueError, match=r"type of the classes|Complex data") as e:
        PrivateClassifier(classes=[0, 1]).fit(X, labels)
    assert "4321" not in str(e.value) and e.value.__cause__ is None


@pytest.mark.parametrize("place", ["X", "y", "sample_weight"])
@pytest.mark.parametrize("kind", [PrivateClassifier, PrivateRegressor])
def test_complex_numbers_are_refused_unseen(place, kind):
    rows = {"X": np.ones((20, 1)), "y": np.arange(20) % 2, "sample_weight": None}
    rows[place] = SECRET[:, None] if place == "X" else SECRET
    settings = {"classes": [0, 1]} if kind is PrivateClassifier else {}
    with pytest.raises(ValueError, match="Complex data not supported") as error:
        kind(**settings).fit(**rows)
    assert "4321" not in str(error.value)


USUAL = {
    "y": [0, 1] * 30,
    "sample_weight": [0.5, 1.0] * 30,
    "person": list(range(60)),
}


class NoText:
    """Raises whatever is asked of it; its hash is that of a class."""

    def __str__(self):
        raise RuntimeError

    def __eq__(self, other):
        raise RuntimeError

    def __hash__(self):
        return 1


ODD_VALUES = (
    *(None, "x", math.inf, 1j, 10**400, [1], {"k": 1}, b"1", pd.NaT, "\ud800"),
    *(10**5000, Decimal("sNaN"), NoText(), np.timedelta64(5), [1, 0], [[1]], ()),
)


def outcome(kind, settings, frame=None, **given):
    """Return all that a fit tells before its model: an error, or warnings."""
    frame = pd.DataFrame({"x": np.arange(60.0)}) if frame is None else frame
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            kind(n_rows=60, random_state=1, **settings).fit(frame, **given)
        except Exception as error:
            return repr(error)
    return [str(one.message) for one in told if one.category is not ModelWarning]


@pytest.mark.parametrize("place", USUAL)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(PrivateClassifier, {"classes": [0, 1]}), (PrivateRegressor, {})],
)
@pytest.mark.parametrize(
    "form", [list, deque, lambda v: np.array([*v, 0], dtype=object)[:-1]]
)
def test_nothing_tells_of_one_odd_value(place, kind, settings, form):
    """Beside 59 others in any list or in an array of objects, whatever it is."""
    usual = outcome(kind, settings, **USUAL)
    for value in ODD_VALUES:
        values = [value, *USUAL[place][1:]]
        given = {**USUAL, place: form(values)}
        assert outcome(kind, settings, **given) == usual == [], repr(type(value))


@pytest.mark.parametrize(
    "column", [Numeric("x"), Categorical("x"), Categorical("x", categories=[0, 1])]
)
def test_nothing_tells_of_one_odd_cell(column):
    schema = Schema(columns=(column,), reviewed=True)
    settings = {"classes": [0, 1], "schema": schema}
    for value in ODD_VALUES:
        cells = pd.Series([value, *[0, 1] * 30][:60], dtype=object)
        forms = [cells]
        with suppress(Exception):  # pandas makes no categories of it
            forms.append(cells.astype("category"))
        for form in forms:
            frame = pd.DataFrame({"x": form})
            found = outcome(PrivateClassifier, settings, frame, **USUAL)
            assert found == [], repr(type(value))


LISTS = [[k] for k in USUAL["y"]]


@pytest.mark.parametrize("place", ["y", "sample_weight", "person"])
def test_a_row_of_another_length_tells_nothing_and_changes_no_other(place):
    settings = {"classes": [0, 1]}
    for odd in ([], [0, 1], None, [None]):
        values = [odd, *LISTS[1:]]
        given = {**USUAL, place: values}
        assert outcome(PrivateClassifier, settings, **given) == [], odd
        np.testing.assert_array_equal(as_column(values)[1:], as_column(LISTS)[1:])
    assert as_column(LISTS).tolist() == USUAL["y"]


@quiet
@pytest.mark.parametrize("target", ["numbers", "texts", "one number", "none"])
def test_odd_targets_are_no_error(target):
    frame = pd.DataFrame({"x": np.arange(40.0)})
    y = {
        "numbers": np.array([1.0, np.nan, np.inf, -1e300] * 10),
        "texts": np.array(["1.5", "word", None, "2e3"] * 10, dtype=object),
        "one number": np.full(40, 7.0),
        "none": np.full(40, np.nan),
    }[target]
    schema = Schema(columns=(Numeric("x"), Target("y")), target="y", reviewed=True)
    for model in (PrivateRegressor(random_state=1), PrivateRegressor(schema=schema)):
        assert np.isfinite(model.fit(frame, y).predict(frame)).all()
