# SPDX-License-Identifier: Apache-2.0
"""How many rows there are may be private: no error about lengths names a number."""

import re

import numpy as np
import pandas as pd
import pytest

from armijo import (
    PrivateClassifier,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRegressor,
)

X, Y = np.linspace(0, 1, 514).reshape(257, 2), np.arange(257) % 2
FRAME = pd.DataFrame(X, columns=["a", "b"])
KNOWN = {"classes": [0, 1], "n_rows": 250}
LINEAR = (PrivateLogisticRegression, PrivateLinearSVC)


@pytest.mark.parametrize(
    "fit",
    [
        *(lambda kind=kind: kind(**KNOWN).fit(X, Y[:-6]) for kind in LINEAR),
        *(lambda kind=kind: kind(n_rows=250).fit(X, Y[:-6]) for kind in LINEAR),
        *(lambda kind=kind: kind(**KNOWN).fit(FRAME, Y[:-6]) for kind in LINEAR),
        lambda: PrivateClassifier(**KNOWN).fit(FRAME, Y[:-6]),
        lambda: PrivateClassifier(**KNOWN).fit(X, Y[:-6]),
        lambda: PrivateClassifier(**KNOWN).fit(FRAME, Y, sample_weight=Y[:-6]),
        lambda: PrivateClassifier(**KNOWN).fit(FRAME, Y, person=Y[:-6]),
        lambda: PrivateRegressor(n_rows=250).fit(FRAME, Y[:-6]),
    ],
)
def test_no_length_is_named(fit):
    with pytest.raises(ValueError, match="for each row, got different") as error:
        fit()
    assert not re.search("257|251|25[0-9]", str(error.value))


@pytest.mark.parametrize("kind", [*LINEAR, PrivateClassifier, PrivateRegressor])
def test_a_table_of_labels_is_refused_without_its_height(kind):
    model = kind(n_rows=250) if kind is PrivateRegressor else kind(**KNOWN)
    with pytest.raises(ValueError, match="should be a 1d array") as error:
        model.fit(FRAME, np.column_stack([Y, Y, Y]))
    assert "257" not in str(error.value)
