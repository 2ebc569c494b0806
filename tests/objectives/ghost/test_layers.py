# SPDX-License-Identifier: Apache-2.0
"""Every layer, way of clipping and loss against one example at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from armijo import networks
from armijo.data.certified import SLACK, shares
from armijo.errors import UnsupportedModule
from armijo.objectives.ghost import (
    clipped_gradient_sum,
    flat_parameters,
    flat_size,
    grads,
    layers,
    load_parameters,
    losses_at,
    parameters_at,
    strategy,
)
from armijo.objectives.ghost.grads import (
    EmbeddingGrad,
    Materialized,
    OuterProduct,
    Sum,
    merged,
)
from armijo.objectives.ghost.params import every_layer
from armijo.objectives.ghost.strategy import strategy_for
from tests.marks import in_turn
from tests.objectives.ghost.oracle import (
    LAYERS,
    LOSSES,
    TOLERANCE,
    assert_sums,
    batch_of,
    cross_entropy,
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


@pytest.mark.parametrize(
    ("name", "loss"), in_turn([(name,) for name in LAYERS], [*LOSSES])
)
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


@pytest.mark.parametrize("name", ["mlp_1000", "mlp_256", "cnn_small", "cnn_cifar"])
def test_the_paper_networks_are_recorded_exactly(name):
    """Double precision: in single, an activation may flip with the batch size."""
    torch.manual_seed(0)
    model = getattr(networks, name)().double()
    shape = (3, 32, 32) if name == "cnn_cifar" else (1, 28, 28)
    batch = torch.rand(3, *shape, dtype=torch.float64), torch.tensor([1, 4, 9])
    assert_sums(model, cross_entropy, batch, 0.5)
    assert strategy_for(model, batch[:1]).captured


def test_a_rule_that_is_wrong_is_found_by_the_trial(monkeypatch):
    def halved(layer, value, gradient):
        return {"weight": Materialized(0.5 * gradient[:, :, None] * value[:, None])}

    monkeypatch.setitem(layers._RULES, nn.Linear, halved)
    model = nn.Linear(4, 3, bias=False).double()
    batch = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 3
    assert_sums(model, cross_entropy, batch, 0.1)
    plan = strategy_for(model, batch[:1])
    assert not plan.captured and "not the whole" in plan.reason


def test_a_rule_can_be_added(monkeypatch):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, input):
            return input * self.weight

    model = nn.Sequential(Scale(), nn.Tanh(), nn.Linear(4, 3)).double()
    batch = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 3
    assert not strategy_for(model, batch[:1]).captured
    monkeypatch.setattr(layers, "_RULES", dict(layers._RULES))
    layers.register_layer(Scale)(
        lambda layer, value, gradient: {"weight": Materialized(gradient * value)}
    )
    model = nn.Sequential(*model)
    assert_sums(model, cross_entropy, batch, 0.1)
    assert strategy_for(model, batch[:1]).captured


def test_the_reason_names_the_layer():
    model = nn.Sequential(nn.Linear(4, 3), nn.PReLU())
    reason = strategy_for(model, (torch.ones(1, 4),)).reason
    assert reason == "there is no rule for 1, PReLU"


def partly_frozen():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    module[1].requires_grad_(False)
    return module


def test_the_order_is_that_of_parameters_without_the_frozen():
    module = partly_frozen()
    expected = [*module[0].parameters(), *module[2].parameters()]
    flat = flat_parameters(module)
    assert flat_size(module) == flat.numel() == 26
    assert torch.equal(flat, torch.cat([p.detach().reshape(-1) for p in expected]))


def test_load_is_the_inverse_and_copies():
    module, other = partly_frozen(), partly_frozen()
    w = flat_parameters(module)
    load_parameters(other, w)
    assert torch.equal(flat_parameters(other), w)
    kept = w.clone()
    w += 1
    assert torch.equal(flat_parameters(other), kept)


def test_parameters_at_computes_elsewhere_and_comes_back():
    module = nn.Linear(2, 1, bias=False)
    before = flat_parameters(module)
    x = torch.tensor([[1.0, 2.0]])
    with parameters_at(module, torch.tensor([3.0, 4.0])):
        assert module(x).item() == 11.0
    assert torch.equal(flat_parameters(module), before)


def test_a_sum_elsewhere_is_that_of_a_module_moved_there():
    module, moved = partly_frozen(), partly_frozen()
    moved.load_state_dict(module.state_dict())
    before = flat_parameters(module)
    w = before + 0.3
    load_parameters(moved, w)
    batch = torch.rand(5, 3), torch.rand(5)

    def loss(scores, y):
        return (scores.sum(1) - y).square()

    found = clipped_gradient_sum(module, loss, batch, clip=0.5, w=w)
    expected = clipped_gradient_sum(moved, loss, batch, clip=0.5)
    assert torch.equal(found.total, expected.total)
    assert torch.equal(found.losses, expected.losses)
    assert torch.equal(flat_parameters(module), before)
    at_home = clipped_gradient_sum(module, loss, batch, clip=0.5)
    assert not torch.equal(at_home.total, found.total)


def test_every_layer_comes_once_in_the_order_of_modules():
    shared = nn.Linear(2, 2)
    module = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared), nn.Tanh())
    module.register_module("absent", None)
    assert every_layer(module) == list(module.modules())
    assert len(every_layer(module)) == 5


def test_tied_parameters_move_together():
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    w = 2 * torch.eye(2).flatten()
    found = losses_at(
        module, lambda s, y: s.sum(1), (torch.ones(1, 2), torch.ones(1)), w
    )
    assert found.tolist() == [8.0]


@pytest.mark.parametrize(
    "w",
    [torch.zeros(5), torch.zeros(1, 6), torch.zeros(6, dtype=torch.float64)],
    ids=["length", "shape", "type"],
)
def test_a_vector_that_does_not_fit(w):
    module = nn.Linear(2, 2)
    batch = torch.ones(1, 2), torch.ones(1)
    with pytest.raises(ValueError, match=r"vector of 6 numbers, torch\.float32"):
        load_parameters(module, w)
    with (
        pytest.raises(ValueError, match="vector of 6 numbers"),
        parameters_at(module, w),
    ):
        pass
    with pytest.raises(ValueError, match="vector of 6 numbers"):
        losses_at(module, lambda s, y: s.sum(1), batch, w)
    for size in (1, 0):  # a batch without examples is no reason to take anything
        few = torch.ones(size, 2), torch.ones(size)
        with pytest.raises(ValueError, match="vector of 6 numbers"):
            clipped_gradient_sum(module, lambda s, y: s.sum(1), few, clip=1.0, w=w)
