# SPDX-License-Identifier: Apache-2.0
"""The classifier of images: fits, refuses, forgets blanks, comes back from files."""

import json

import numpy as np
import pytest
from sklearn.base import clone

import armijo
from armijo import PrivateImageClassifier
from armijo.errors import ArmijoError, PrivacyLeakWarning
from armijo.images.features import FeatureMap, FeatureSettings, feature_map
from armijo.images.reading import Pictures
from tests.images.doubles import small_settings, stripes


def model(**given):
    settings = {
        "epsilon": 8.0,
        "classes": [0, 1],
        "features": small_settings(),
        "random_state": 0,
    }
    return PrivateImageClassifier(**{**settings, **given})


@pytest.fixture(scope="module")
def fitted():
    return model().fit(*stripes(600))


def test_it_learns_with_nothing_set_but_the_budget(fitted):
    X, y = stripes(200, seed=1)
    assert fitted.score(X, y) > 0.95
    probabilities = fitted.predict_proba(X)
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert (fitted.classes_[probabilities.argmax(axis=1)] == fitted.predict(X)).all()
    assert fitted.n_iter_ == len(fitted.history_) == 52
    assert fitted.releases_["number"].sum() == 2 + 50 * 2
    assert fitted.releases_["share"].sum() == pytest.approx(1.0)


def test_the_guarantee_names_what_it_assumes(fitted):
    privacy = model(random_state=None).fit(*stripes(40)).privacy_
    assert privacy.guarantee.holds
    assert str(privacy.relation) == "zero-out"
    assert any("that image alone" in text for text in privacy.guarantee.assumptions)
    assert not fitted.privacy_.guarantee.holds  # a seed
    assert str(model(n_rows=50).fit(*stripes(40)).privacy_.relation) == "add-remove"


def test_layouts_and_types_give_the_same_model():
    X, y = stripes(60)
    expected = model().fit(X, y).coef_
    for same in (X[..., None], X[:, None], X.astype(np.int64)):
        assert np.array_equal(model().fit(same, y).coef_, expected)


def test_blank_images_are_the_same_whatever_they_hold():
    X, y = stripes(60)
    X = X / 255.0
    found = []
    for value, label in ((np.nan, 0), (np.inf, 1), (0.5, 7)):
        X[5], labels = value, y.copy()
        labels[5] = label
        found.append(model().fit(X, labels).coef_)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    readable = np.arange(60) != 5
    X[5] = 0.1
    assert np.array_equal(model().fit(X, y, readable=readable).coef_, found[0])
    assert not np.array_equal(model().fit(X, y).coef_, found[0])


def test_classes_read_from_labels_are_warned_about():
    with pytest.warns(PrivacyLeakWarning, match="classes were read"):
        found = model(classes=None).fit(*stripes(40))
    assert found.classes_.tolist() == [0, 1]


def test_names_and_absent_classes():
    X, y = stripes(60)
    names = np.array(["level", "upright"])[y]
    classes = ["upright", "level", "round"]
    found = model(classes=classes).fit(X, names)
    assert found.classes_.tolist() == sorted(classes)
    assert found.decision_function(X).shape == (60, 3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"classes": [1]}, "two different classes"),
        ({"classes": [1, 1]}, "two different classes"),
        ({"classes": ["a", "b"]}, "type of the classes"),
        ({"features": small_settings(side=20)}, "Expected features for"),
        ({"n_rows": 0}, "n_rows"),
    ],
)
def test_settings_that_contradict_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        model(**given).fit(*stripes(20))


def test_arrays_that_cannot_be_images_are_refused():
    X, y = stripes(20)
    for wrong, labels in ((X[:, :1, :1], y), (X, y[:5]), (X[:0], y[:0])):
        with pytest.raises(ValueError, match="Nothing was spent"):
            model().fit(wrong, labels)


def test_predictions_refuse_what_training_did_not_see(fitted):
    X, _ = stripes(3)
    with pytest.raises(ValueError, match="1 channels"):
        fitted.predict(np.repeat(X[..., None], 3, axis=3))
    X = X / 255.0
    X[1, 0, 0] = np.nan
    with pytest.raises(ValueError, match="image 1"):
        fitted.predict(X)


def test_the_rule_for_mirror_images():
    X, _ = stripes(4)
    found = {}
    for channels in (1, 3):
        pictures = np.repeat(X[..., None], channels, axis=3)
        estimator = PrivateImageClassifier()
        found[channels] = estimator._settings(Pictures(pictures)).mirror
        other = PrivateImageClassifier(mirror=not found[channels])
        assert other._settings(Pictures(pictures)).mirror is not found[channels]
    assert found == {1: False, 3: True}


