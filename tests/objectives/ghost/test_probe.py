# SPDX-License-Identifier: Apache-2.0
"""Modules and losses that mix examples are refused, and no others are."""

from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from armijo.data.query import Rows
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
    "targets": (lambda: model(1), lambda s, t: (s[:, 0] - t + t.mean()) ** 2, NUMBERS),
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
    "random": (model, lambda s, t: cross_entropy(s + torch.randn_like(s), t), CLASSES),
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


class Changed(nn.Module):
    """A function of the whole batch before a small network."""

    def __init__(self, change, width=4, table=None):
        super().__init__()
        self.change = change
        self.table = None if table is None else nn.Embedding(table, width)
        self.layers = nn.Sequential(nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, *inputs):
        x = self.change(*inputs)
        return self.layers(x if self.table is None else self.table(x).mean(1))


def longest(ids):
    return ids[:, : max(int((ids != 0).sum(1).max()), 1)]


def frozen(layer):
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            found = self.layer(x)
            found = found[0] if isinstance(found, tuple) else found
            return self.head(found.mean(1))

    return Frozen()


FLOATS, IMAGES = (torch.zeros(2, 4),), (torch.zeros(2, 1, 2, 2),)
BYTES = (torch.zeros(2, 4, dtype=torch.uint8),)
TOKENS, STEPS = (torch.zeros(2, 6).long(),), (torch.zeros(2, 3, 4),)
MIXED = {
    "largest": (FLOATS, lambda x: x / x.max()),
    "ends": (FLOATS, lambda x: (x - x.min()) / (x.max() - x.min())),
    "standardized": (FLOATS, lambda x: (x - x.mean()) / x.std()),
    "sum of those before": (FLOATS, lambda x: x.cumsum(0)),
    "sorted": (FLOATS, lambda x: x.sort(0).values),
    "255": (FLOATS, lambda x: x / 255 if x.max() > 1 else x),
    "below zero": (FLOATS, lambda x: 0.5 * x if (x < 0).any() else x),
    "far below": (FLOATS, lambda x: 0 * x if (x < -5e5).any() else x),
    "imputed": (FLOATS, lambda x: torch.where(x == -1, x[x != -1].mean(), x)),
    "small mean": (FLOATS, lambda x: 20 * x if x.mean() < 0.2 else x),
    "bytes by the largest": (BYTES, lambda x: x.float() / x.max().clamp(min=1)),
    "bytes or not": (BYTES, lambda x: x.float() / 255 if x.max() > 15 else x.float()),
    "second input": (
        (torch.zeros(2, 4), torch.zeros(2).long()),
        lambda x, n: x * (torch.arange(4) < n.max()),
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_a_module_that_mixes_examples_is_refused_by_name(name):
    inputs, change = MIXED[name]
    one = ModuleObjective(Changed(change), cross_entropy)
    with pytest.raises(UnsupportedModule, match=r"mixes examples.*isolate=True"):
        one.check(inputs[0] if len(inputs) == 1 else inputs, CLASSES)


def test_more_modules_that_mix_examples():
    tokens = Changed(longest, table=9)
    with pytest.raises(UnsupportedModule, match="mixes examples"):
        ModuleObjective(tokens, cross_entropy).check(*TOKENS, CLASSES)
    for layer in (nn.LSTM(4, 4), nn.TransformerEncoderLayer(4, 2, 5, dropout=0)):
        one = ModuleObjective(frozen(layer), cross_entropy)
        with pytest.raises(UnsupportedModule, match="mixes examples"):
            one.check(*STEPS, CLASSES)


def test_examples_that_raise_only_together_are_mixed_ones():
    def refuses(x):
        if x.abs().sum() > 1000:
            raise ValueError(f"sum {x.sum()}")
        return x

    one = ModuleObjective(Changed(refuses), cross_entropy)
    one.check(*FLOATS, CLASSES)  # every filling that raises, raises alone as well
    rows = Rows(torch.full((512, 4), 1.0), torch.zeros(512).long())
    query = one.gradient_sum(one.start(), clip=1.0)
    assert not query.contributions(rows).integers(40).any()  # and tells nothing


MIXED_LOSSES = {
    "skipped": lambda s, t: cross_entropy(s, t) * (cross_entropy(s, t) < 50).all(),
    "numbers as bytes": lambda s, t: (s[:, 0] - (t / 255 if t.max() > 1 else t)) ** 2,
    "by the largest": lambda s, t: (s[:, 0] - t / t.max().clamp(min=1)) ** 2,
    "classes from one": lambda s, t: cross_entropy(
        s, t - 1 if t.max() >= 3 and t.min() >= 1 else t.clamp(max=2)
    ),
}


@pytest.mark.parametrize("name", MIXED_LOSSES)
def test_a_loss_that_mixes_targets_or_skips_a_batch_is_refused(name):
    targets = CLASSES if name in ("skipped", "classes from one") else NUMBERS
    one = ModuleObjective(model(), MIXED_LOSSES[name])
    with pytest.raises(UnsupportedModule, match="loss mixes examples"):
        one.check(X, targets)


SEPARATE_MODULES = {
    "sequence": (STEPS, lambda: frozen(nn.LSTM(4, 4, batch_first=True))),
    "normalized by itself": (
        FLOATS,
        lambda: Changed(lambda x: x / (x.norm(dim=1, keepdim=True) + 1)),
    ),
    "bytes": (BYTES, lambda: Changed(lambda x: x.float() / 255)),
    "tokens": (TOKENS, lambda: Changed(lambda ids: ids, table=9)),
    "only fractions": (
        FLOATS,
        lambda: Changed(lambda x: torch.special.logit(x.clamp(0.01, 0.99))),
    ),
}


@pytest.mark.parametrize("name", SEPARATE_MODULES)
def test_a_module_of_single_examples_is_taken(name):
    (inputs,), make = SEPARATE_MODULES[name]
    one = ModuleObjective(make(), cross_entropy)
    one.check(inputs, CLASSES)
    assert "tested, " in one.row_wise_test(inputs, CLASSES)


def test_a_kernel_that_depends_on_other_rows_is_named():
    layer = nn.Linear(4, 4)
    one = ModuleObjective(nn.Sequential(layer, nn.Linear(4, 3)), cross_entropy)
    one.check(X, CLASSES)
    plain = nn.functional.linear

    def leaking(value, weight, bias=None):
        found = plain(value, weight, bias)
        if len(value) > 16:
            found = found + 1e-7 * value[value.isfinite()].mean()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "linear", leaking)
        with pytest.raises(UnsupportedModule, match=r"layer 1 \(Linear\).*batch of"):
            one.row_wise_test(X, CLASSES)
    assert "tested" in one.row_wise_test(X, CLASSES)
