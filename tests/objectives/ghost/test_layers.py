# SPDX-License-Identifier: Apache-2.0
"""Every layer, way of clipping and loss against one example at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from armijo.data.certified import SLACK
from armijo.objectives.ghost import clipped_gradient_sum, grads, strategy
from armijo.objectives.ghost.strategy import strategy_for
from tests.objectives.ghost.oracle import (
    LAYERS,
    LOSSES,
    TOLERANCE,
    assert_sums,
    batch_of,
    model_of,
    oracle_sum,
    relative_error,
)

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
WAYS = [("norm", 0.3), ("norm", 1e6), ("automatic", 1.0)]


def assert_equals_oracle(name, dtype, examples, clipping, clip, loss):
    model = model_of(name, dtype)
    batch = batch_of(name, examples, dtype)
    found = assert_sums(model, loss, batch, clip, clipping, TOLERANCE[dtype])
    assert strategy_for(model, (batch[0],)).captured
    _, losses = oracle_sum(model, loss, batch, clip, clipping)
    assert relative_error(found.losses, losses.double()) < TOLERANCE[dtype]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", LAYERS)
def test_sum_equals_one_example_at_a_time(name, loss):
    for clipping, clip in WAYS:
        for dtype in (torch.float64, torch.float32):
            assert_equals_oracle(name, dtype, 7, clipping, clip, LOSSES[loss])


@pytest.mark.parametrize("name", LAYERS)
def test_a_batch_of_one(name):
    loss = LOSSES["squares"]
    assert_equals_oracle(name, torch.float64, 1, "norm", 0.3, loss)
    assert_equals_oracle(name, torch.float32, 1, "automatic", 1.0, loss)


@pytest.mark.parametrize("name", LAYERS)
def test_an_empty_batch_gives_zeros(name):
    model, batch = model_of(name), batch_of(name, 0)
    found = clipped_gradient_sum(model, LOSSES["hinge"], batch, clip=1.0)
    size = sum(p.numel() for p in model.parameters())
    assert torch.equal(found.total, torch.zeros(size, dtype=torch.float64))
    assert found.losses.shape == (0,)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("name", [n for n in LAYERS if n.startswith(("conv", "lin"))])
def test_gradients_that_are_kept_or_formed_again_agree(name, keeps, monkeypatch):
    """Both ways are right for every shape, whichever the memory would choose."""
    monkeypatch.setattr(strategy, "_KEPT_NUMBERS", 1 << 25 if keeps else 0)
    monkeypatch.setattr(grads, "BLOCK", 1000)
    monkeypatch.setattr(grads, "_COPIED_NUMBERS", 1000)
    loss = LOSSES["cross_entropy"]
    assert_equals_oracle(name, torch.float64, 7, "norm", 0.3, loss)
    assert_equals_oracle(name, torch.float32, 7, "norm", 0.3, loss)


@given(
    name=st.sampled_from(sorted(LAYERS)),
    loss=st.sampled_from(sorted(LOSSES)),
    clipping=st.sampled_from(["norm", "automatic"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    examples=st.sampled_from([0, 1, 7]),
    log_clip=st.floats(-4, 4),
    log_scale=st.floats(-3, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150)
def test_the_sum_is_never_longer_than_clip_times_batch(
    name, loss, clipping, dtype, examples, log_clip, log_scale, seed
):
    model = model_of(name, dtype, seed)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(10**log_scale)
    batch, clip = batch_of(name, examples, dtype, seed), 10**log_clip
    found = clipped_gradient_sum(
        model, LOSSES[loss], batch, clip=clip, clipping=clipping
    )
    assert found.total.norm().item() <= clip * examples * (1 + SLACK)


def test_examples_that_agree_reach_clip_times_batch():
    """The bound is sharp, so the property above can fail."""
    model = nn.Linear(3, 1, bias=False)
    batch = torch.ones(7, 3), torch.zeros(7)
    total, *_ = clipped_gradient_sum(model, lambda s, _: s[:, 0], batch, clip=0.5)
    assert total.norm().item() == pytest.approx(0.5 * 7, rel=1e-5)


def test_terms_that_cancel_do_not_lose_the_clip():
    """A ghost norm that is found too small does not decide."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)
    x = torch.randn(1, 24, 64)
    inputs = torch.cat((x, x + 1e-3 * torch.randn_like(x)), dim=1) * 100
    signs = torch.cat((torch.ones(24), -torch.ones(24)))[None, :, None]

    def loss(output, _):
        return (output * signs).sum((1, 2))

    batch = inputs, torch.zeros(1)
    total, *_ = clipped_gradient_sum(model, loss, batch, clip=1.0)
    assert 0.5 < total.norm().item() <= 1 + SLACK
