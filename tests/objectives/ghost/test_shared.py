# SPDX-License-Identifier: Apache-2.0
"""Parameters that are used more than once, tied, frozen, or not used at all."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from armijo.data.certified import shares
from armijo.errors import UnsupportedModule
from armijo.objectives.ghost import clipped_gradient_sum, grads
from armijo.objectives.ghost.grads import EmbeddingGrad, OuterProduct, Sum, merged
from armijo.objectives.ghost.strategy import strategy_for
from tests.objectives.ghost.oracle import assert_sums, cross_entropy


def assert_exact(module, batch, *, captured=True, clips=(0.05, 1e6)):
    module.double()
    inputs = batch[0] if isinstance(batch[0], tuple) else (batch[0],)
    for clip in clips:
        assert_sums(module, cross_entropy, batch, clip)
    assert strategy_for(module, inputs).captured is captured


def reals(*shape):
    return torch.randn(7, *shape, dtype=torch.float64)


def targets():
    return torch.arange(7) % 3


class Twice(nn.Module):
    """One layer on two inputs and on its own output."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        y = torch.tanh(self.layer(x))
        return self.head((self.layer(y) + y * self.layer(0.5 * x)).flatten(1))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 4), (4,)),
        (nn.Linear(4, 4), (5, 4)),
        (nn.Conv2d(3, 3, 3, padding=1), (3, 4, 4)),
        (nn.Conv1d(3, 3, 3, padding=1), (3, 6)),
        (nn.LayerNorm(4), (2, 4)),
        (nn.GroupNorm(2, 4), (4, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_layer_used_three_times(layer, shape):
    width = torch.Size(shape).numel()
    assert_exact(Twice(layer, width), (reals(*shape), targets()))


def test_a_layer_used_at_every_step_of_a_recurrence():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.step, self.head = nn.Linear(7, 4), nn.Linear(4, 3)

        def forward(self, x):
            state = x.new_zeros(len(x), 4)
            for t in range(x.shape[1]):
                state = torch.tanh(self.step(torch.cat((state, x[:, t]), dim=1)))
            return self.head(state)

    assert_exact(Recurrent(), (reals(6, 3), targets()))


class Language(nn.Module):
    """An embedding whose table also decodes."""

    def __init__(self, padding=None):
        super().__init__()
        self.embed = nn.Embedding(6, 5, padding_idx=padding)
        self.mix = nn.Linear(5, 5)
        self.decode = nn.Linear(5, 6, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, ids):
        return self.decode(torch.tanh(self.mix(self.embed(ids)))).sum(1)


@pytest.mark.parametrize("padding", [None, 1])
def test_an_embedding_tied_to_its_decoder(padding):
    ids = torch.randint(6, (7, 9), generator=torch.Generator().manual_seed(0))
    model = Language(padding)
    assert_exact(model, (ids, targets()))
    assert sum(p.numel() for p in model.parameters()) == 6 * 5 + 30


def test_an_embedding_used_twice():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(6, 3), nn.Linear(3, 3)

        def forward(self, first, second):
            both = self.embed(first).sum(1) * self.embed(second).mean(1)
            return self.head(both)

    generator = torch.Generator().manual_seed(0)
    ids = tuple(torch.randint(6, (7, n), generator=generator) for n in (4, 5))
    assert_exact(Pair(), (ids, targets()))


@pytest.mark.parametrize("other", [{"stride": 2}, {"dilation": 2}, {"groups": 2}])
def test_convolutions_that_share_a_kernel_but_not_their_geometry(other):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(2, 4, 3, padding=1)
            self.second = nn.Conv2d(2 * other.get("groups", 1), 4, 3, **other)
            self.second.weight = self.first.weight
            self.head = nn.LazyLinear(3)

        def forward(self, x):
            y = torch.cat((x, x), dim=1) if "groups" in other else x
            parts = (self.first(x).flatten(1), self.second(y).flatten(1))
            return self.head(torch.tanh(torch.cat(parts, dim=1)))

    model = Two()
    model(torch.zeros(1, 2, 7, 7))
    assert_exact(model, (reals(2, 7, 7), targets()))


def test_several_uses_in_blocks_agree(monkeypatch):
    monkeypatch.setattr(grads, "BLOCK", 100)
    layer = nn.Conv2d(3, 3, 3, padding=1)
    assert_exact(Twice(layer, 48), (reals(3, 4, 4), targets()))


@pytest.mark.parametrize("forms", [True, False])
def test_uses_of_different_kinds_are_one_gradient(forms, monkeypatch):
    """Formed, norms are those of the sum; else they are at most what is allowed."""
    monkeypatch.setattr(grads, "_FORM_SUMS_UP_TO", 1000 if forms else 0)
    generator = torch.Generator().manual_seed(0)
    outer = OuterProduct(reals(3, 6), reals(3, 4))
    places = torch.randint(6, (7, 5), generator=generator)
    use = merged([outer, EmbeddingGrad(places, reals(5, 4), 6)])
    assert isinstance(use, Sum) and use.examples == 7
    single = use.formed(slice(None))
    squares, exact = use.squared_norms(True), single.square().sum((1, 2))
    assert torch.allclose(squares, exact) if forms else (squares >= exact).all()
    (share,) = shares(squares[None], torch.ones(7).double(), 1e3, 40)
    out = torch.zeros(6, 4, dtype=torch.float64)
    use.add_integers(share, out)
    assert torch.allclose(out * 1e3 * 2.0**-40, single.sum(0), rtol=0, atol=2e-3)


def frozen_backbone():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(64, 5),
        nn.ReLU(inplace=True),
        nn.Linear(5, 3),
    )


def test_a_frozen_backbone_is_left_alone():
    model = frozen_backbone()
    for p in model[:3].parameters():
        p.requires_grad_(False)
    model[1].eval()
    seen = []
    model[0].register_forward_hook(lambda *call: seen.append(call[2].requires_grad))
    assert_exact(model, (reals(3, 6, 6), targets()))
    assert seen and not any(seen)


def test_layers_frozen_in_the_middle_and_a_frozen_bias():
    model = nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 3)
    )
    for p in (*model[2].parameters(), model[4].bias, model[3].weight):
        p.requires_grad_(False)
    assert_exact(model, (reals(4), targets()))


