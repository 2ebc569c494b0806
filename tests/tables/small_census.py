# SPDX-License-Identifier: Apache-2.0
"""A small census table and its schema."""

import pandas as pd
import pytest

from armijo.tables import Categorical, Ignore, Label, Numeric, Schema


@pytest.fixture
def schema():
    return Schema(
        columns=(
            Numeric("age", 0, 100),
            Categorical("workclass", ("Private", "State-gov", "Self-emp")),
            Ignore("note"),
            Label("income", ("<=50K", ">50K")),
        ),
        target="income",
        reviewed=True,
    )


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "age": [50, 17, 120],
            "workclass": ["State-gov", "Private", "Self-emp"],
            "note": ["x", None, "y"],
            "income": [">50K", "<=50K", ">50K"],
        }
    )
