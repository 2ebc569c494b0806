# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.networks.known import know


@pytest.fixture(autouse=True)
def known_once(monkeypatch: pytest.MonkeyPatch) -> None:
    know(monkeypatch.setattr)
