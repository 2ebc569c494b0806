# SPDX-License-Identifier: Apache-2.0
"""The readers under inputs that are guided by coverage (atheris)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.target import COVERAGE
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
GUIDED = {name: target.guided for name, target in TARGETS.items() if target.guided}
pytestmark = pytest.mark.skipif(
    not COVERAGE,
    reason="atheris is not installed: it has wheels for Linux on x86-64 only",
)


def run(name: str, folder: Path, runs: int) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.guided", name, str(folder), str(runs)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=3600,
        check=False,
    )


def guided(name: str, folder: Path, runs: int) -> int:
    """Return how many inputs were made without a finding."""
    ended = run(name, folder, runs)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    found = re.search(r"number_of_executed_units:\s*(\d+)", ended.stderr)
    assert found is not None, ended.stderr[-3000:]
    return int(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDED)
def test_guided_inputs(tmp_path, name):
    assert guided(name, tmp_path, GUIDED[name]) >= GUIDED[name]


@pytest.mark.slow
def test_a_planted_defect_is_found(tmp_path):
    ended = run("planted", tmp_path, 20_000)
    assert ended.returncode != 0
    assert "IndexError" in ended.stdout + ended.stderr
