# SPDX-License-Identifier: Apache-2.0
"""For tests that follow a path of iterates in plain arithmetic to full precision."""

import numpy as np
import pytest


@pytest.fixture
def plain_products(monkeypatch):
    """Take weights with all their bits, as the path that a test writes out does.

    Iterates have more bits than scores are computed with; products themselves are
    tested in ``tests/data/test_lattice.py``.
    """
    monkeypatch.setattr(
        "armijo.objectives.linear.exact_product", lambda X, w: np.asarray(X @ w)
    )
