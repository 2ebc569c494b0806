# SPDX-License-Identifier: Apache-2.0
"""Examples that raise become blanks in place: all others are as they were."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from armijo.data.query import Rows
from armijo.objectives.ghost.guards import Batch, blanked
from armijo.objectives.module import ModuleObjective
from tests.networks.network_doubles import (
    CLASSES,
    CROSS_ENTROPY,
    FEATURES,
    ROWS,
    examples,
    network,
    two_inputs,
    words,
)

X, Y = examples(torch.float64)
BAD = [3, 4, 17]
GOOD = [row for row in range(ROWS) if row not in BAD]
SPOILED = Y.clone()
SPOILED[BAD] = CLASSES + 4

MODULES = {
    "captured": lambda: network(torch.float64),
    "dropout": lambda: network(torch.float64, dropout=0.5),
    "one by one": lambda: nn.Sequential(network(), nn.PReLU()).double(),
}
every_module = pytest.mark.parametrize("name", MODULES)


def objective(name, loss=CROSS_ENTROPY):
    return ModuleObjective(MODULES[name](), loss)


BLANK = torch.zeros(ROWS, dtype=torch.bool)
BLANK[BAD] = True
CLEAN = Y.masked_fill(BLANK, 0)


def blanks(seed=0):
    return Rows(X.masked_fill(BLANK[:, None], 0), CLEAN, seed=seed, blank=BLANK)


def sums(one, rows):
    return one.gradient_sum(one.start(), clip=0.3).contributions(rows).integers(40)


@every_module
def test_the_gradient_is_that_of_the_others(name):
    found = sums(objective(name), Rows(X, SPOILED, seed=5))
    expected = sums(objective(name), blanks(5))
    assert torch.equal(found, expected) and found.any()


@every_module
@pytest.mark.parametrize("gradient_first", [True, False])
def test_the_drop_of_losses_is_nothing_for_them(name, gradient_first):
    found, one = [], objective(name)
    step = torch.linspace(-1, 1, one.size, dtype=torch.float64)
    query = one.loss_drop_sum(one.start(), step, 0.1, form="loss", clip=0.9)
    for rows in (Rows(X, SPOILED, seed=5), blanks(5)):
        if gradient_first:
            sums(one, rows)
        found.append(query.contributions(rows))
    np.testing.assert_array_equal(*found)
    assert not found[0][BAD].any() and found[1].any()


def test_losses_along_a_line_and_scores_are_nothing_for_them():
    one = objective("captured")
    step = torch.linspace(-1, 1, one.size, dtype=torch.float64)
    for query in (
        one.losses_along(one.start(), step, [0.0, 0.5], clip=0.9),
        one.step_scores(one.start(), step, [0.0, 0.5], clip=0.9),
        one.drops_along(one.start(), step, [0.1, 0.5], units=np.ones(2)),
    ):
        found = query.contributions(Rows(X, SPOILED))
        np.testing.assert_array_equal(found, query.contributions(blanks()))
        assert not found[BAD].any() and found[GOOD].any()


def test_inputs_that_raise():
    one = ModuleObjective(two_inputs().double(), CROSS_ENTROPY)
    spoiled = words().clone()
    spoiled[BAD] = 6
    found = sums(one, Rows((X, spoiled), Y))
    zeros = blanked(Batch((X, words()), Y), BLANK)
    expected = sums(one, Rows(*zeros, blank=BLANK))
    assert torch.equal(found, expected) and found.any()


def test_blanks_are_written_to_a_copy_even_if_there_are_none():
    """Where a part begins in memory must not matter, so that its numbers are moved."""
    part = torch.arange(12.0).view(4, 3)[1:]
    for blank in (torch.zeros(3, dtype=torch.bool), torch.tensor([True, False, True])):
        found, _ = blanked(Batch(part, part), blank)
        assert torch.equal(found, part.masked_fill(blank[:, None], 0))
        assert found.data_ptr() != part.data_ptr() and found.data_ptr() % 64 == 0


@every_module
def test_a_batch_of_nothing_else_is_empty(name):
    one, rows = objective(name), Rows(X[BAD], SPOILED[BAD])
    assert not sums(one, rows).any()
    drop = one.loss_drop_sum(one.start(), one.start(), 1.0, form="loss", clip=1.0)
    assert not drop.contributions(rows).any()


def test_an_example_is_not_left_out_for_who_is_beside_it():
    """A loss may fail for one example whoever it is; a neighbor must not pay for it."""

    def squeezed(scores, target):
        if (target >= CLASSES).any():
            raise IndexError("asked for")
        return (scores.squeeze() - target) ** 2

    one = ModuleObjective(nn.Linear(FEATURES, 1).double(), squeezed)
    found = sums(one, Rows(X, SPOILED))
    assert torch.equal(found, sums(one, blanks()))


def test_what_every_example_raises_is_raised_and_tells_of_none():
    def broken(scores, target):
        raise ArithmeticError(f"the largest target is {int(target.max())}")

    with pytest.raises(ArithmeticError, match="target is 0") as error:
        sums(objective("captured", broken), Rows(X, SPOILED))
    assert error.value.__context__ is None


def test_an_interrupt_is_no_fault_of_an_example():
    def stopped(scores, target):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sums(objective("captured", stopped), Rows(X, Y))


def test_one_of_many_is_found_by_few_passes():
    passes = []

    def counted(scores, target):
        passes.append(len(target))
        return CROSS_ENTROPY(scores, target)

    one = objective("captured", counted)
    sums(one, Rows(X, Y))
    passes.clear()
    target = Y.clone()
    target[11] = CLASSES
    sums(one, Rows(X, target))
    assert len(passes) <= 4 + 2 * math.ceil(math.log2(ROWS))
    assert set(passes) == {ROWS}  # nobody changes place or company
