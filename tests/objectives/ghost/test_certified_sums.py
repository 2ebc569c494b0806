# SPDX-License-Identifier: Apache-2.0
"""Neighboring sums differ by exactly the integers that were certified for one row.

The claim of docs/arithmetic.md, for the numbers that the machine computes: the total
with a row minus the total with a blank in its place is that row's integer vector, bit
for bit, and its norm is at most ``1 + SLACK`` bounds, also for the rows of attackers.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

from armijo.data import certified
from armijo.data.certified import (
    FINEST_BITS,
    LARGE_FORMED,
    SLACK,
    FormedSum,
    Share,
    keep_certified,
    release_bits,
)
from armijo.data.query import Rows
from armijo.objectives.ghost import grads, int8, strategy
from armijo.objectives.module import ModuleObjective
from tests.objectives.ghost.oracle import LAYERS, batch_of, cross_entropy, model_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same'", "ignore:There is a performance drop"
)
BITS = (FINEST_BITS, release_bits(2.0**20), release_bits(2.0**26))


class Tied(nn.Module):
    """An embedding that also decodes, and a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(6, 4), nn.Linear(4, 4)

    def forward(self, ids):
        y = torch.tanh(self.layer(torch.tanh(self.layer(self.table(ids)))))
        return functional.linear(y.mean(1), self.table.weight)[:, :3]


