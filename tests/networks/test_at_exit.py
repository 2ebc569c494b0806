# SPDX-License-Identifier: Apache-2.0
"""A script may end in the middle of a run: no abort, and files that fit together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from armijo.accounting.ledger import read_ledger
from armijo.training import run as at_exit
from tests.networks.checkpoint_doubles import files, seeded, stopped
from tests.networks.network_doubles import flat, network

SCRIPT = """
import os, sys
from tests.networks.checkpoint_doubles import files, seeded
another = iter(seeded("sgd"))  # without files, and just as open
next(another)
steps = iter(seeded("sgd", **files(sys.argv[1])))
next(steps)
next(steps)
"""
FORK = """
if os.fork() == 0:
    sys.exit(0)
os.wait()
assert not os.path.exists(files(sys.argv[1])["checkpoint"])
next(steps)
"""
REMOVED = """
os.unlink(files(sys.argv[1])["checkpoint"])
"""


def ended(script: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a script in a process of its own until it ends."""
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )


def test_a_script_that_leaves_runs_open_does_not_abort_and_can_be_resumed(tmp_path):
    done = ended(SCRIPT, str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(read_ledger(files(tmp_path)["ledger"]).charges) == 2
    there = seeded("sgd", **files(tmp_path), resume=True)
    assert len(there.records) == 2  # the checkpoint is that of the last step
    module, whole = network(dropout=0.3), network(dropout=0.3)
    there.accountant.ledger.close()
    seeded("sgd", module, **files(tmp_path), resume=True).run()
    seeded("sgd", whole).run()
    assert torch.equal(flat(module), flat(whole))


def test_a_forked_child_does_not_write_the_files_of_its_parent(tmp_path):
    done = ended(SCRIPT + REMOVED + FORK, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert len(seeded("sgd", **files(tmp_path), resume=True).records) == 3


def test_runs_that_ended_are_not_held(monkeypatch):
    held = dict(at_exit._OPEN)
    stopped(seeded("sgd"), 1)
    assert dict(at_exit._OPEN) == held


@pytest.mark.parametrize("finalizing", [False, True])
def test_nothing_is_computed_while_the_interpreter_is_torn_down(
    finalizing, monkeypatch, tmp_path
):
    trainer = seeded("sgd", **files(tmp_path))
    steps = iter(trainer)
    next(steps)
    before = files(tmp_path)["checkpoint"].read_bytes()
    monkeypatch.setattr(at_exit.sys, "is_finalizing", lambda: finalizing)
    steps.close()
    assert (files(tmp_path)["checkpoint"].read_bytes() == before) == finalizing
