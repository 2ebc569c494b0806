# SPDX-License-Identifier: Apache-2.0
"""A fit that ends with an error leaves the estimator as it was before."""

import numpy as np
import pandas as pd
import pytest

from armijo import (
    PrivateClassifier,
    PrivateImageClassifier,
    PrivateLogisticRegression,
    PrivateRegressor,
)
from armijo.methods.base import StepRecord
from tests.images.doubles import small_settings, stripes

ROWS = 200
DRAW = np.random.default_rng(2)
TABLE = pd.DataFrame({"age": DRAW.integers(18, 90, ROWS), "sex": ["f", "m"] * 100})
LABELS = np.where(TABLE.age > 50, "high", "low")
SEEDED = {"random_state": 0, "epsilon": 8.0, "n_rows": ROWS}
NAMES = {"classes": ["high", "low"], **SEEDED}
IMAGES, STRIPES = stripes(60)
IMAGE_SETTINGS = {
    "random_state": 0,
    "classes": [0, 1],
    "features": small_settings(),
}

FITS = {
    "table": (PrivateClassifier(**NAMES), TABLE, LABELS),
    "targets": (PrivateRegressor(**SEEDED), TABLE, TABLE.age / 10.0),
    "array": (PrivateLogisticRegression(**NAMES), TABLE[["age"]] / 90.0, LABELS),
    "line": (PrivateLogisticRegression(**NAMES), TABLE, LABELS),
    "images": (PrivateImageClassifier(**IMAGE_SETTINGS), IMAGES, STRIPES),
}


def held(model):
    """Return what a fit leaves, by name."""
    return {name: value for name, value in vars(model).items() if name.endswith("_")}


def stops(record: StepRecord):
    raise KeyboardInterrupt


@pytest.mark.parametrize(("model", "X", "y"), FITS.values(), ids=FITS)
@pytest.mark.filterwarnings("ignore::armijo.errors.ModelWarning")
def test_the_model_before_predicts_as_before(model, X, y):
    model.fit(X, y)
    before, expected = held(model), model.predict(X)
    other = X.assign(more=1.0) if isinstance(X, pd.DataFrame) else X[..., 1:]
    refused = [
        (other, np.repeat(y, 2), None, ValueError),
        (other, y, stops, KeyboardInterrupt),
        (other.to_numpy() if isinstance(other, pd.DataFrame) else 3.0, y, stops, None),
    ]
    for rows, labels, callback, error in refused:
        model.set_params(callback=callback)
        with pytest.raises(error or (ValueError, KeyboardInterrupt)):
            model.fit(rows, labels)
        after = held(model)
        assert after.keys() == before.keys()
        assert all(after[name] is before[name] for name in before)
    np.testing.assert_array_equal(model.predict(X), expected)


def test_the_first_fit_leaves_nothing():
    model = PrivateClassifier(**NAMES)
    with pytest.raises(ValueError, match="a label for each row"):
        model.fit(TABLE, LABELS[:-1])
    assert not held(model)