class Decoded(nn.Module):
    """The same with a linear layer that shares the weight, which has a rule."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)).mean(1))[:, :3]


OTHERS = {
    "tied, by torch.func": (Tied, "embedding"),
    "tied": (Decoded, "embedding"),
    "prelu": (lambda: nn.Sequential(nn.Linear(5, 3), nn.PReLU()), "linear"),
}
KINDS = [*LAYERS, *OTHERS]


def made(name, examples, dtype=torch.float32):
    """Return an objective and rows of many scales, outliers and bad numbers too."""
    torch.manual_seed(0)
    if name in OTHERS:
        make, like = OTHERS[name]
        module, (x, y) = make().to(dtype), batch_of(like, examples, dtype)
    else:
        module, (x, y) = model_of(name, dtype), batch_of(name, examples, dtype)
    if x.is_floating_point():
        scales = 10.0 ** torch.randint(-6, 7, (examples,)).to(dtype)
        x = x * scales.view(-1, *[1] * (x.dim() - 1))
        if examples > 5:
            x[3], x[4] = torch.nan, 1e30
    objective = ModuleObjective(module, cross_entropy)
    objective.check(*(torch.zeros_like(one[:1]) for one in (x, y)))
    return objective, x, y


def integers(objective, x, y, *, blank=None, clip=0.5, bits=FINEST_BITS):
    rows = Rows(x, y, seed=3, blank=blank)
    query = objective.gradient_sum(objective.start(), clip=clip)
    return query.contributions(rows).integers(bits).long()


def only(examples, place):
    blank = torch.ones(examples, dtype=torch.bool)
    blank[place] = False
    return blank


def without(x, y, place):
    """Return the rows with a blank in one place."""
    x, y = x.clone(), y.clone()
    x[place], y[place] = 0, 0
    return x, y, ~only(len(x), place)


def length(vector, bits=FINEST_BITS):
    return vector.double().norm().item() * 2.0**-bits


def assert_rows_are_all(objective, x, y, places, bits=FINEST_BITS):
    """Remove each row in place; what is gone is what it adds among blanks."""
    total = integers(objective, x, y, bits=bits)
    rows = []
    for place in places:
        other_x, other_y, blank = without(x, y, place)
        rest = integers(objective, other_x, other_y, blank=blank, bits=bits)
        rows.append(integers(objective, x, y, blank=only(len(x), place), bits=bits))
        assert torch.equal(total - rest, rows[-1])
        assert length(rows[-1], bits) <= 1 + SLACK
    return rows


@pytest.mark.parametrize("name", KINDS)
def test_a_row_moves_the_sum_by_its_own_integers(name):
    for examples in (1, 2, 7, 40):
        objective, x, y = made(name, examples)
        places = {0, examples // 2, examples - 1}
        for own in assert_rows_are_all(objective, x, y, places):
            assert own.any() or examples == 7  # row 3 is no number


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", ["linear", "linear on a sequence", "conv2d", "tied"])
def test_the_same_on_coarse_lattices_and_without_kept_gradients(
    name, bits, keeps, monkeypatch
):
    monkeypatch.setattr(strategy, "_KEPT_NUMBERS", 1 << 25 if keeps else 0)
    monkeypatch.setattr(grads, "BLOCK", 100)
    monkeypatch.setattr(grads, "_COPIED_NUMBERS", 100)
    objective, x, y = made(name, 40)
    assert_rows_are_all(objective, x, y, (0, 20, 39), bits=bits)


@pytest.mark.parametrize("examples", [100, 513, 2000])
def test_the_same_for_large_batches_in_parts(examples, monkeypatch):
    monkeypatch.setattr("armijo.objectives.module.EXACT_EXAMPLES", 1024)
    objective, x, y = made("conv2d, stride", examples)
    places = (0, examples // 2, examples - 1)
    assert all(own.any() for own in assert_rows_are_all(objective, x, y, places))


@pytest.mark.parametrize("name", ["linear", "conv2d", "tied", "prelu"])
def test_isolated_rows_are_the_same_alone_and_when_a_row_is_missing(name):
    objective, x, y = made(name, 37)
    objective.isolate = True
    total = integers(objective, x, y)
    for place in (0, 17, 36):
        rest = [row for row in range(37) if row != place]
        alone = integers(objective, x[place, None], y[place, None])
        assert torch.equal(total - integers(objective, x[rest], y[rest]), alone)
        assert total.any() and length(alone) <= 1 + SLACK


@pytest.mark.parametrize("width", [250, 785])
def test_widths_on_which_float32_rows_depend_on_their_place(width):
    """Ten outputs and a width that is no multiple of four: a blank keeps the places."""
    torch.manual_seed(0)
    objective = ModuleObjective(nn.Linear(width, 10), cross_entropy)
    x, y = torch.randn(64, width), torch.arange(64) % 10
    rows = assert_rows_are_all(objective, x, y, (0, 31, 63))
    assert all(own.any() for own in rows)


@pytest.fixture
def large_products(monkeypatch):
    """Let every product have int8 factors."""
    monkeypatch.setattr(grads, "LARGE_PRODUCT", 0)


@pytest.mark.parametrize("name", ["linear", "linear without bias", "tied", "prelu"])
def test_int8_factors_move_the_sum_by_their_own_integers(
    name, large_products, monkeypatch
):
    for examples in (1, 7, 40, 600):
        objective, x, y = made(name, examples)
        assert_rows_are_all(objective, x, y, {0, examples // 2, examples - 1})
        total = integers(objective, x, y)
        monkeypatch.setattr(int8, "_usable", lambda *shape: False)
        assert torch.equal(total, integers(objective, x, y))
        monkeypatch.undo()
        monkeypatch.setattr(grads, "LARGE_PRODUCT", 0)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("name", ["linear on a sequence", "conv2d", "prelu", "tied"])
def test_large_formed_gradients_in_float32(name, keeps, bits, monkeypatch):
    monkeypatch.setattr(certified, "LARGE_FORMED", 0)
    monkeypatch.setattr(strategy, "_KEPT_NUMBERS", 1 << 25 if keeps else 0)
    objective, x, y = made(name, 40)
    assert_rows_are_all(objective, x, y, (0, 20, 39), bits=bits)


# ------------------------------------------------------------------ rows of attackers


def dot(output, target):
    """Let the attacker's targets be the output gradients."""
    return (output * target).flatten(1).sum(1)


def gram(places=128, width=768):
    """Features that round alike in every entry of a Gram matrix."""
    signs = torch.where(torch.arange(width) % 2 == 0, 1.0, -1.0)
    row = (1.7e-4 * signs).repeat(places, 1)
    row[:, ::192] = signs[:places, None]  # cancels over places; the rest adds up
    targets = torch.ones(places, width)
    return nn.Linear(width, width, bias=False), row[None], targets[None]


