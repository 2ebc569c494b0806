# SPDX-License-Identifier: Apache-2.0
"""Runs are killed and disks fail; resumed, they end as if nothing had happened.

The harness says what is compared.  It runs in a process of its own, from which every
attempt is forked.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import armijo
from tests.crash.broken import BROKEN

ROOT = Path(__file__).parents[2]
LINEAR, PLANNED, AUTO = "blsgd", "sgd", "auto"
NETWORK, PROGRAM = "network", "armijo fit"


def harness(*words: str) -> dict[str, Any]:
    """Run the harness; it ends at the first contradiction."""
    source = Path(armijo.__file__).parents[1]
    one_thread = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"], "1")
    paths = {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.harness", *words],
        cwd=ROOT,
        env=os.environ | one_thread | paths,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_any_call_to_the_disk_may_fail():
    words = ["--most", "50", "--again", "5"]
    found = harness("faults", "--subject", LINEAR, *words)[LINEAR]
    assert found["runs"] == 55
    assert found["died"] + found["refused"] >= 50
    assert found["calls"] > 40


def test_kills_at_random_instants():
    names = (LINEAR, NETWORK, PROGRAM)
    chosen = [word for name in names for word in ("--subject", name)]
    found = harness("kills", "--count", "5", *chosen)
    assert set(found) == set(names)
    assert all(one["kills"] >= 5 for one in found.values())


@pytest.mark.slow
def test_hundreds_of_kills():
    found = harness("kills", "--count", "150", "--seed", "1")
    assert sum(one["kills"] for one in found.values()) >= 750
    assert set(found) == {LINEAR, PLANNED, AUTO, NETWORK, PROGRAM}


@pytest.mark.slow
@pytest.mark.parametrize("name", [LINEAR, PLANNED, AUTO, NETWORK])
def test_two_faults_one_after_the_other(name):
    found = harness("faults", "--subject", name, "--again", "150", "--seed", "1")[name]
    assert found["runs"] > 150 + 2 * found["calls"]
    # Each call once by a kill and once by a power failure; most also by a full disk.
    assert found["died"] >= 2 * found["calls"]
    assert found["refused"] >= found["calls"] / 2


@pytest.mark.slow
def test_faults_of_the_program():
    words = ["--most", "80", "--again", "20", "--seed", "1"]
    found = harness("faults", "--subject", PROGRAM, *words)[PROGRAM]
    assert found["runs"] == 100
    assert found["died"] + found["refused"] >= 80


@pytest.mark.slow
def test_a_broken_package_is_found_out():
    found = harness("broken", "--subject", LINEAR)[LINEAR]
    assert {name for name, what in found.items() if not what} == set()
    assert set(found) == set(BROKEN)
    assert "are not in the ledger" in found["charges are not written"]
    assert "are not in the ledger" in found["charges are not synced"]
    assert "drawn twice" in found["all charges have the same bits"]
    assert "outlived the run" in found["the key outlives the run"]
