# SPDX-License-Identifier: Apache-2.0
"""Properties are judged by what they say, not by how long a busy machine takes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.known import know

for name, count in {"few": 30, "many": 300}.items():  # the fast and the slow suite
    settings.register_profile(
        name,
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("few")


@pytest.fixture(autouse=True)
def known_once(monkeypatch):
    know(monkeypatch.setattr)


@pytest.fixture
def plain_products(monkeypatch):
    """Take weights with all their bits, as the path that a test writes out does.

    Iterates have more bits than scores are computed with; products themselves are
    tested in ``tests/data/test_lattice.py``.
    """
    monkeypatch.setattr("armijo.data.lattice.product", lambda X, w: np.asarray(X @ w))
