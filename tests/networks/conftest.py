# SPDX-License-Identifier: Apache-2.0
"""Noise is solved once for equal settings: it takes a second, tests are many."""

from collections.abc import Callable
from typing import Any

import pytest

from armijo.accounting import planned
from armijo.methods import sgd
from armijo.networks import train as training
from armijo.training import accounts


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the results of a function whose arguments are compared by their text."""
    held: dict[str, Any] = {}

    def call(*given: Any, **named: Any) -> Any:
        key = repr((given, sorted(named.items())))
        if key not in held:
            held[key] = function(*given, **named)
        return held[key]

    return call


SOLVED = {
    (training, "network_method"): remembered(training.network_method),
    (sgd, "noise_multiplier_for"): remembered(sgd.noise_multiplier_for),
    (accounts, "order_for"): remembered(accounts.order_for),
    (accounts, "epsilon_of"): remembered(accounts.epsilon_of),
    (planned, "planned_epsilon"): remembered(planned.planned_epsilon),
}


@pytest.fixture(autouse=True)
def solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for (place, name), function in SOLVED.items():
        monkeypatch.setattr(place, name, function)
