# SPDX-License-Identifier: Apache-2.0
"""Products in int8 are the exact ones, or float64 has taken their place."""

import pytest
import torch

from armijo.objectives.ghost import int8


@pytest.fixture(autouse=True)
def untried(monkeypatch):
    monkeypatch.setattr(int8, "_tried", {})
    monkeypatch.setattr(int8, "_has_vnni", lambda: True)  # slower, and as exact


def factors(rows, left, right, seed=0):
    """Return factors with entries of all sizes, and rows of the largest ones."""
    generator = torch.Generator().manual_seed(seed)

    def whole(limit, width):
        numbers = torch.randint(-limit, limit + 1, (rows, width), generator=generator)
        numbers[::3] = limit
        numbers[1::3, ::2] = -limit
        return numbers.float()

    return whole(int8.LEFT_LIMIT, left), whole(int8.RIGHT_LIMIT, right)


def exact(V, U):
    return (V.long().t() @ U.long()).double()


SHAPES = [(1, 1, 1), (7, 5, 3), (64, 10, 785), (300, 33, 17), (513, 8, 9), (1100, 3, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_exact(shape):
    V, U = factors(*shape)
    assert torch.equal(int8.product(V, U), exact(V, U))
    assert torch.equal(int8.product(V.double(), U.double()), exact(V, U))


def test_sums_of_the_largest_numbers_fit_int32():
    assert int8.ROWS * int8.LEFT_LIMIT * (int8.RIGHT_LIMIT + 1) < 2**31


def in_pairs(left, right):
    """Multiply as processors without VNNI do: pairs are added in int16.

    One side is shifted to numbers without a sign, which is made up for at the end.
    """
    terms = (left.int() + 128)[:, :, None] * right.int()[None]
    pairs = (terms[:, 0::2] + terms[:, 1::2]).clamp_(-(2**15), 2**15 - 1)
    return (pairs.sum(1) - 128 * right.int().sum(0)).int()


def in_pairs_of_the_right(left, right):
    return in_pairs(right.t(), left.t()).t().contiguous()


def wrapping(left, right):
    return (left.int() @ right.int()).to(torch.int16).int()


def wrong_in_one_place(left, right):
    product = left.int() @ right.int()
    product[-1, -1] += 1
    return product


def refusing(left, right):
    raise RuntimeError("not implemented for 'CPU'")


BROKEN = [in_pairs, in_pairs_of_the_right, wrapping, wrong_in_one_place, refusing]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_wrong_product_is_never_used(broken, monkeypatch):
    V, U = factors(70, 6, 5)
    monkeypatch.setattr(torch, "_int_mm", broken)
    assert torch.equal(int8.product(V, U), exact(V, U))
    assert not all(int8._tried.values())


def test_the_first_difference_is_for_good(monkeypatch):
    right = torch._int_mm
    V, U = factors(64, 4, 4)
    int8.product(V, U)
    assert len(int8._tried) == 1
    calls = []

    def counted(*slices):
        calls.append(slices)
        return right(*slices)

    monkeypatch.setattr(torch, "_int_mm", in_pairs)
    int8.product(*factors(64, 4, 20))  # more than one step of columns
    monkeypatch.setattr(torch, "_int_mm", counted)
    for shape in ((64, 4, 4), (64, 4, 20), (64, 9, 9)):
        V, U = factors(*shape)
        assert torch.equal(int8.product(V, U), exact(V, U))
    assert not calls
    assert not all(int8._tried.values())


def test_each_shape_and_number_of_threads_is_tried_once(monkeypatch):
    tries = []
    monkeypatch.setattr(int8, "_is_exact", lambda *shape: not tries.append(shape))
    for rows, columns in ((60, 6), (64, 6), (33, 16), (65, 6), (64, 17)):
        int8.product(*factors(rows, 4, columns))
    assert tries == [(64, 4, 16), (128, 4, 16), (64, 4, 32)]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    int8.product(*factors(64, 4, 6))
    assert len(tries) == 4


def test_without_vnni_products_are_in_float64(monkeypatch):
    monkeypatch.setattr(int8, "_has_vnni", lambda: False)
    monkeypatch.setattr(torch, "_int_mm", None)
    V, U = factors(70, 6, 5)
    assert torch.equal(int8.product(V, U), exact(V, U))
    assert not int8._tried
