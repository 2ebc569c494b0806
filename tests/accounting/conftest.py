# SPDX-License-Identifier: Apache-2.0
import pytest


@pytest.fixture(autouse=True)
def known_once():
    """Solve anew in each test: what others need solved once is tested here."""