def underflow():
    return nn.Linear(4, 3), torch.full((1, 4), 1.8e19), torch.full((1, 3), 2.6e-23)


def cancelling_places():
    x = torch.zeros(1, 4, 8, 8)
    x[0, :, 0, 0], x[0, :, 7, 7] = 2.0**40, 2.0**40
    target = torch.zeros(1, 6, 6, 6)
    target[0, :, 0, 0], target[0, :, 5, 5] = 1.0, -1.0
    return nn.Conv2d(4, 6, 3), x, target


def null_space():
    torch.manual_seed(0)
    layer = nn.Linear(12, 8)
    x = torch.linalg.svd(layer.weight.detach().double())[2][-1:].float() * 1e6
    return layer, x, torch.ones(1, 8)


FAMILIES = {
    "gram": gram,
    "gram of few": lambda: gram(8, 768),
    "underflow": underflow,
    "cancelling places": cancelling_places,
    "null space": null_space,
}


@pytest.mark.parametrize("clip", [1.0, 1e-4])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_rows_of_attackers_are_no_longer_than_the_bound(name, clip):
    assert_attacker_is_bounded(name, clip)


@pytest.mark.parametrize("clip", [1.0, 1e-4])
@pytest.mark.parametrize("name", ["underflow", "null space"])
def test_nor_are_they_with_int8_factors(name, clip, large_products):
    assert_attacker_is_bounded(name, clip)


def assert_attacker_is_bounded(name, clip):
    module, x, target = FAMILIES[name]()
    objective = ModuleObjective(module, dot)
    own = integers(objective, x, target, clip=clip)
    assert length(own) <= 1 + SLACK
    others = torch.randn(3, *x.shape[1:]), torch.randn(3, *target.shape[1:])
    together = [
        torch.cat((one, some)) for one, some in zip((x, target), others, strict=False)
    ]
    blank = torch.tensor([True, False, False, False])
    rest = integers(objective, *together, blank=blank, clip=clip)
    assert torch.equal(integers(objective, *together, clip=clip) - rest, own)


def test_terms_that_cancel_do_not_swallow_what_other_rows_add():
    class Valued(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3, 2)

        def forward(self, ids):
            return self.table(ids)

    ids, target = torch.zeros(501, 2).long(), torch.ones(501, 2, 2)
    target[-1, 0], target[-1, 1] = 2.0**40, -(2.0**40)
    objective = ModuleObjective(Valued(), dot)
    blank = torch.zeros(501, dtype=torch.bool)
    blank[-1] = True
    total = integers(objective, ids, target, clip=10.0)
    rest = integers(objective, ids, target, blank=blank, clip=10.0)
    assert rest.any() and length(total - rest) <= 1 + SLACK


def test_no_climb_finds_a_longer_row():
    """Gradient ascent on a row: to where its estimated norm is the most too small."""
    torch.manual_seed(0)
    layer = nn.Linear(96, 64, bias=False)
    objective = ModuleObjective(layer, dot)
    target = torch.randn(1, 16, 64)
    x = torch.randn(1, 16, 96).requires_grad_()
    climb = torch.optim.Adam([x], lr=0.05)
    longest = 0.0
    for _ in range(40):
        formed = target.mT @ x  # the true gradient; its Gram entries cancel the more
        mass = x.norm(dim=2) * target.norm(dim=2)
        loss = formed.norm().log() - mass.sum().log()
        climb.zero_grad()
        loss.backward()
        climb.step()
        own = integers(objective, x.detach() * 1e4, target)
        longest = max(longest, length(own))
    assert 0.9 < longest <= 1 + SLACK


# ---------------------------------------------------------------------- planted bugs


def caught(name="conv2d", examples=40):
    """Say whether the tests above would fail."""
    objective, x, y = made(name, examples)
    try:
        assert_rows_are_all(objective, x, y, (0, 20, 39))
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("large", [0, 1 << 30])
def test_the_tests_see_a_sum_in_float32(large, monkeypatch):
    def add_in_float32(self, gradients, share, *, overwrite=False):
        scaled = (gradients * share.scale.to(gradients)[:, None]).float()
        self.out.add_(scaled.sum(-2).double().round())

    monkeypatch.setattr(certified, "LARGE_FORMED", large)
    assert not caught()
    monkeypatch.setattr(certified.FormedSum, "add", add_in_float32)
    assert caught()


