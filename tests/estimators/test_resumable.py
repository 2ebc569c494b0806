# SPDX-License-Identifier: Apache-2.0
"""A checkpoint always has a ledger beside it, whoever names the files."""

import os

import numpy as np
import pytest

from armijo.accounting.ledger import read_ledger
from armijo.errors import BudgetExceeded, LedgerError
from armijo.estimators import PrivateLogisticRegression
from armijo.methods import DPSGD

RNG = np.random.default_rng(3)
X = RNG.normal(size=(300, 3))
y = (X[:, 0] > 0).astype(int)
STEPS, SEEN = 12, 5


def model(**given):
    public = {"epsilon": 1.0, "delta": 1e-6, "classes": [0, 1], "n_rows": 300}
    return PrivateLogisticRegression(method=DPSGD(steps=STEPS), **public, **given)


def killed(checkpoint):
    """Run in a process that dies, without a word, after a few batches were seen."""

    def die(record):
        if record.batch == SEEN - 1:
            os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            model(callback=die).fit_resumable(X, y, checkpoint=checkpoint)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_killed_run_without_a_named_ledger_spends_its_budget_once(tmp_path):
    checkpoint, ledger = tmp_path / "run.json", tmp_path / "run.json.ledger"
    killed(checkpoint)
    begun = read_ledger(ledger).charges
    assert len(begun) == SEEN
    found = model().fit_resumable(X, y, checkpoint=checkpoint, resume=True)
    after = read_ledger(ledger).charges
    assert after[:SEEN] == begun and len(after) == STEPS == found.n_iter_
    assert found.privacy_.ledger_path == str(ledger)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_checkpoint_that_lost_its_ledger_is_not_resumed(tmp_path):
    checkpoint = tmp_path / "run.json"
    killed(checkpoint)
    (tmp_path / "run.json.ledger").unlink()
    with pytest.raises(LedgerError, match="is not there"):
        model().fit_resumable(X, y, checkpoint=checkpoint, resume=True)


def test_a_new_run_over_a_finished_one_finds_the_budget_spent(tmp_path):
    checkpoint = tmp_path / "run.json"
    model().fit_resumable(X, y, checkpoint=checkpoint)
    with pytest.raises(BudgetExceeded, match="12 charges"):
        model().fit_resumable(X, y, checkpoint=checkpoint)


def test_a_ledger_that_is_named_is_the_only_one(tmp_path):
    model(ledger=tmp_path / "own").fit_resumable(X, y, checkpoint=tmp_path / "run.json")
    assert len(read_ledger(tmp_path / "own").charges) == STEPS
    assert not (tmp_path / "run.json.ledger").exists()
