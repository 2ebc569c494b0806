# SPDX-License-Identifier: Apache-2.0
"""Totals over blocks are those of all rows, and a task is all that travels."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch

from armijo.accounting.budget import Budget, Neighboring
from armijo.data.blocks import ExactSum, RowBlocks, SumTask, block_total
from armijo.data.coded import CategoryColumn, CodedRows, CodedTable, NumericColumn
from armijo.data.query import Rows
from armijo.data.sources import ArrayRows
from armijo.methods.additive import Additive
from armijo.methods.auto import Auto
from armijo.methods.sgd import DPSGD
from armijo.objectives.additive import AdditiveObjective
from armijo.objectives.linear import LinearObjective
from armijo.training.run import Run

N = 400
BUDGET = Budget(epsilon=1.0, delta=1e-5)


class CutRows:
    """Rows of a source in memory, cut into blocks; tasks arrive pickled."""

    def __init__(self, source, heights, *, reverse=False):
        self.source, self.tasks = source, 0
        ends = np.cumsum([0, *heights])
        self.cuts = [np.arange(a, b) for a, b in pairwise(ends)]
        assert ends[-1] == len(source)
        self.cuts = self.cuts[::-1] if reverse else self.cuts

    def __len__(self):
        return len(self.source)

    def total(self, task: SumTask) -> ExactSum:
        self.tasks += 1
        received = pickle.loads(pickle.dumps(task))
        rounded = isinstance(self.source, ArrayRows)
        takes = (self.source.take(cut) for cut in self.cuts)
        blocks = (Rows(X, y, rounded=rounded) for X, y, _ in takes)
        return pickle.loads(pickle.dumps(block_total(received, blocks)))

    def parts(self):
        return self.source.parts()


def array_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5)).astype(np.float32)
    y = np.where(X[:, 0] + rng.normal(size=N) > 0, 1.0, -1.0)
    X[3], y[5] = np.nan, np.nan
    return ArrayRows(X, y), LinearObjective(loss="logistic", n_features=5), Auto()


def coded_rows(loss="logistic"):
    rng = np.random.default_rng(1)
    age, code = rng.gamma(2.0, 10.0, N), rng.integers(-1, 4, N)
    y = np.where(age + rng.normal(size=N) > 20, 1.0, -1.0)
    age[7], y[8] = np.nan, np.nan
    columns = NumericColumn(name="age"), CategoryColumn(name="code", n_levels=4)
    table = CodedTable(columns, (age, code))
    weight = rng.uniform(size=N)
    objective = AdditiveObjective(columns=columns, loss=loss)
    return CodedRows(table, y, weight), objective, Additive(pairs=True)


def run(source, objective, method):
    relation = Neighboring.ZERO_OUT
    return Run(objective, source, method, BUDGET, n_rows=N, relation=relation, seed=3)


@pytest.mark.parametrize("made", [array_rows, coded_rows, lambda: coded_rows("huber")])
def test_a_run_on_blocks_is_bit_equal_to_one_in_memory(made):
    expected = run(*made()).complete().w
    for heights, reverse in (([N], False), ([150, 1, 249], False), ([399, 1], True)):
        source, objective, method = made()
        blocks = CutRows(source, heights, reverse=reverse)
        found = run(blocks, objective, method).complete()
        assert torch.equal(found.w, expected)
        assert blocks.tasks >= len(found.records)


def test_a_lost_row_changes_the_total():
    source, objective, method = array_rows()
    blocks = CutRows(source, [200, 200])
    blocks.cuts.pop()
    found = run(blocks, objective, method).complete().w
    assert not torch.equal(found, run(*array_rows()).complete().w)


def test_what_is_no_sum_is_refused_before_a_charge():
    source, objective, _ = array_rows()
    blocks = CutRows(source, [N])
    with pytest.raises(ValueError, match=r"only sums over all rows, got DPSGD.*spent"):
        run(blocks, objective, DPSGD())
    assert blocks.tasks == 0


def test_sums_of_different_tasks_do_not_add_up():
    one = ExactSum(torch.ones(2, dtype=torch.int64))
    assert (one + one).steps.tolist() == [2, 2]
    with pytest.raises(ValueError, match="sums of one task"):
        one + ExactSum(one.steps, bits=30)
    assert "1" not in repr(one)


def test_sources_in_memory_hand_out_rows_instead():
    source, _, _ = array_rows()
    assert isinstance(CutRows(source, [N]), RowBlocks)
    assert not isinstance(source, RowBlocks)
