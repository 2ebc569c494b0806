# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def known_once():
    """Solve anew in each test: what others need solved once is tested here."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The place of a ledger."""
    return tmp_path / "run.ledger"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave syncing out where hundreds of files are opened."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
