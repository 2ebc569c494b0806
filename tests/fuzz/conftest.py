# SPDX-License-Identifier: Apache-2.0
"""What all fuzzing shares."""

import os

import pytest


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave syncing out where thousands of files are written."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
