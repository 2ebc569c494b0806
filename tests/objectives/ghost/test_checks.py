# SPDX-License-Identifier: Apache-2.0
"""What is refused, with a message that helps, and what is left as it was."""

import gc
import weakref

import pytest
import torch
from torch import nn

from armijo.data.query import Rows
from armijo.errors import UnsupportedModule
from armijo.objectives.ghost import Batch, clipped_gradient_sum, losses_at
from armijo.objectives.ghost.params import flat_parameters
from armijo.objectives.module import ModuleObjective
from tests.objectives.ghost.oracle import cross_entropy, oracle_sum, relative_error

X, Y = torch.ones(4, 3), torch.zeros(4, dtype=torch.long)


def small():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def prelu():
    return nn.Sequential(nn.Linear(3, 2), nn.PReLU())


def summed(module, loss=cross_entropy, batch=(X, Y), **settings):
    return clipped_gradient_sum(module, loss, batch, **{"clip": 1.0, **settings})


@pytest.mark.parametrize("make", [small, prelu])
@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda s, y: cross_entropy(s, y)[:, None], r"\(\d, 1\)"),
        (lambda s, y: cross_entropy(s, y).mean(), r"\(\)"),
        (lambda s, y: s, r"\(\d, 2\)"),
        (lambda s, y: 1.0, "float"),
    ],
    ids=["column", "mean", "scores", "number"],
)
def test_a_loss_that_is_not_one_per_example(make, loss, found):
    module = make()
    with pytest.raises(ValueError, match=f"one loss for each example.*{found}"):
        summed(module, loss)
    with pytest.raises(ValueError, match="reduction='none'"):
        losses_at(module, loss, (X, Y), flat_parameters(module))


def test_a_loss_of_integers_or_of_nothing():
    with pytest.raises(ValueError, match="floating-point"):
        summed(small(), lambda s, y: y)
    with pytest.raises(ValueError, match="depend on the trainable parameters"):
        summed(small(), lambda s, y: s.detach().sum(1))


def test_one_example_does_not_make_a_mean_pass():
    with pytest.raises(ValueError, match="one loss for each example"):
        summed(small(), lambda s, y: cross_entropy(s, y).mean(), (X[:1], Y[:1]))


@pytest.mark.parametrize("module", [nn.ReLU(), small().requires_grad_(False)])
def test_a_module_without_parameters_to_train(module):
    with pytest.raises(ValueError, match="parameters to train"):
        summed(module)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_types_of_numbers(dtype):
    with pytest.raises(ValueError, match=f"float32 or all in float64.*{dtype}"):
        summed(small().to(dtype))


def test_mixed_types_of_numbers():
    module = small()
    module[0].double()
    with pytest.raises(ValueError, match=r"float32 on cpu, torch\.float64 on cpu"):
        summed(module)


