# SPDX-License-Identifier: Apache-2.0
"""No pass leaves anything of an example in a buffer of the module."""

import pytest
import torch
from torch import nn

from armijo.data.query import Rows
from armijo.errors import UnsupportedModule
from armijo.objectives.ghost import clipped_gradient_sum, flat_parameters, losses_at
from armijo.objectives.ghost.strategy import strategy_for
from armijo.objectives.module import ModuleObjective
from tests.objectives.ghost.oracle import cross_entropy

X, Y = torch.rand(5, 4), torch.zeros(5, dtype=torch.long)


class Keeper(nn.Module):
    """Keeps the mean of its inputs in some way, in train mode."""

    def __init__(self, write, least=-torch.inf):
        super().__init__()
        self.write, self.least = write, least
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("empty", None)

    def forward(self, x):
        # Asking for a value takes the layer out of vmap, where nothing can be kept.
        if self.training and bool(x.detach().max() > self.least):
            self.write(self, x.mean(0))
        return x


def in_place(layer, mean):
    layer.mean.mul_(0.9).add_(mean.detach(), alpha=0.1)


def in_a_graph(layer, mean):
    layer.mean.add_(mean * torch.ones(4, requires_grad=True))


def through_data(layer, mean):
    layer.mean.data.copy_(mean.detach())


def anew(layer, mean):
    layer.mean = 0.9 * layer.mean + 0.1 * mean.detach()


def grown(layer, mean):
    layer.mean = mean.detach().repeat(2)[:4].clone()
    layer.mean.resize_(2)


def filled(layer, mean):
    layer.empty = mean.detach()


def registered(layer, mean):
    layer.register_buffer("other", mean.detach())


WRITERS = [in_place, in_a_graph, through_data, anew, filled, registered]
every_writer = pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
every_way = pytest.mark.parametrize("recorded", [True, False])


def module_of(layer, recorded):
    rest = [] if recorded else [nn.PReLU()]
    return nn.Sequential(layer, nn.Linear(4, 3), *rest)


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@every_way
@every_writer
def test_a_layer_that_writes_is_refused_and_put_back(write, recorded):
    module = module_of(Keeper(write), recorded)
    before = state(module)
    name = {filled: "0.empty", registered: "0.other"}.get(write, "0.mean")
    with pytest.raises(UnsupportedModule, match=f"buffers {name}, .*eval mode"):
        clipped_gradient_sum(module, cross_entropy, (X, Y), clip=1.0)
    assert_same(module.state_dict(), before)
    assert module[0].mean.grad_fn is None


@every_way
def test_the_same_layer_in_eval_mode_is_taken(recorded):
    module = module_of(Keeper(in_place).eval(), recorded)
    clipped_gradient_sum(module, cross_entropy, (X, Y), clip=1.0)
    assert strategy_for(module, (X,)).captured == recorded


@pytest.mark.filterwarnings("ignore")
def test_an_observer_is_refused():
    module = nn.Sequential(torch.ao.quantization.MinMaxObserver(), nn.Linear(4, 3))
    with pytest.raises(UnsupportedModule, match=r"0\.min_val, 0\.max_val"):
        clipped_gradient_sum(module, cross_entropy, (X, Y), clip=1.0)
    assert module[0].max_val == -torch.inf


@pytest.mark.parametrize("examples", [1, 2])
def test_a_layer_that_writes_before_it_raises_is_refused(examples):
    """Also one that takes single examples only, which go one by one."""

    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("largest", torch.zeros(()))

        def forward(self, x):
            if len(x) != examples:
                raise ArithmeticError("asked for")
            self.largest.copy_(x.detach().max())
            raise ArithmeticError("asked for")

    module = module_of(Writes(), True)
    with pytest.raises(UnsupportedModule, match=r"0\.largest"):
        strategy_for(module, (X,))
    assert module[0].largest == 0


def private_passes(module):
    """Make every kind of pass over rows that are unlike all that is made up."""
    objective = ModuleObjective(module, cross_entropy)
    objective._probed = True  # the probe has such rows as well, and would refuse
    w, rows = objective.start(), Rows(1e4 * X, Y)
    objective.gradient_sum(w, clip=1.0).contributions(rows).integers(40)
    drop = objective.loss_drop_sum(w, w, 0.1, form="difference", clip=1.0)
    drop.contributions(rows)
    losses_at(module, cross_entropy, (1e4 * X, Y), flat_parameters(module))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@every_way
@pytest.mark.parametrize("write", [*WRITERS, grown], ids=lambda w: w.__name__)
def test_what_a_trial_did_not_show_is_put_back_after_each_pass(write, recorded):
    module = module_of(Keeper(write, least=100.0), recorded)
    before = state(module)
    private_passes(module)
    assert strategy_for(module, (X,)).captured == recorded
    assert_same(module.state_dict(), before)
    assert module[0].mean.grad_fn is None


def test_a_pass_that_raises_leaves_nothing_behind():
    def fails(layer, mean):
        in_place(layer, mean)
        raise ArithmeticError("asked for")

    module = module_of(Keeper(fails, least=100.0), True)
    with pytest.raises(ArithmeticError):
        clipped_gradient_sum(module, cross_entropy, (1e4 * X, Y), clip=1.0)
    assert not module[0].mean.any()


@pytest.mark.parametrize(
    "buffer",
    [
        torch.full((4,), torch.nan),
        torch.ones(1).expand(4),
        torch.eye(4).to_sparse(),
        torch.ones(4, dtype=torch.bool),
    ],
    ids=["no number", "expanded", "sparse", "mask"],
)
def test_buffers_that_nobody_writes_stay_the_same_tensors(buffer):
    class Holder(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("held", buffer)

    module = nn.Sequential(nn.Linear(4, 4), Holder())
    clipped_gradient_sum(module, cross_entropy, (X, Y), clip=1.0)
    assert module[1].held is buffer


def test_a_buffer_of_two_layers_stays_one():
    layers = [Keeper(in_place, least=100.0) for _ in range(2)]
    layers[1].mean = layers[0].mean
    module = nn.Sequential(*layers, nn.Linear(4, 3))
    private_passes(module)
    assert layers[0].mean is layers[1].mean and not layers[0].mean.any()
