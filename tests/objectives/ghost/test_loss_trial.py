# SPDX-License-Identifier: Apache-2.0
"""A loss that mixes examples is refused, and no other is."""

from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from armijo.errors import UnsupportedModule
from armijo.objectives.module import ModuleObjective

X = torch.zeros(2, 4)
CLASSES, NUMBERS, VECTORS = torch.zeros(2).long(), torch.zeros(2), torch.zeros(2, 3)
Pair = namedtuple("Pair", ["mean", "width"])


def cross_entropy(scores, target):
    return functional.cross_entropy(scores, target, reduction="none")


class Shaped(nn.Module):
    """A linear layer whose output has another form."""

    def __init__(self, shape):
        super().__init__()
        self.layer, self.shape = nn.Linear(4, 2), shape

    def forward(self, x):
        return self.shape(*self.layer(x).exp().T)


def model(width=3, *more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), *more)


def indifferent():
    """Return a module whose outputs are all zeros, as a head may be at first."""
    layer = nn.Linear(4, 3)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def contrast(scores, target):
    return cross_entropy(scores @ target.T * 10, torch.arange(len(scores)))


def hard_ones(scores, target):
    losses = cross_entropy(scores, target)
    return losses * (losses >= losses.detach().median())


MIXING = {
    "contrast": (model, contrast, VECTORS),
    "contrast of equal outputs": (indifferent, contrast, VECTORS),
    "mean taken off": (
        lambda: model(1),
        lambda s, t: (s[:, 0] - s.mean().detach() - t) ** 2,
        NUMBERS,
    ),
    "a small mean taken off": (
        lambda: model(1),
        lambda s, t: 1e-8 * (s[:, 0] - s.mean().detach() - t) ** 2,
        NUMBERS,
    ),
    "mean in every place": (
        model,
        lambda s, t: cross_entropy(s, t).mean().expand(len(s)),
        CLASSES,
    ),
    "number of examples": (model, lambda s, t: cross_entropy(s, t) / len(s), CLASSES),
    "sum of those before": (model, lambda s, t: cross_entropy(s, t).cumsum(0), CLASSES),
    "place": (
        model,
        lambda s, t: cross_entropy(s, t) * torch.linspace(1, 2, len(s)),
        CLASSES,
    ),
    "small penalty": (
        model,
        lambda s, t: cross_entropy(s, t) + 1e-4 * s.square().mean(),
        CLASSES,
    ),
    "hard examples": (model, hard_ones, CLASSES),
    "frequency of the class": (
        model,
        lambda s, t: cross_entropy(s, t) / torch.bincount(t, minlength=3)[t],
        CLASSES,
    ),
    "targets": (
        lambda: model(1),
        lambda s, t: (s[:, 0] - t + t.mean()) ** 2,
        NUMBERS,
    ),
    "same class": (
        model,
        lambda s, t: (s @ s.T * (t[:, None] == t[None])).sum(1),
        CLASSES,
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_loss_that_mixes_examples_is_refused(name):
    make, loss, targets = MIXING[name]
    with pytest.raises(UnsupportedModule, match="loss mixes examples"):
        ModuleObjective(make(), loss).check(X, targets)


def per_token(scores, target):
    losses = functional.cross_entropy(
        scores.unflatten(1, (3, 2)), target, reduction="none", ignore_index=0
    )
    return losses.sum(1) / (target != 0).sum(1)  # no number where all are ignored


def gathered(scores, target):
    example, place = torch.nonzero(target >= 0, as_tuple=True)
    losses = scores[example, place] ** 2
    return losses.new_zeros(len(target)).index_add(0, example, losses)


SEPARATE = {
    "cross entropy": (model, cross_entropy, CLASSES),
    "class weights": (
        model,
        nn.CrossEntropyLoss(torch.arange(3.0), reduction="none", label_smoothing=0.1),
        CLASSES,
    ),
    "soft targets": (model, cross_entropy, VECTORS),
    "one class": (lambda: model(1), cross_entropy, CLASSES),
    "probabilities": (
        lambda: model(1, nn.Sigmoid()),
        lambda s, t: functional.binary_cross_entropy(s[:, 0], t, reduction="none"),
        NUMBERS,
    ),
    "squeezed": (
        lambda: model(1, nn.Sigmoid()),
        lambda s, t: functional.binary_cross_entropy(s.squeeze(), t, reduction="none"),
        NUMBERS,
    ),
    "log probabilities": (
        lambda: model(3, nn.LogSoftmax(1)),
        nn.NLLLoss(reduction="none"),
        CLASSES,
    ),
    "squares": (model, lambda s, t: ((s - t) ** 2).sum(1), VECTORS),
    "hinge": (
        lambda: model(1),
        lambda s, t: torch.relu(1 - (2 * t - 1) * s[:, 0]),
        CLASSES,
    ),
    "dict": (
        lambda: Shaped(lambda a, b: {"mean": a, "width": b}),
        lambda o, t: functional.gaussian_nll_loss(
            o["mean"], t, o["width"], reduction="none"
        ),
        NUMBERS,
    ),
    "named tuple": (
        lambda: Shaped(Pair),
        lambda o, t: ((o.mean - t) / o.width) ** 2,
        NUMBERS,
    ),
    "several targets": (
        model,
        lambda s, t: cross_entropy(s, t[0]) * t[1],
        (CLASSES, NUMBERS),
    ),
    "random": (
        model,
        lambda s, t: cross_entropy(s + torch.randn_like(s), t),
        CLASSES,
    ),
    "yes and no": (
        lambda: model(1),
        lambda s, t: torch.where(t, s[:, 0] ** 2, s[:, 0].abs()),
        CLASSES.bool(),
    ),
    "small": (model, lambda s, t: 1e-9 * cross_entropy(s, t), CLASSES),
    "logarithm of a target": (
        lambda: model(1),
        lambda s, t: (s[:, 0] - t.log()) ** 2,
        NUMBERS,
    ),
    "tokens that are ignored": (lambda: model(6), per_token, torch.zeros(2, 2).long()),
    "gathered": (model, gathered, torch.zeros(2, 3).long()),
}


@pytest.mark.parametrize("name", SEPARATE)
def test_a_loss_of_single_examples_is_taken(name):
    make, loss, targets = SEPARATE[name]
    ModuleObjective(make(), loss).check(X, targets)


def test_where_examples_go_one_by_one_the_loss_sees_one_only():
    seen = []

    def noted(scores, target):
        seen.append(len(scores))
        return contrast(scores, target)

    ModuleObjective(model(3, nn.PReLU()), noted).check(X, VECTORS)
    assert set(seen) == {1}


def test_a_loss_that_cannot_be_tried_is_refused_with_what_it_said():
    def two_only(scores, target):
        if len(scores) != 2:
            raise ArithmeticError("two, please")
        return cross_entropy(scores, target)

    with pytest.raises(UnsupportedModule, match=r"could not be tried.*two, please"):
        ModuleObjective(model(), two_only).check(X, CLASSES)


def test_a_loss_that_is_never_a_number_is_refused():
    with pytest.raises(UnsupportedModule, match=r"could not be tried.*not finite"):
        ModuleObjective(model(), lambda s, t: s.sum(1) / 0).check(X, CLASSES)


def test_a_loss_that_keeps_something_of_its_examples_is_refused():
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, scores, target):
            losses = cross_entropy(scores, target)
            self.mean.lerp_(losses.detach().mean(), 0.1)
            return losses

    loss = Running()
    with pytest.raises(UnsupportedModule, match="writes to the buffers mean"):
        ModuleObjective(model(), loss).check(X, CLASSES)
    assert loss.mean == 0


def test_the_trial_leaves_the_global_generator_alone():
    objective = ModuleObjective(model(), cross_entropy)
    before = torch.get_rng_state()
    objective.check(X, CLASSES)
    assert torch.equal(torch.get_rng_state(), before)