def test_the_tests_see_too_many_rows_in_float32(monkeypatch):
    monkeypatch.setattr(certified, "LARGE_FORMED", 0)
    monkeypatch.setattr(certified, "FLOAT_ROWS", 1000)
    monkeypatch.setattr(certified, "FLOAT_BITS", 26)
    assert caught()


def test_the_tests_see_a_missing_certificate(monkeypatch):
    monkeypatch.setattr(strategy, "_KEPT_NUMBERS", 0)
    monkeypatch.setattr(certified, "keep_certified", lambda integers, most: None)
    module, x, target = gram()
    own = integers(ModuleObjective(module, dot), x, target, clip=1.0)
    assert length(own) > 2


def test_the_tests_see_products_that_saturate(large_products, monkeypatch):
    def saturating(V, U):
        return (V.double().t() @ U.double()).clamp_(-(2.0**22), 2.0**22)

    assert not caught("linear")
    monkeypatch.setattr(grads, "product", saturating)
    assert caught("linear")


@pytest.mark.parametrize("large", [0, 1 << 30])
def test_the_tests_see_products_without_a_certificate(large, monkeypatch):
    """Norms of factors that are a tenth too small: the certificate alone holds."""
    original = grads.lengths
    monkeypatch.setattr(grads, "LARGE_PRODUCT", large)
    monkeypatch.setattr(grads, "lengths", lambda vectors: 0.9 * original(vectors))
    assert not caught("linear")
    monkeypatch.setattr(grads, "keep_certified", lambda integers, most: None)
    assert caught("linear")


def test_the_tests_see_a_branch_on_the_contents_of_a_batch(monkeypatch):
    original = grads.OuterProduct.squared_norms

    def branching(self, keep):
        squares = original(self, keep)
        return squares * (1.01 if self.right[0].any() else 1.0)

    assert not caught("linear")
    monkeypatch.setattr(grads.OuterProduct, "squared_norms", branching)
    assert caught("linear")


@pytest.mark.parametrize("seed", range(4))
def test_shortened_integers_do_not_depend_on_how_many_rows_are_too_long(seed):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # sums above 2**53 are rounded, by shape and threads
    try:
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(1, 4, 40_001, generator=generator, dtype=torch.float64)
        rows = rows.mul_(2.0**60).round_()
        alone = rows.clone()
        alone[:, 1:] = 0
        most = torch.full((4,), 2.0**115, dtype=torch.float64)
        for integers in (rows, alone):
            keep_certified(integers, most)
    finally:
        torch.set_num_threads(threads)
    assert alone[0, 0].any()
    assert torch.equal(rows[0, 0], alone[0, 0])


def test_sums_in_float32_use_no_product_that_a_setting_makes_coarse(monkeypatch):
    product = torch.Tensor.baddbmm_

    def coarse(out, left, right, **options):
        """Round as ``torch.set_float32_matmul_precision("medium")`` allows."""
        if right.dtype == torch.float32:
            right = right.bfloat16().float()
        return product(out, left, right, **options)

    monkeypatch.setattr(torch.Tensor, "baddbmm_", coarse)
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(1, 9, LARGE_FORMED, generator=generator)
    gradients /= gradients.norm(dim=2, keepdim=True)
    most = torch.full((9,), 4.0**40 * (1 + 2 * SLACK), dtype=torch.float64)
    share = Share(torch.full((9,), 2.0**40, dtype=torch.float64), most, 40)
    together, single = torch.zeros(2, 1, LARGE_FORMED, dtype=torch.float64)
    total = FormedSum(together, torch.float32)
    total.add(gradients, share)
    total.close()
    for row in range(9):
        total = FormedSum(single, torch.float32)
        total.add(gradients[:, row : row + 1], share.of(slice(row, row + 1)))
        total.close()
    assert torch.equal(together, single)