@pytest.mark.parametrize(
    ("channels", "signal", "filters", "components"),
    [(1, 1e9, 1024, 2500), (3, 24_999, 2048, 2500), (3, 25_000, 2048, 3500)],
)
def test_the_rule_for_filters_and_components(channels, signal, filters, components):
    pictures = Pictures(np.zeros((2, 16, 16, channels)))
    found = PrivateImageClassifier()._settings(pictures, signal)
    assert (found.banks[0].filters, found.components) == (filters, components)
    color = channels == 3
    assert (found.blur, len(found.banks)) == ((1.0, 2) if color else (0.5, 3))


def test_components_follow_from_the_declared_number_of_images():
    """Not from how many there are, which is private then."""
    found = []

    class Stopped(PrivateImageClassifier):
        def _settings(self, pictures, signal=0.0):
            found.append(signal)
            raise KeyboardInterrupt

    for count in (4, 8):
        X, y = stripes(count)
        with pytest.raises(KeyboardInterrupt):
            Stopped(n_rows=1000, classes=[0, 1, 2]).fit(X, y)
    assert found[0] == found[1] and 100 < found[0] < 1000


def test_a_model_comes_back_from_its_file(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    loaded = PrivateImageClassifier.load(path)
    X, _ = stripes(30, seed=2)
    assert np.array_equal(loaded.decision_function(X), fitted.decision_function(X))
    assert loaded.privacy_statement_ == json.loads(
        json.dumps(fitted.privacy_statement_)
    )
    assert isinstance(loaded.settings_, FeatureSettings)
    again = tmp_path / "again.safetensors"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_files_that_are_no_models_are_refused(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    whole = path.read_bytes()
    wrong = [
        b"",
        b"junk" * 10,
        whole[:-7],
        whole.replace(b"armijo-images", b"another-image"),
        whole.replace(b'\\"version\\": 1', b'\\"version\\": 9'),
    ]
    for data in wrong:
        assert data != whole
        path.write_bytes(data)
        with pytest.raises(ArmijoError, match="no model of images"):
            PrivateImageClassifier.load(path)


def test_features_of_another_machine_are_noticed(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    loaded = PrivateImageClassifier.load(path)
    loaded._fingerprint = -loaded._fingerprint
    with pytest.raises(ArmijoError, match="features that the model was trained with"):
        loaded.predict(stripes(2)[0])


def test_features_are_cached_for_their_owner_alone(tmp_path):
    X, y = stripes(60)
    expected = model().fit(X, y).coef_
    cached = model(cache=tmp_path / "cache")
    assert np.array_equal(cached.fit(X, y).coef_, expected)
    (file,) = (tmp_path / "cache").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    calls = []
    again = model(cache=tmp_path / "cache", progress=lambda *told: calls.append(told))
    assert np.array_equal(again.fit(X, y).coef_, expected)
    assert not calls
    X[0, 0, 0] ^= 1
    again.fit(X, y)
    assert calls[-1] == (60, 60)


def test_features_in_a_damaged_file_are_made_again(tmp_path):
    """A run would fail after its first charge, or train on what no image says."""
    X, y = stripes(40)
    cached = model(cache=tmp_path)
    expected = cached.fit(X, y).coef_
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    archive = b"PK" + whole[2:]
    larger = whole.replace(b"(40,", b"(9**9,", 1)
    turned = whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:]
    for damaged in (b"", whole[:200], archive, larger, turned, whole + b" "):
        file.write_bytes(damaged)
        assert np.array_equal(cached.fit(X, y).coef_, expected)
        assert file.read_bytes() == whole


def test_features_are_made_when_they_are_paid_for(tmp_path, monkeypatch):
    path, lines = tmp_path / "ledger.jsonl", []
    real = FeatureMap.integers

    def integers(features, images, progress=None):
        lines.append(len(path.read_text().splitlines()))
        return real(features, images, progress)

    X, y = stripes(40)
    features = feature_map(small_settings())
    assert len(features.fingerprint)  # of synthetic images, made before
    monkeypatch.setattr(FeatureMap, "integers", integers)
    model(ledger=path).fit(X, y)
    assert lines == [2]  # the header and the first of 52 charges
    assert len(path.read_text().splitlines()) > 52


def test_marks_of_other_lengths_are_refused_before_a_charge(tmp_path):
    path = tmp_path / "ledger.jsonl"
    marks = np.ones(39, dtype=bool)
    with pytest.raises(ValueError, match="a mark for each image"):
        model(ledger=path).fit(*stripes(40), readable=marks)
    for bad in (np.ones((40, 1), dtype=bool), np.ones(40), [True, None] * 20):
        with pytest.raises(ValueError, match="a vector of booleans"):
            model(ledger=path).fit(*stripes(40), readable=bad)
    assert not path.exists()


def test_no_failure_after_the_charge_tells_of_images(tmp_path, monkeypatch):
    X, y = stripes(40)
    expected = model().fit(X, y).coef_
    (tmp_path / "cache").mkdir()
    model(cache=tmp_path / "cache").fit(X, y)
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:200])
    assert np.array_equal(model(cache=tmp_path / "cache").fit(X, y).coef_, expected)

    def failing(*_):
        raise MemoryError("for 40 images")

    monkeypatch.setattr(FeatureMap, "integers", failing)
    with pytest.raises(ArmijoError, match="could not be made: MemoryError") as caught:
        model().fit(X, y)
    assert "40" not in str(caught.value) and caught.value.__cause__ is None