def test_a_layer_that_is_not_used_adds_zeros():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.idle, self.used = nn.Linear(4, 2), nn.Linear(4, 3)

        def forward(self, x):
            self.idle(x)
            return self.used(x)

    model = Idle()
    assert_exact(model, (reals(4), targets()))
    batch = reals(4), targets()
    total, *_ = clipped_gradient_sum(model, cross_entropy, batch, clip=1.0)
    assert not total[:10].any() and total[10:].any()


class Outside(nn.Module):
    """A weight that is used in its layer and by itself."""

    def __init__(self, also_inside):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.also_inside = also_inside

    def forward(self, x):
        y = functional.linear(x, self.layer.weight)
        if self.also_inside:
            y = y * self.layer(x)
        return self.head(y)


@pytest.mark.parametrize("also_inside", [True, False])
def test_a_weight_used_outside_of_its_layer_is_noticed(also_inside):
    assert_exact(Outside(also_inside), (reals(4), targets()), captured=False)


def test_a_use_outside_that_begins_after_the_trial_is_noticed():
    class Later(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.late = nn.Linear(4, 3), False

        def forward(self, x):
            y = self.layer(x)
            return y + functional.linear(x, self.layer.weight) if self.late else y

    model, batch = Later(), (reals(4), targets())
    assert_exact(model, batch)
    model.late = True
    with pytest.raises(UnsupportedModule, match="outside of its layer"):
        clipped_gradient_sum(model, cross_entropy, batch, clip=1.0)


def test_activations_changed_in_place():
    model = nn.Sequential(
        nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 5), nn.SiLU(inplace=True)
    )
    assert_exact(model, (reals(2, 4), targets() % 2))


def test_parts_of_an_output_changed_in_place():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x):
            y = self.first(x)
            y[:, 0] *= 2
            z = self.second(y)
            z[..., 1] = y.sum(-1)
            return z

    assert_exact(Cut(), (reals(4), targets()))
    assert_exact(Cut(), (reals(2, 4), targets()))


def test_checkpointed_layers():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(checkpoint(self.body, x, use_reentrant=False))

    assert_exact(Checkpointed(), (reals(4), targets()))
