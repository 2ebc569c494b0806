# SPDX-License-Identifier: Apache-2.0
"""What every mechanism must do, whatever noise it stands for.

Each check takes a mechanism; a test module runs all of ``CHECKS`` over its own list.
Orders are integers of 2 or more, the ones that every mechanism accepts.
"""

import copy
import dataclasses
import json

import numpy as np
import pytest
from numpy.typing import NDArray

from armijo.accounting.accountants import PrivacyFilter
from armijo.accounting.budget import Budget
from armijo.accounting.mechanisms import (
    Composed,
    Gaussian,
    Mechanism,
    Repeated,
    describe,
)

FloatArray = NDArray[np.float64]

ORDERS = np.concatenate([np.arange(2.0, 41.0), [64.0, 150.0, 151.0, 400.0]])
OTHER = Gaussian(noise_scale=7.0)


def curve_is_nonnegative_and_rises(mechanism: Mechanism) -> None:
    curve = mechanism.rdp(ORDERS)
    assert np.all(np.isfinite(curve))
    assert np.all(curve > 0)
    # A Renyi divergence never falls when the order rises; rounding may.
    assert np.all(np.diff(curve) >= -1e-13 * curve[1:])


def shape_of_orders_is_kept(mechanism: Mechanism) -> None:
    flat = mechanism.rdp(ORDERS[:6])
    assert flat.shape == (6,)
    single = mechanism.rdp(np.array(ORDERS[4]))
    assert np.shape(single) == ()
    assert float(single) == pytest.approx(flat[4], rel=1e-9, abs=0.0)


def curve_is_not_shared_with_the_caller(mechanism: Mechanism) -> None:
    before = mechanism.rdp(ORDERS).copy()
    scribbled = mechanism.rdp(ORDERS)
    scribbled *= 0.0
    np.testing.assert_array_equal(mechanism.rdp(ORDERS), before)


def uses_multiply(mechanism: Mechanism) -> None:
    once = mechanism.rdp(ORDERS)
    for count in (1, 2, 10, 1000):
        repeated = Repeated(mechanism, count)
        np.testing.assert_allclose(repeated.rdp(ORDERS), count * once, rtol=1e-14)
        np.testing.assert_allclose(
            repeated.integer_curve(40), count * mechanism.integer_curve(40)
        )
    composed = Composed((mechanism,) * 10)
    np.testing.assert_allclose(composed.rdp(ORDERS), 10 * once, rtol=1e-14)


def composition_adds(mechanism: Mechanism) -> None:
    both = Composed((mechanism, OTHER))
    expected = mechanism.rdp(ORDERS) + OTHER.rdp(ORDERS)
    np.testing.assert_array_equal(both.rdp(ORDERS), expected)
    swapped = Composed((OTHER, mechanism))
    np.testing.assert_array_equal(swapped.rdp(ORDERS), expected)
    nested = Composed((Composed((mechanism, OTHER)), OTHER))
    np.testing.assert_allclose(
        nested.rdp(ORDERS), expected + OTHER.rdp(ORDERS), rtol=1e-14
    )


def is_a_value(mechanism: Mechanism) -> None:
    twin = copy.deepcopy(mechanism)
    assert twin == mechanism
    assert hash(twin) == hash(mechanism)
    assert mechanism != OTHER
    name = dataclasses.fields(mechanism)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(mechanism, name, 1.0)


def description_is_json_and_tells_all(mechanism: Mechanism) -> None:
    told = describe(mechanism)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["mechanism"] == type(mechanism).__name__
    names = {field.name for field in dataclasses.fields(mechanism)}  # type: ignore[arg-type]
    assert set(told) == {"mechanism"} | names


def charged_as_often_as_used(mechanism: Mechanism) -> None:
    order = 16
    once = float(mechanism.rdp(np.array([float(order)]))[0])
    budget = Budget(epsilon=1e9, delta=0.5)
    one_by_one, at_once = (PrivacyFilter(budget, order=order) for _ in range(2))
    for _ in range(7):
        one_by_one.charge(mechanism)
    at_once.charge(Repeated(mechanism, 7))
    assert one_by_one.spent[0] == pytest.approx(7 * once, rel=1e-14, abs=0.0)
    assert at_once.spent[0] == pytest.approx(7 * once, rel=1e-14, abs=0.0)


CHECKS = (
    curve_is_nonnegative_and_rises,
    shape_of_orders_is_kept,
    curve_is_not_shared_with_the_caller,
    uses_multiply,
    composition_adds,
    is_a_value,
    description_is_json_and_tells_all,
    charged_as_often_as_used,
)


def over(mechanisms: dict[str, Mechanism]) -> pytest.MarkDecorator:
    """Parametrize ``(mechanism, check)`` with all checks for all mechanisms."""
    pairs = [
        pytest.param(mechanism, check, id=f"{name}-{check.__name__}")
        for name, mechanism in mechanisms.items()
        for check in CHECKS
    ]
    return pytest.mark.parametrize(("mechanism", "check"), pairs)


def assert_convex(orders: FloatArray, curve: FloatArray, tolerance: float) -> None:
    """Check that (order - 1) * curve, zero at order one, is convex in the order."""
    at = np.concatenate([[1.0], orders])
    cumulant = np.concatenate([[0.0], (orders - 1) * curve])
    slopes = np.diff(cumulant) / np.diff(at)
    assert np.all(np.diff(slopes) >= -tolerance * np.abs(slopes[1:]))


def refused(build: object, name: str, value: object) -> None:
    """Check for a ``ValueError`` that names the argument and its value."""
    with pytest.raises(ValueError) as caught:
        build()  # type: ignore[operator]
    message = str(caught.value)
    assert name in message
    assert repr(value) in message