def test_a_disk_that_is_full_after_the_charge_ends_no_fit(tmp_path, monkeypatch):
    def full(path, data, **how):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("armijo.images.estimator.replace_file", full)
    X, y = stripes(40)
    found = model(cache=tmp_path).fit(X, y)
    assert np.array_equal(found.coef_, model().fit(X, y).coef_)
    assert not list(tmp_path.iterdir())


def test_features_of_another_arithmetic_are_made_again(tmp_path, monkeypatch):
    model(cache=tmp_path).fit(*stripes(40))
    model(cache=tmp_path).fit(*stripes(40))
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    model(cache=tmp_path).fit(*stripes(40))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"progress": 3}, "progress to be a function"),
        ({"callback": 5}, "callback to be a function"),
        ({"cache": 5}, "cache to be a path"),
        ({"cache": "a file"}, "a folder for cache that can be written"),
        ({"features": 3}, "features to be FeatureSettings"),
        ({"side": 10**6}, "side <= 256"),
    ],
)
def test_public_mistakes_are_refused_before_a_charge(tmp_path, given, words):
    if given.get("cache") == "a file":
        (tmp_path / "file").touch()
        given = {"cache": tmp_path / "file"}
    path = tmp_path / "ledger.jsonl"
    with pytest.raises((ValueError, ArmijoError), match=words):
        model(ledger=path, **given).fit(*stripes(40))
    assert not path.exists()


@pytest.mark.parametrize(
    "classes",
    [
        [b"a", b"b"],
        np.array(["2020-01-01", "2021-01-01"], dtype="M8[D]"),
        [0.0, float("nan")],
        np.array([(0, 1), 2], dtype=object),
    ],
)
def test_classes_that_no_file_keeps_are_refused(tmp_path, classes):
    path = tmp_path / "ledger.jsonl"
    with pytest.raises((ValueError, TypeError)):
        model(ledger=path, classes=classes).fit(*stripes(40))
    assert not path.exists()


def test_classes_read_from_objects_are_kept(tmp_path):
    X, y = stripes(40)
    labels = np.empty(len(y), dtype=object)
    labels[:] = list(y)  # NumPy's own numbers
    with pytest.warns(PrivacyLeakWarning):
        fitted = model(classes=None).fit(X, labels)
    fitted.save(tmp_path / "m")
    loaded = PrivateImageClassifier.load(tmp_path / "m")
    assert (loaded.predict(X) == fitted.predict(X)).all()
    assert (loaded.epsilon, loaded.delta) == (fitted.epsilon, fitted.delta)


def test_a_label_of_no_kind_is_a_blank_with_a_checkpoint_too(tmp_path):
    X, y = stripes(40)
    again: list = []
    again.append(again)

    class Silent:
        def __repr__(self):
            raise RuntimeError("row 5")

    for number, odd in enumerate([10**5000, again, Silent()]):
        labels = y.tolist()
        labels[5] = odd
        found = model().fit_resumable(X, labels, checkpoint=tmp_path / str(number))
        labels[5] = None
        assert np.array_equal(found.coef_, model().fit(X, labels).coef_)


def test_bytes_are_no_text(tmp_path):
    labels = np.array([b"a", b"b"] * 20)
    labels[3] = b"\xff"
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(ValueError, match=r"type of the classes \(str_\), got bytes_"):
        model(classes=["a", "b"], ledger=path).fit(stripes(40)[0], labels)
    assert not path.exists()


def test_a_run_that_was_stopped_predicts_something(tmp_path):
    stopped = model(callback=lambda record: True).fit(*stripes(40))
    assert stopped.n_iter_ == 1
    assert stopped.predict(stripes(3)[0]).shape == (3,)


def test_it_is_an_estimator_of_scikit_learn():
    assert clone(model(epsilon=3.0)).get_params()["epsilon"] == 3.0
    assert armijo.PrivateImageClassifier is PrivateImageClassifier
