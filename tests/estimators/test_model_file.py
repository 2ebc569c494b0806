# SPDX-License-Identifier: Apache-2.0
"""Models survive their file exactly, and a spoiled file is refused."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from armijo.errors import TableError
from armijo.estimators.model_file import LinearModel, load_model, save_model
from armijo.tables import Label, encode


@pytest.fixture
def model(schema):
    return {
        "kind": "logistic",
        "coef": np.array([[1.0, -2.0, 0.5, 0.1]]),
        "intercept": np.array([0.25]),
        "data_norm": None,
        "schema": schema,
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "note": "add or remove one row"},
    }


@pytest.fixture
def several(schema, model):
    label = Label("income", ("a", "b", "c"))
    columns = (*schema.columns[:-1], label)
    return {
        **model,
        "coef": np.arange(12.0).reshape(3, 4) - 5,
        "intercept": [0.0, 1.0, -1.0],
        "schema": dataclasses.replace(schema, columns=columns),
    }


def test_a_model_comes_back_whole(tmp_path, model, schema):
    path = tmp_path / "model.json"
    save_model(path, LinearModel(**model))
    loaded = load_model(path)
    assert isinstance(loaded, LinearModel)
    np.testing.assert_array_equal(loaded.coef, model["coef"])
    np.testing.assert_array_equal(loaded.intercept, model["intercept"])
    assert loaded.schema == schema and loaded.privacy == model["privacy"]
    assert loaded.feature_names == schema.feature_names
    assert loaded.created_by.startswith("armijo")
    assert json.loads(path.read_text())["format"] == "armijo-model"


def test_a_loaded_model_can_be_saved_again(tmp_path, model):
    save_model(tmp_path / "a.json", LinearModel(**model))
    loaded = load_model(tmp_path / "a.json")
    save_model(tmp_path / "b.json", loaded)
    texts = {(tmp_path / name).read_text() for name in ("a.json", "b.json")}
    assert len(texts) == 1


@given(coef=hnp.arrays(np.float64, (1, 4), elements=st.floats(-1e99, 1e99)))
def test_floats_come_back_exactly(tmp_path_factory, coef):
    path = tmp_path_factory.mktemp("models") / "m.json"
    path.write_text(json.dumps(_plain(coef=coef.tolist())))
    save_model(path, load_model(path))
    assert load_model(path).coef.tobytes() == coef.tobytes()


def _plain(**changes):
    """Return a document of plain JSON values."""
    columns = [
        {"name": "x", "kind": "categorical", "categories": ["a", "b", "c", "d"]},
        {"name": "y", "kind": "label", "classes": ["no", "yes"]},
    ]
    document = {
        "format": "armijo-model",
        "version": 3,
        "created_by": "armijo",
        "kind": "logistic",
        "classes": ["no", "yes"],
        "feature_names": ["x=a", "x=b", "x=c", "x=d"],
        "intercept": [0.5],
        "coef": [[1, 2.5, 3, 4]],
        "data_norm": None,
        "privacy": {},
        "schema": {"version": 2, "target": "y", "columns": columns},
    }
    return {**document, **changes}


def test_the_plain_document_loads(tmp_path):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(_plain()))
    assert load_model(path).coef.tolist() == [[1.0, 2.5, 3.0, 4.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "armijo-model"),
        ({"version": 1}, "version 3, got '1'.*Train the model again"),
        ({"version": True}, "version 3"),
        ({"version": 2}, "version 3, got '2'.*builds after it"),
        ({"kind": "forest"}, "one of logistic, svm, classifier, regressor"),
        ({"kind": ["svm"]}, "one of logistic, svm, classifier, regressor"),
        ({"classes": ["yes", "no"]}, "classes of the schema"),
        ({"classes": ["no", 1]}, "classes of the schema"),
        ({"classes": 3}, "classes of the schema"),
        ({"created_by": 3}, "created_by to be a valid string"),
        ({"coef": [[1, 2, 3]]}, r"coef to be an array of shape \(1, 4\)"),
        ({"coef": [1, 2, 3, 4]}, "coef to be"),
        ({"coef": [[1, 2, 3, 4], [1, 2, 3, 4]]}, "coef to be"),
        ({"coef": [[1, 2, 3, "4"]]}, "finite numbers"),
        ({"coef": [[1, 2, 3, True]]}, "finite numbers"),
        ({"coef": [[1, 2, 3, None]]}, "finite numbers"),
        ({"coef": [[1, 2, 3, [4]]]}, "finite numbers"),
        ({"coef": [[1, 2, 3, 10**400]]}, "finite numbers"),
        ({"coef": {"a": 1}}, "finite numbers"),
        ({"coef": [[1, 2], [3]]}, "finite numbers"),
        ({"data_norm": 0}, "data_norm to be greater than 0"),
        ({"data_norm": True}, "data_norm to be a valid number"),
        ({"coef": [[1, 2, 3, 1e101]]}, "scores of at most 1e"),
        ({"coef": [[1.7e308, 1.7e308, 3, 4]]}, "scores of at most 1e"),
        ({"intercept": [-1e101]}, "scores of at most 1e"),
        ({"intercept": 0.5}, "coef and intercept|intercept one of shape"),
        ({"intercept": [0.5, 0.5]}, "coef and intercept|intercept one of shape"),
        ({"feature_names": ["x=a"]}, "feature_names of the schema"),
        ({"feature_names": None}, "feature_names of the schema"),
        ({"privacy": []}, "privacy to be a valid dictionary"),
        ({"schema": None}, "table of keys"),
        ({"schema": {"version": 1}}, "take out missing = "),
        ({"extra": 1}, "'extra'"),
    ],
)
def test_a_changed_document_is_refused(tmp_path, changes, message):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(_plain(**changes)))
    with pytest.raises(TableError, match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("key", sorted(_plain()))
def test_every_key_is_needed(tmp_path, key):
    document = _plain()
    del document[key]
    (tmp_path / "m.json").write_text(json.dumps(document))
    with pytest.raises(TableError, match=f"{key}|format|version"):
        load_model(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "model in JSON"),
        (b"\x80\x04\x95.", "model in JSON"),
        (b"[1]", "armijo-model"),
        (b"[" * 100_000, "model in JSON"),
        (b'{"format": NaN}', "finite numbers"),
        (b'{"format": 1e999}', "finite numbers"),
        (b'{"format": 1, "format": 2}', "every key once"),
        (b'{"format": ' + b"9" * 5000 + b"}", "model in JSON"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, text, message):
    (tmp_path / "m.json").write_bytes(text)
    with pytest.raises(TableError, match=message):
        load_model(tmp_path / "m.json")


def test_no_file_a_folder_and_a_huge_file_are_refused(tmp_path, model, monkeypatch):
    with pytest.raises(TableError, match="No such file"):
        load_model(tmp_path / "none.json")
    with pytest.raises(TableError, match="directory"):
        load_model(tmp_path)
    save_model(tmp_path / "m.json", LinearModel(**model))
    monkeypatch.setattr("armijo.estimators.model_file.MAX_MODEL_BYTES", 10)
    with pytest.raises(TableError, match="at most 10 bytes"):
        load_model(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coef": np.full((1, 4), np.nan)}, "finite numbers"),
        ({"coef": np.zeros((1, 3))}, r"shape \(1, 4\)"),
        ({"privacy": {"a": object()}}, "plain, finite values"),
        ({"privacy": {"a": float("nan")}}, "plain, finite values"),
        ({"weights": 1}, "weights"),
    ],
)
def test_a_bad_model_is_not_written(tmp_path, model, changes, message):
    with pytest.raises(ValueError, match=message):
        save_model(tmp_path / "m.json", LinearModel(**{**model, **changes}))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_refused(tmp_path, model):
    with pytest.raises(TableError, match="No such file"):
        save_model(tmp_path / "none" / "m.json", LinearModel(**model))


def test_two_classes_by_hand(tmp_path, model, frame):
    save_model(tmp_path / "m.json", LinearModel(**model))
    loaded = load_model(tmp_path / "m.json")
    X, _ = encode(frame, loaded.schema, with_target=False)
    scores = np.array([0.5 + 0.5 + 0.25, 0.17 - 2 + 0.25, 1 + 0.1 + 0.25])
    np.testing.assert_allclose(loaded.estimator.decision_function(X), scores)
    assert loaded.predict(X).tolist() == [">50K", "<=50K", ">50K"]
    positive = 1 / (1 + np.exp(-scores))
    np.testing.assert_allclose(
        loaded.predict_proba(X), np.column_stack((1 - positive, positive))
    )


def test_several_classes_by_hand(tmp_path, several, frame):
    save_model(tmp_path / "m.json", LinearModel(**several))
    loaded = load_model(tmp_path / "m.json")
    X, _ = encode(frame, loaded.schema, with_target=False)
    scores = X @ several["coef"].T + several["intercept"]
    np.testing.assert_allclose(loaded.estimator.decision_function(X), scores)
    exponentials = np.exp(scores)
    expected = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(loaded.predict_proba(X), expected)
    assert loaded.predict(X).tolist() == [
        loaded.classes[place] for place in scores.argmax(axis=1)
    ]


def test_probabilities_of_huge_scores_are_finite(tmp_path, model, several):
    for number, document in enumerate((model, several)):
        large = {**document, "coef": np.asarray(document["coef"]) * 1e97}
        save_model(tmp_path / f"{number}.json", LinearModel(**large))
        loaded = load_model(tmp_path / f"{number}.json")
        found = loaded.predict_proba(np.eye(4))
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found.sum(axis=1), 1)


def test_an_svm_has_no_probabilities(tmp_path, model):
    save_model(tmp_path / "m.json", LinearModel(**{**model, "kind": "svm"}))
    loaded = load_model(tmp_path / "m.json")
    assert loaded.predict(np.zeros((1, 4))).tolist() == [">50K"]
    with pytest.raises(TableError, match="logistic"):
        loaded.predict_proba(np.zeros((1, 4)))


@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 4, 1)])
def test_rows_of_another_width_are_refused(model, shape):
    with pytest.raises(ValueError, match=r"features|[13]D array|dim 3"):
        LinearModel(**model).predict(np.zeros(shape))


def test_the_arrays_of_a_model_cannot_be_changed(model):
    loaded = LinearModel(**model)
    with pytest.raises(ValueError, match="read-only"):
        loaded.coef[0, 0] = 1
    model["coef"][0, 0] = 7
    assert loaded.coef[0, 0] == 1.0