@pytest.mark.parametrize(
    ("layer", "advice"),
    [
        (nn.BatchNorm1d(4), "GroupNorm or LayerNorm"),
        (nn.SyncBatchNorm(4), "GroupNorm or LayerNorm"),
        (nn.BatchNorm1d(4, track_running_stats=False).eval(), "GroupNorm"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "track_running_stats=False"),
        (nn.Softmax(dim=0), "another axis"),
        (nn.Embedding(4, 4, scale_grad_by_freq=True), "scale_grad_by_freq=False"),
        (nn.Embedding(4, 4, max_norm=1.0), "max_norm=None"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_layers_that_mix_examples_are_named(layer, advice):
    inner = nn.Sequential(nn.Linear(4, 4), layer)
    module = nn.Sequential(nn.Linear(3, 4), nn.ModuleDict({"body": inner}))
    name = f"1.body.1 is a {type(layer).__name__}"
    with pytest.raises(UnsupportedModule, match=f"{name}.*{advice}"):
        summed(module)
    with pytest.raises(UnsupportedModule, match=name):
        losses_at(module, cross_entropy, (X, Y), flat_parameters(module))


def test_a_function_that_mixes_examples():
    class Centered(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x - x.mean(0))

    objective = ModuleObjective(Centered(), cross_entropy)
    query = objective.gradient_sum(objective.start(), clip=1.0)
    with pytest.raises(UnsupportedModule, match="mixes examples: the input of layer"):
        query.contributions(Rows(X, Y)).integers(40)


def test_tensors_that_do_not_belong_together():
    with pytest.raises(ValueError, match=r"first axis.*\(4, 3\), \(3,\)"):
        summed(small(), batch=Batch(X, Y[:3]))


@pytest.mark.parametrize("clip", [0.0, -1.0, float("inf"), float("nan")])
def test_clips_that_are_not_positive_numbers(clip):
    with pytest.raises(ValueError, match="clip"):
        summed(small(), clip=clip)


def test_an_unknown_way_of_clipping():
    with pytest.raises(ValueError, match="norm, automatic"):
        summed(small(), clipping="value")


class Changed(nn.Module):
    """A layer whose input is overwritten after it was used."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        x = x.clone()
        y = self.layer(x)
        x += 1
        return x * y


def test_an_input_changed_after_its_use_is_refused_by_torch():
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        summed(Changed())


def test_an_input_changed_where_it_does_not_matter():
    module = Changed()
    module.layer.weight.requires_grad_(False)
    found = summed(module)
    expected, _ = oracle_sum(module, cross_entropy, (X, Y), 1.0)
    assert relative_error(found.total, expected) < 1e-5


class Failing(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.fail = False

    def forward(self, x):
        y = self.layer(x)
        if self.fail:
            raise ArithmeticError("asked for")
        return y


@pytest.mark.parametrize("make", [small, prelu])
@pytest.mark.parametrize("fail", [False, True])
def test_a_module_is_left_as_it_was(make, fail):
    module = Failing(make())
    module.layer[0].bias.requires_grad_(False)
    summed(module)
    module.fail = fail
    before = flat_parameters(module)
    addresses = [p.data_ptr() for p in module.parameters()]
    flags = [p.requires_grad for p in module.parameters()]
    for call in (
        lambda: summed(module),
        lambda: losses_at(module, cross_entropy, (X, Y), before + 1),
    ):
        if fail:
            with pytest.raises(ArithmeticError, match="asked for"):
                call()
        else:
            call()
    assert [p.data_ptr() for p in module.parameters()] == addresses
    assert [p.requires_grad for p in module.parameters()] == flags
    assert all(p.grad is None for p in module.parameters())
    assert torch.equal(flat_parameters(module), before)
    assert all("forward" not in layer.__dict__ for layer in module.modules())


def test_nothing_in_the_result_hangs_on_a_graph():
    total, losses, *_ = summed(small())
    assert not total.requires_grad and not losses.requires_grad


def test_gradients_are_computed_under_no_grad():
    module = small()
    expected = summed(module)
    with torch.no_grad():
        found = summed(module)
    assert torch.equal(found.total, expected.total)


@pytest.mark.parametrize("make", [small, lambda: nn.Linear(3, 2)])
def test_a_module_that_was_used_can_be_freed(make):
    module = make()
    summed(module)
    alive = weakref.ref(module)
    del module
    gc.collect()
    assert alive() is None


def test_freezing_a_layer_later_is_noticed():
    module = small()
    assert summed(module).total.shape == (26,)
    module[0].requires_grad_(False)
    assert summed(module).total.shape == (10,)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_an_example_that_is_not_finite_is_left_out(value):
    module = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 3)
    )
    x = torch.randn(5, 1, 3, 3)
    y = torch.arange(5) % 3
    x[3, 0, 1, 1] = value
    scale = 1.0 if value != 1e30 else 1e30

    def loss(scores, target):
        return scale * cross_entropy(scores, target)

    found = summed(module, loss, (x, y))
    assert torch.isfinite(found.total).all()
    kept = [0, 1, 2, 4] if value != 1e30 else []
    expected = summed(module, loss, (x[kept], y[kept]))
    assert relative_error(found.total, expected.total.double()) < 1e-6


def test_a_loss_that_is_not_finite_leaves_its_example_out():
    module = nn.Linear(3, 1)

    def loss(scores, target):
        return scores[:, 0] + target

    y = torch.tensor([0.0, torch.inf, 0.0, torch.nan])
    found = summed(module, loss, (X, y))
    expected = summed(module, loss, (X[:2], y[::2]))
    assert torch.equal(found.total, expected.total)
