# SPDX-License-Identifier: Apache-2.0
"""The module objective: its queries are those of a loop over examples."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from armijo.data.certified import FINEST_BITS, SLACK
from armijo.data.query import CertifiedSum, Rows
from armijo.objectives.ghost import strategy as strategy_file
from armijo.objectives.module import ModuleObjective
from tests.networks.network_doubles import CROSS_ENTROPY, ROWS, examples, network

X, Y = examples(torch.float64)


def objective(**more):
    return ModuleObjective(network(torch.float64), CROSS_ENTROPY, **more)


def rows(index=slice(None), **more):
    return Rows(X[index], Y[index], **more)


def sums(query, batch):
    """Return the sum in floating point, after a look at the one on the lattice."""
    found = query.contributions(batch)
    assert isinstance(found, CertifiedSum)
    unit = query.bound * 2.0**-FINEST_BITS
    total = found.integers(FINEST_BITS)
    assert torch.equal(total, total.round())
    plain = found.plain()
    room = 1e-4 * plain.norm() + 1e-6 * query.bound
    assert (total * unit - plain).norm() <= room
    assert total.norm() * unit <= batch.size * query.bound * (1 + SLACK)
    return plain


def direction(one, seed=1):
    return torch.randn(
        one.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def losses(w, index=slice(None)):
    module = network(torch.float64)
    nn.utils.vector_to_parameters(w, module.parameters())
    return CROSS_ENTROPY(module(X[index]), Y[index]).detach()


def gradients(w):
    """Return the gradient of each example by torch's own."""
    module = network(torch.float64)
    nn.utils.vector_to_parameters(w, module.parameters())
    found = []
    for row in range(ROWS):
        module.zero_grad()
        CROSS_ENTROPY(module(X[row : row + 1]), Y[row : row + 1]).sum().backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in module.parameters()]))
    return torch.stack(found)


@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_the_gradient_sum(clip):
    one = objective()
    w = one.start() + 0.1 * direction(one)
    query = one.gradient_sum(w, clip=clip)
    assert query.bound == clip and query.offset == 0
    found = sums(query, rows())
    g = gradients(w)
    factors = (clip / g.norm(dim=1)).clamp(max=1)
    torch.testing.assert_close(found, factors @ g, rtol=1e-12, atol=1e-12)


@settings(max_examples=20)
@given(index=st.lists(st.integers(0, ROWS - 1), max_size=7), clip=st.floats(1e-3, 1e3))
def test_one_example_adds_at_most_the_clip(index, clip):
    one = objective()
    w = one.start()
    total = sums(one.gradient_sum(w, clip=clip), rows(index))
    assert total.shape == (one.size,)
    assert float(total.norm()) <= len(index) * clip * (1 + 1e-12)
    query = one.normalized_gradient_sum(w, stability=0.5)
    assert query.bound == 1.0
    assert float(sums(query, rows(index)).norm()) <= len(index)


def test_the_normalized_gradient_sum():
    one = objective()
    w = one.start()
    found = sums(one.normalized_gradient_sum(w, stability=0.5), rows())
    g = gradients(w)
    expected = (1 / (g.norm(dim=1) + 0.5)) @ g
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["difference", "loss"])
def test_the_drop_of_losses(form):
    one = objective()
    w, step = one.start(), direction(one)
    query = one.loss_drop_sum(w, step, 0.7, form=form, clip=0.9)
    assert (query.bound, query.offset) == (0.9, 0.0)
    before, after = losses(w), losses(w - 0.7 * step)
    assert float(before.max()) > 0.9
    if form == "loss":
        before, after = before.clamp(0, 0.9), after.clamp(0, 0.9)
    found = query.contributions(rows())
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, before - after, rtol=0, atol=1e-12)


def test_losses_along_and_step_scores():
    one = objective()
    w, step, sizes = one.start(), direction(one), [-0.5, 0.0, 0.5]
    expected = torch.stack(
        [losses(w - size * step).clamp(0, 1.2) for size in sizes], dim=1
    )
    query = one.losses_along(w, step, sizes, clip=1.2)
    assert query.bound == math.sqrt(3)
    np.testing.assert_allclose(query.contributions(rows()), expected / 1.2, atol=1e-12)
    query = one.step_scores(w, step, sizes, clip=1.2)
    assert query.bound == 0.6
    found = query.contributions(rows())
    np.testing.assert_allclose(found, 0.6 - expected, atol=1e-12)
    assert np.abs(found).max() <= 0.6


def test_an_empty_batch_answers_every_query():
    one = objective()
    w, step, nobody = one.start(), direction(one), rows([])
    assert not sums(one.gradient_sum(w, clip=1.0), nobody).any()
    drop = one.loss_drop_sum(w, step, 1.0, form="loss", clip=1.0)
    assert drop.contributions(nobody).shape == (0,)
    along = one.losses_along(w, step, [0.0, 1.0], clip=1.0)
    assert along.contributions(nobody).shape == (0, 2)


