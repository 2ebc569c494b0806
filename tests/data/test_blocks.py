# SPDX-License-Identifier: Apache-2.0
"""Totals over blocks are those of all rows, and a task is all that travels."""

import pickle
from copy import copy
from functools import partial
from itertools import pairwise

import cloudpickle
import numpy as np
import pytest
import torch

from armijo.accounting.budget import Budget, Neighboring
from armijo.baselines import AGD, HyFree, PrivGene
from armijo.data.blocks import ExactSum, RowBlocks, SumTask, block_total
from armijo.data.coded import CategoryColumn, CodedRows, CodedTable, NumericColumn
from armijo.data.gate import PrivateDataset
from armijo.data.query import Rows
from armijo.data.sources import ArrayRows
from armijo.methods.additive import Additive
from armijo.methods.auto import Auto
from armijo.methods.base import Problem, minimize
from armijo.methods.line_search import BLGD, BLSGD
from armijo.methods.sgd import DPSGD, DPAdam
from armijo.objectives.additive import AdditiveObjective
from armijo.objectives.linear import LinearObjective
from armijo.randomness import Randomness
from armijo.training.run import Run
from tests.data.gate_doubles import FreeAccountant

N = 400
BUDGET = Budget(epsilon=1.0, delta=1e-5)


class CutRows:
    """Rows of a source in memory, cut into blocks; tasks arrive pickled.

    Of a batch a block is drawn twice, as after a retry.
    """

    def __init__(
        self, source, heights, *, reverse=False, ordered=True, dumps=pickle.dumps
    ):
        self.source, self.tasks, self.ordered = source, 0, ordered
        self.batch, self.dumps = None, dumps
        ends = np.cumsum([0, *heights])
        self.cuts = [np.arange(a, b) for a, b in pairwise(ends)]
        assert ends[-1] == len(source)
        self.cuts = self.cuts[::-1] if reverse else self.cuts

    def __len__(self):
        return len(self.source)

    def total(self, task: SumTask) -> ExactSum:
        self.tasks += 1
        received = pickle.loads(self.dumps(task))
        rounded = isinstance(self.source, ArrayRows)
        takes = (self.source.take(self.drawn(cut)) for cut in self.cuts)
        blocks = (Rows(X, y, rounded=rounded) for X, y, _ in takes)
        return pickle.loads(pickle.dumps(block_total(received, blocks)))

    def sampled(self, batch):
        sample = copy(self)
        sample.batch = batch
        return sample

    def drawn(self, cut):
        if self.batch is None:
            return cut
        for _ in range(2):
            batch = pickle.loads(pickle.dumps(self.batch))
            chosen = batch.chosen(int(cut[0]), len(cut))
        return cut[chosen]

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


travelling = partial(CutRows, dumps=cloudpickle.dumps)  # queries with closures
SAMPLED = {"sampling_prob": 0.2, "noise_multiplier": 1.0}
METHODS = [
    DPSGD(steps=4, **SAMPLED),
    DPSGD(steps=4, **SAMPLED | {"sampling_prob": 0.004}),  # few rows, in few blocks
    DPAdam(steps=4, **SAMPLED),
    HyFree(steps=4, **SAMPLED),
    BLSGD(gradient_rho=0.1, search_epsilon=0.5),
    BLGD(gradient_rho=0.1, search_epsilon=0.5),
    AGD(gradient_rho=0.1, search_epsilon=0.5),
]


def stepped(source, method):
    """Return the weights after some steps that are charged to nobody."""
    _, objective, _ = array_rows()
    data = PrivateDataset(
        source,
        n_rows=N,
        accountant=FreeAccountant(),
        randomness=Randomness(seed=3, insecure_deterministic=True),
    )
    method = method.completed(Problem(objective=objective, n_rows=N))
    start = method.init(objective.start())
    *_, (state, _) = minimize(objective, data, method, start, max_batches=4)
    return state.w


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_batches_of_blocks_are_bit_equal_to_those_in_memory(method):
    expected = stepped(array_rows()[0], method)
    for heights, reverse in (([150, 1, 249], False), ([399, 1], True), ([8] * 50, 1)):
        blocks = travelling(array_rows()[0], heights, reverse=reverse)
        assert torch.equal(stepped(blocks, method), expected)


class CountedFromBlock(CutRows):
    """A planted bug: rows are numbered from the beginning of their block."""

    def drawn(self, cut):
        return cut if self.batch is None else cut[self.batch.chosen(0, len(cut))]


def test_rows_that_are_numbered_in_their_block_are_found():
    blocks = CountedFromBlock(array_rows()[0], [200, 200], dumps=cloudpickle.dumps)
    expected = stepped(array_rows()[0], METHODS[0])
    assert not torch.equal(stepped(blocks, METHODS[0]), expected)


def test_a_lost_row_changes_the_total():
    source, objective, method = array_rows()
    blocks = CutRows(source, [200, 200])
    blocks.cuts.pop()
    found = run(blocks, objective, method).complete().w
    assert not torch.equal(found, run(*array_rows()).complete().w)


def test_what_is_no_sum_is_refused_before_a_charge():
    source, objective, _ = array_rows()
    blocks = CutRows(source, [N])
    with pytest.raises(ValueError, match=r"only sums over rows, got PrivGene.*spent"):
        run(blocks, objective, PrivGene())
    unordered = travelling(source, [N], ordered=False)
    with pytest.raises(ValueError, match=r"fixed order for a method that .*spent"):
        run(unordered, objective, BLSGD())
    assert blocks.tasks == unordered.tasks == 0
    everybody = DPSGD(steps=2, **SAMPLED | {"sampling_prob": 1.0})
    assert torch.equal(stepped(unordered, everybody), stepped(source, everybody))


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
