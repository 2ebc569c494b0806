# SPDX-License-Identifier: Apache-2.0
"""Fits side by side in threads and processes: nothing lost, nothing shared."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from armijo.accounting.ledger import read_ledger

ROOT = Path(__file__).resolve().parents[2]
LEAK = 30_000
"""Bytes that a fit may leave on average: far less than what it works with."""


def crowd(folder: Path, fits: int, processes: int, threads: int) -> list[Any]:
    """Run the program, and return what each process wrote down."""
    numbers = map(str, (fits, processes, threads))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.load.crowd", str(folder), *numbers],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = [json.loads(path.read_text()) for path in folder.glob("process-*.json")]
    assert len(found) == processes
    assert sum(len(one["fits"]) for one in found) == fits
    return found


def gathered(found: list[Any], name: str) -> list[Any]:
    return [item for one in found for item in one[name]]


def every_charge_is_in_its_ledger(folder: Path, found: list[Any]) -> None:
    """Check each ledger line by line against the fit that wrote it."""
    runs = set()
    for fit in gathered(found, "fits"):
        view = read_ledger(folder / fit["ledger"])
        assert len(view.charges) == fit["charges"] == fit["batches"]
        assert view.torn == 0
        assert [charge.index for charge in view.charges] == list(range(fit["charges"]))
        assert 0 < fit["epsilon_spent"] <= 1.0
        runs.add(view.header["run"])
    assert len(runs) == len(gathered(found, "fits"))
    written = sum(fit["charges"] for fit in gathered(found, "fits"))
    assert sum(one["appended"] for one in found) == written


def no_two_draws_are_equal(found: list[Any]) -> None:
    """Check that keys, streams, words and what was released are all different."""
    fits = gathered(found, "fits")
    # A search that accepts no step leaves the weights at zero, whatever its noise.
    released = [fit["weights"] for fit in fits if fit["moved"]]
    assert len(set(released)) == len(released) > 0.9 * len(fits)
    norms = gathered(fits, "directions")
    assert len(set(norms)) == len(norms) >= 2 * len(fits)
    for name in ("run_keys", "stream_keys", "system_words"):
        drawn = gathered(found, name)
        assert len(set(drawn)) == len(drawn) >= len(fits) // 2, name


def memory_does_not_grow(found: list[Any]) -> None:
    """Compare the memory after a tenth of the fits with that after all of them."""
    for one in found:
        later = len(one["fits"]) - max(len(one["fits"]) // 10, 1)
        assert one["late"]["objects"] - one["early"]["objects"] < later
        assert one["late"]["bytes"] - one["early"]["bytes"] < LEAK * later


def test_fits_of_a_few_threads_and_processes(tmp_path):
    found = crowd(tmp_path, fits=40, processes=2, threads=4)
    every_charge_is_in_its_ledger(tmp_path, found)
    no_two_draws_are_equal(found)


@pytest.mark.slow
def test_a_thousand_fits_of_many_threads_and_processes(tmp_path):
    found = crowd(tmp_path, fits=1000, processes=4, threads=16)
    every_charge_is_in_its_ledger(tmp_path, found)
    no_two_draws_are_equal(found)
    memory_does_not_grow(found)