class Counted(nn.Module):
    """Counts its passes."""

    def __init__(self):
        super().__init__()
        self.inner, self.passes = network(torch.float64), 0

    def forward(self, X):
        self.passes += 1
        return self.inner(X)


def test_the_loss_at_w_comes_from_the_gradients_own_pass():
    module = Counted()
    one = ModuleObjective(module, CROSS_ENTROPY)
    w, batch = one.start(), rows()
    sums(one.gradient_sum(w, clip=1.0), batch)
    module.passes = 0
    for number in (1, 2, 3):
        query = one.loss_drop_sum(
            w, direction(one), 0.1**number, form="difference", clip=9.0
        )
        query.contributions(batch)
        assert module.passes == number
    query.contributions(rows())  # another batch has no gradient
    assert module.passes == 5


def test_losses_that_are_held_are_not_taken_for_other_parameters():
    one = objective()
    w, batch, step = one.start(), rows(), direction(one)
    sums(one.gradient_sum(w, clip=1.0), batch)
    other = w + step
    query = one.loss_drop_sum(other, step, 1.0, form="difference", clip=50.0)
    np.testing.assert_allclose(
        query.contributions(batch), losses(other) - losses(w), atol=1e-12
    )


@pytest.mark.parametrize("most", [1, 3, ROWS - 1])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_large_batch_goes_through_in_parts(most, dropout, monkeypatch):
    one = ModuleObjective(network(torch.float64, dropout=dropout), CROSS_ENTROPY)
    w, step = one.start(), direction(one)
    queries = [
        one.loss_drop_sum(w, step, 0.1, form="difference", clip=9.0),
        one.drops_along(w, step, [0.1, 0.2], units=np.ones(2)),
        one.losses_along(w, step, [0.0, 0.1], clip=9.0),
        one.step_scores(w, step, [0.0, 0.1], clip=9.0),
    ]
    monkeypatch.setattr(strategy_file, "MOST_ROWS", most)
    batch = rows(seed=5)
    total = sums(one.gradient_sum(w, clip=0.3), batch)
    found = [query.contributions(batch) for query in queries]
    # Each part alone, as a batch with the seed that it has there.
    monkeypatch.setattr(strategy_file, "MOST_ROWS", ROWS)
    parts = [
        rows(slice(first, first + most), seed=5 + number)
        for number, first in enumerate(range(0, ROWS, most))
    ]
    alone = [sums(one.gradient_sum(w, clip=0.3), part) for part in parts]
    torch.testing.assert_close(total, sum(alone), rtol=1e-12, atol=1e-13)
    for query, numbers in zip(queries, found, strict=True):
        separate = np.concatenate([query.contributions(part) for part in parts])
        np.testing.assert_allclose(numbers, separate, rtol=1e-12, atol=1e-13)


def test_no_pass_has_more_examples_than_may_go_through_at_once(monkeypatch):
    sizes = []

    class Noted(Counted):
        def forward(self, X):
            sizes.append(len(X))
            return super().forward(X)

    one = ModuleObjective(Noted(), CROSS_ENTROPY)
    w, batch = one.start(), rows()
    sums(one.gradient_sum(w, clip=1.0), rows())  # tries its layers first
    sizes.clear()
    monkeypatch.setattr(strategy_file, "MOST_ROWS", 2)
    one.gradient_sum(w, clip=1.0).contributions(batch).integers(40)
    search = one.loss_drop_sum(w, direction(one), 0.1, form="difference", clip=9.0)
    search.contributions(batch)
    assert max(sizes) == 2 and sum(sizes) == 2 * ROWS


def test_parameters_go_out_and_in():
    one = objective()
    w = one.start()
    assert one.size == w.numel() == 43 and one.device == torch.device("cpu")
    one.load(w + 1)
    assert torch.equal(one.start(), w + 1)
    w.zero_()  # a copy
    assert not torch.equal(one.start(), w)


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_the_penalty(l2):
    one = objective(l2=l2)
    w, step = one.start(), direction(one)
    assert one.penalty(w) == pytest.approx(0.5 * l2 * float(w.square().sum()))
    assert torch.equal(one.penalty_gradient(w), l2 * w)
    drop = one.penalty_drop(w, step)
    for eta in (0.0, 0.1, 2.0):
        expected = one.penalty(w) - one.penalty(w - eta * step)
        assert drop(eta) == pytest.approx(expected, abs=1e-12)


def test_a_negative_penalty_is_refused():
    with pytest.raises(ValueError, match="l2"):
        objective(l2=-0.1)
